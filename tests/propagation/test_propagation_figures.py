"""The figures show what was computed, on axes that can be read, and touch no global state."""

import numpy as np
import pytest
import torch
from torch import nn

from trimtab.propagation import PropagationError, collapse_figure, depth_figure, jacobian, phase_diagram, plain_net


def shown(figure):
    """Every text of a figure that has one."""
    figure.canvas.draw()
    return [text.get_text() for axes in figure.axes for text in (axes.title, axes.xaxis.label, *axes.texts)]


@pytest.mark.parametrize(("weight_var", "depth"), [(1.5, 20), (4.0, 8), (1.5, 1)])
def test_depth(weight_var, depth, tmp_path):
    net = plain_net("tanh", weight_var, 0.05, depth=depth)
    figure = depth_figure(net, tmp_path / "depth.png")
    assert (tmp_path / "depth.png").read_bytes().startswith(b"\x89PNG")
    signal, likeness, gradient = figure.axes
    assert signal.lines[0].get_ydata() == pytest.approx(net.course.q)
    assert likeness.lines[-1].get_ydata() == pytest.approx(net.course.c)
    assert np.log(gradient.lines[0].get_ydata()) == pytest.approx(net.course.log_gradient)
    assert {"q*", "c*"} <= set(shown(figure))


def test_depths_beyond_a_float(tmp_path):
    net = plain_net("relu", 900.0, 0.0, depth=100)
    assert net.course.log_gradient[0] > 600
    depth_figure(net, tmp_path / "deep.png")


def test_collapse_beside_a_model(tmp_path):
    torch.manual_seed(0)
    layers = [layer for _ in range(10) for layer in (nn.Linear(200, 200), nn.Tanh())]
    model = nn.Sequential(*layers[:-1])
    for layer in layers[::2]:
        nn.init.normal_(layer.weight, 0.0, (1.3 / 200) ** 0.5)
        nn.init.normal_(layer.bias, 0.0, 0.05**0.5)
    measured = jacobian(model, torch.randn(8, 200), probes=2, steps=1)
    predicted = plain_net("tanh", 1.3, 0.05, depth=10).course
    figure = collapse_figure({"ordered": predicted}, {"ordered": measured}, tmp_path / "collapse.png")
    assert (tmp_path / "collapse.png").read_bytes().startswith(b"\x89PNG")
    line, points = figure.axes[0].lines[:2]
    assert points.get_ydata() == pytest.approx(line.get_ydata(), abs=0.12)
    assert line.get_ydata()[-1] > 0.6
    assert figure.axes[1].get_yscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ordered", "measured"]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: collapse_figure({}), "predicted has 0 nets"),
        (lambda: collapse_figure({"a": plain_net("relu", 2.0, depth=2).course}, {"b": None}), "measured has 'b'"),
        (lambda: phase_diagram("tanh", weight_var=3.0), "weight_var is 3.0; a sequence"),
        (lambda: phase_diagram("tanh", bias_var=("a", "b")), "a number of bias_var is 'a'"),
        (lambda: phase_diagram("tanh", points="a"), "points is 'a'"),
        (lambda: phase_diagram("tanh", levels=[0.0]), "a number of levels is 0"),
    ],
)
def test_what_cannot_be_drawn_is_told(call, why):
    with pytest.raises(PropagationError, match=why):
        call()
