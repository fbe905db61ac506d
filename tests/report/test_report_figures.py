"""The figure: two rows, a column for each network, shared logarithmic axes, no global state."""

import math
import sys

import numpy as np
import pytest

from trimtab.report.figures import Profile, signal_figure


def profile(title="before", rate=1 / 6, depth=9):
    layers = tuple(f"body.{2 * i}" for i in range(depth))
    signal = [rate**i for i in range(depth)]
    factors = [math.exp(0.1 * i) for i in range(depth)]
    low = [1 / f for f in factors]
    return Profile(title, layers, signal, signal, signal[::-1], signal[::-1], low, factors, low, factors)


def test_two_rows_and_a_column_each(tmp_path):
    path = tmp_path / "signal.png"
    figure = signal_figure([profile(), profile("after $x$", 1.0)], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == 4
    assert all(axes.get_yscale() == "log" for axes in figure.axes)
    above, above_after, below, below_after = figure.axes
    assert above.get_ylim() == above_after.get_ylim()
    assert below.get_ylim() == below_after.get_ylim()
    assert above.get_title("left") == "before"
    assert above_after.get_title("left") == r"after \$x\$", "no formula"
    assert "mean square" in above.get_ylabel()
    assert "gradient" in below.get_ylabel()
    assert below.get_xlabel() == "depth in layers"
    assert [text.get_text() for text in below.get_xticklabels()] == [f"body.{2 * i}" for i in range(9)]
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["predicted", "measured"]
    predicted, measured = above.lines
    assert predicted.get_ydata().tolist() == measured.get_ydata().tolist() == [(1 / 6) ** i for i in range(9)]
    (band,) = above.collections
    edges = band.get_paths()[0].vertices[:, 1]
    assert edges.min() == pytest.approx((1 / 6) ** 8 * math.exp(-0.8))
    assert above.get_ylim()[0] < edges.min()
    assert edges.max() == above_after.lines[0].get_ydata()[0] == 1.0
    assert above_after.get_ylim()[1] > math.exp(0.8), "the scale is that of both"


def test_no_pyplot():
    figure = signal_figure([profile()])  # another test may have imported pyplot; it must not know of our figure
    assert "matplotlib.pyplot" not in sys.modules or getattr(figure, "number", None) is None


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_values_without_a_place_on_the_axis_leave_a_gap(bad, tmp_path):
    values = [1.0, bad, 0.5]
    figure = signal_figure([Profile("t", ("a", "b", "c"), values, values, values, values)], tmp_path / "f.png")
    assert np.isnan(figure.axes[0].lines[0].get_ydata()[1])


@pytest.mark.parametrize("values", [[], [0.0], [math.nan, math.nan], [1.0]])
def test_next_to_nothing_to_draw(values, tmp_path):
    layers = tuple("x" * len(values))
    signal_figure([Profile("t", layers, values, values, values, values)], tmp_path / "f.png")


def test_no_panel_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        signal_figure([])
