"""What a comparison tells, whatever it is written in."""

import math

from trimtab._messages import say
from trimtab.report.comparison import Comparison, LayerChange
from trimtab.report.diagnosis import Diagnosis
from trimtab.report.outline import fold
from trimtab.report.pages import title
from trimtab.report.words import in_words, number

ROOTS = 2
"""Root causes that a verdict names."""

WHERE = {
    "model": lambda: say("model"),
    "start": lambda: say("at the start"),
    "data": lambda: say("data"),
    "loss": lambda: say("loss"),
    "optimizer": lambda: say("optimizer"),
    "loop": lambda: say("loop"),
}
"""What settings belong to, each name made when it is asked for."""


WHAT = {"signal": lambda: say("signal"), "gradient": lambda: say("gradient")}
"""What is told of a layer."""


def counted(comparison: Comparison) -> str:
    """Return how many findings are gone, new and still there, in a few words."""
    if not (comparison.gone or comparison.new or comparison.stay):
        return say("no findings")
    gone, new, stay = len(comparison.gone), len(comparison.new), len(comparison.stay)
    parts = [say("{n} gone", n=gone) if gone else say("none gone"), say("{n} new", n=new) if new else say("none new")]
    return ", ".join([*parts, *([say("{n} still there", n=stay)] if stay else [])])


def verdict(diagnosis: Diagnosis) -> str:
    """Return a run's verdict in a line: its root causes, or that there are none."""
    groups, _ = fold(diagnosis)
    if not groups:
        return say("no training step was seen") if diagnosis.run.steps == 0 else say("healthy: nothing found")
    names = [title(main.code) or in_words(main.code).capitalize() for main, _ in groups]
    shown = "; ".join(names[:ROOTS])
    more = len(names) - ROOTS
    return say("{roots}; and {n} more", roots=shown, n=more) if more > 0 else shown


def course(diagnosis: Diagnosis) -> str:
    """Return the first and the last loss of a run."""
    run = diagnosis.run
    if run.first_loss is None and run.last_loss is None:
        return say("no loss was seen")
    first, last = (say("unknown") if x is None else number(x) for x in (run.first_loss, run.last_loss))
    return f"{first} → {last}"


def steps(diagnosis: Diagnosis) -> str:
    """Return how far a run is."""
    seen = f"{diagnosis.run.steps:,}"
    return seen if diagnosis.run.finished else say("{seen}, not ended", seen=seen)


def shown_value(value: float) -> str:
    """Return a number of a layer: infinite stands for not finite."""
    return say("not finite") if math.isinf(value) else number(value)


def shown_ratio(layer: LayerChange) -> str:
    """Return how many times the first the second is, "" where that is no number."""
    return f"×{number(layer.ratio)}" if math.isfinite(layer.ratio) else ""


def by_step(comparison: Comparison, most: int) -> list[tuple[str, list[LayerChange]]]:
    """Return the layers that are told, `most` by signal and `most` by gradient, below the words for their first and their last step.

    There are none where all layers have the same numbers in both runs.
    """
    told: list[tuple[str, list[LayerChange]]] = []
    if all(layer.values[0] == layer.values[1] for layer in comparison.layers):
        return told
    for when, several in (("first", say("first common step")), ("last", say("last common step"))):
        there = [layer for layer in comparison.layers if layer.when == when]
        shown = [layer for what in WHAT for layer in [layer for layer in there if layer.what == what][:most]]
        steps = {layer.steps for layer in shown}
        if len(steps) == 1:
            ((first, second),) = steps
            told.append((_at(first, second), shown))
        elif shown:
            told.append((several, shown))
    return told


def _at(first: int, second: int) -> str:
    if first == second:
        return say("step {step:,}", step=first)
    return say("steps {first:,} and {second:,}", first=first, second=second)


def layer_name(layer: LayerChange) -> str:
    """Return a layer's name, both of them where they differ."""
    return layer.a if layer.a == layer.b else f"{layer.a} / {layer.b}"
