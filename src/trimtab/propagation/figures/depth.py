"""A plain net by depth: its signal, the likeness of two inputs, its gradient."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimtab._messages import say
from trimtab._style import BLUE, GREEN, GREY, INK, LABEL, ORANGE, TITLE, empty, roomy, saved, styled, verbatim
from trimtab.propagation.figures._layers import by_depth
from trimtab.propagation.plain import PlainNet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 200.0  # decades; an axis needs room beyond them in a float


@styled
def depth_figure(net: PlainNet, path: str | Path | None = None) -> "Figure":
    """Second moment q, correlation of two inputs and squared gradient by layer, as `plain_net` foretells them.

    Light bands are 3 sigma of the net's width; dashed lines are the fixed points q* and c* (Poole et al. 2016,
    arXiv:1606.05340; Schoenholz et al. 2017, arXiv:1611.01232).

    Args:
        net: What `plain_net` gives.
        path: Where to save the figure, as PNG unless it ends in .svg or .pdf; None saves nothing.

    Returns:
        The figure. No global state of matplotlib is touched.
    """
    figure = empty(9.6, 3.2)
    signal, likeness, gradient = figure.subplots(1, 3)
    layers = np.arange(1, net.depth + 1)
    style = {"linewidth": 1.8} if net.depth > 1 else {"linewidth": 0.0, "marker": "o"}
    low, middle, high = np.clip([net.q_low, net.course.q, net.q_high], 10.0**-_MOST, 10.0**_MOST)
    signal.fill_between(layers, low, high, color=BLUE, alpha=0.16, linewidth=0)
    signal.plot(layers, middle, color=BLUE, **style)
    if net.scales is not None:
        signal.axhline(net.scales.q, color=GREY, linestyle="--", linewidth=0.9)
        likeness.axhline(net.scales.c, color=GREY, linestyle="--", linewidth=0.9)
        for axes, name in ((signal, "q*"), (likeness, "c*")):
            value = net.scales.q if axes is signal else net.scales.c
            axes.annotate(
                name, (1.0, value), xycoords=("axes fraction", "data"), xytext=(3, 0), textcoords="offset points",
                fontsize=LABEL, color=GREY, va="center", annotation_clip=False,
            )  # fmt: skip
    likeness.plot(layers, net.course.c, color=GREEN, **style)
    likeness.set_ylim(min(-0.03, 1.1 * float(net.course.c.min())), 1.05)
    tens = np.array([net.log_gradient_low, net.course.log_gradient, net.log_gradient_high]) / np.log(10.0)
    low, middle, high = 10.0 ** np.clip(tens, -_MOST, _MOST)
    gradient.fill_between(layers, low, high, color=ORANGE, alpha=0.16, linewidth=0)
    gradient.plot(layers, middle, color=ORANGE, **style)
    by_depth(signal, net.depth, say("signal q"))
    by_depth(likeness, net.depth, say("correlation of two inputs"))
    by_depth(gradient, net.depth, say("squared gradient / last layer's"))
    roomy(signal)
    roomy(gradient)
    figure.suptitle(
        say(
            "{name}: weight variance {weight:.4g}/fan-in, bias variance {bias:.4g}, width {width} (bands: 3 sigma)",
            name=verbatim(net.activation), weight=net.weight_var, bias=net.bias_var, width=net.width,
        ),
        fontsize=TITLE, color=INK,
    )  # fmt: skip
    return saved(figure, path)
