"""What is measured every so many steps: the three measures of smoothness, and the sharpness beside its limit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab._messages import say
from trimtab._style import COLOURS, INK, LABEL, SMALL, TITLE, empty, quiet, roomy, ruled, saved, styled
from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.sharpness import Sharpness
from trimtab.curvature.smoothness import Smoothness


@styled
def smoothness_figure(
    runs: Mapping[str, Sequence[tuple[int, Smoothness]]], path: str | Path | None = None, *, axes: Any = None
) -> Any:
    """The three measures of Santurkar et al. over training (their fig. 4), one colour a run.

    Args:
        runs: For each run its steps, with the measures there.
        path: Where to save the figure, as PNG unless it ends in .svg or .pdf; None saves nothing.
        axes: Three axes of matplotlib to draw on; None for a figure of its own.

    Returns:
        The figure.
    """
    _require(runs)
    figure = empty(7.0, 2.5) if axes is None else axes[0].figure
    panels = figure.subplots(1, 3) if axes is None else axes
    for (name, course), colour in zip(runs.items(), COLOURS, strict=False):
        steps = [step for step, _ in course]
        for panel, bands in zip(panels, ("loss_range", "gradient_range"), strict=False):
            low, high = zip(*(getattr(one, bands) for _, one in course), strict=True)
            panel.fill_between(steps, low, high, color=colour, alpha=0.35, linewidth=0, label=name)
        panels[2].plot(steps, [one.value for _, one in course], color=colour, linewidth=1.4, label=name)
    titles = (say("loss along the step"), say("change of the gradient"), say("effective β-smoothness"))
    for panel, title in zip(panels, titles, strict=True):
        _dress(panel, title)
    panels[2].legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return saved(figure, path)


@styled
def sharpness_figure(
    runs: Mapping[str, Sequence[tuple[int, Sharpness]]], path: str | Path | None = None, *, ax: Any = None
) -> Any:
    """Sharpness over training, each run beside what its optimizer bears (dashed).

    Args:
        runs: For each run its steps, with the sharpness there.
        path: Where to save the figure, as PNG unless it ends in .svg or .pdf; None saves nothing.
        ax: Axes of matplotlib to draw on; None for a figure of its own.

    Returns:
        The figure.
    """
    _require(runs)
    figure = empty(3.6, 2.7) if ax is None else ax.figure
    panel = figure.subplots() if ax is None else ax
    for (name, course), colour in zip(runs.items(), COLOURS, strict=False):
        steps = [step for step, _ in course]
        panel.plot(steps, [one.value for _, one in course], color=colour, linewidth=1.4, label=name)
        panel.plot(steps, [one.limit.value for _, one in course], "--", color=colour, linewidth=0.9)
    _dress(panel, say("sharpness, and what the optimizer bears (dashed)"))
    panel.legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return saved(figure, path)


def _require(runs: Mapping[str, Sequence[tuple[int, Any]]]) -> None:
    if not 0 < len(runs) <= len(COLOURS) or not all(runs.values()):
        raise CurvatureError(f"runs must be one to {len(COLOURS)} runs, each with its steps, but there are {len(runs)}")


def _dress(panel: Any, title: str) -> None:
    panel.set_xlabel(say("step"), fontsize=LABEL, color=INK)
    panel.set_title(title, fontsize=TITLE, color=INK, pad=8)
    if panel.get_ylim()[0] > 0:
        roomy(panel, least=10.0)
    ruled(panel)
    quiet(panel)
