"""The figures show what was measured, NaN as nothing, and take axes of the user's own."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from trimtab import Setup
from trimtab.curvature import (
    CurvatureError,
    problem,
    random_directions,
    sharpness,
    smoothness,
    surface,
    trajectory_directions,
)
from trimtab.curvature.figures import sharpness_figure, smoothness_figure, surface_figure
from trimtab.curvature.figures.surface import levels


class Vector(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 0.5, 1.0], dtype=torch.float64))


def setup(rate=0.1):
    model = Vector()
    batch = torch.ones(1, 1, dtype=torch.float64)
    return Setup(
        model,
        torch.optim.SGD(model.parameters(), lr=rate),
        lambda: [batch],
        lambda m, x: (m.w**2).sum() - 0.1 * torch.log(m.w + 0.6).sum() * x.mean(),
    )


@pytest.fixture(scope="module")
def plane():
    """Part of it beyond the logarithm's end."""
    found = problem(setup())
    made = trajectory_directions(found, [torch.tensor([2.0, 1.0, 1.5]), torch.tensor([1.5, 0.2, 1.1])])
    return surface(found, directions=made, span=3.0, points=9)


def test_a_plane(plane, tmp_path):
    settings = dict(matplotlib.rcParams)
    figure = surface_figure(plane, path=tmp_path / "plane.png")
    assert (tmp_path / "plane.png").read_bytes().startswith(b"\x89PNG")
    axes = figure.axes[0]
    assert 0 < plane.finite < 1
    track, model = axes.lines
    assert track.get_xydata() == pytest.approx(np.vstack([plane.directions.path, [[0, 0]]]))
    assert model.get_xydata().tolist() == [[0, 0]]
    assert axes.get_title() == f"loss {plane.loss:.4g} at the model"
    assert axes.get_xlabel().startswith("component 1")
    assert dict(matplotlib.rcParams) == settings


def test_levels_are_even_in_the_logarithm_where_there_is_one(plane):
    found = levels(plane)
    good = plane.values[np.isfinite(plane.values)]
    assert found[[0, -1]] == pytest.approx([good.min(), good.max()])
    steps = np.diff(np.log(found) if good.min() > 0 else found)
    assert steps == pytest.approx(np.full(len(steps), steps[0]))


def test_lines_on_axes_of_ones_own(tmp_path):
    found = problem(setup())
    lines = [
        surface(found, directions="gradient", span=0.5, points=7),
        surface(found, directions=random_directions(found, 1, vectors=True), span=4.0, points=7),
    ]
    figure = Figure()
    axes = figure.subplots()
    assert surface_figure(*lines, labels=("down", "random"), ax=axes) is figure
    assert axes.lines[0].get_ydata() == pytest.approx(lines[0].values)
    assert np.isnan(axes.lines[2].get_ydata()).any()
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["down", "random"]


def test_smoothness_and_sharpness_over_training(tmp_path):
    smooth, sharp = {}, {}
    for rate in (0.1, 0.3):
        one = setup(rate)
        smooth[f"rate {rate}"], sharp[f"rate {rate}"] = [], []
        for step, _ in enumerate(one.train(4)):
            smooth[f"rate {rate}"].append((step, smoothness(one)))
            sharp[f"rate {rate}"].append((step, sharpness(one)))
    figure = smoothness_figure(smooth, tmp_path / "triple.svg")
    assert (tmp_path / "triple.svg").exists()
    assert len(figure.axes) == 3
    line = figure.axes[2].lines[1]
    assert line.get_ydata() == pytest.approx([s.value for _, s in smooth["rate 0.3"]])
    figure = sharpness_figure(sharp)
    measured, limit = figure.axes[0].lines[:2]
    assert measured.get_ydata() == pytest.approx([s.value for _, s in sharp["rate 0.1"]])
    assert limit.get_ydata() == pytest.approx([20.0] * 4)
    assert limit.get_linestyle() == "--"


def test_what_is_refused(plane):
    for call, why in (
        (lambda: surface_figure(), "was given 0 surfaces"),
        (lambda: surface_figure(plane, plane), "was given 2 surfaces"),
        (lambda: surface_figure(plane, labels=("a", "b")), "labels must be one a line"),
        (lambda: smoothness_figure({}), "there are 0"),
        (lambda: sharpness_figure({"a": []}), "each with its steps"),
    ):
        with pytest.raises(CurvatureError, match=why):
            call()
