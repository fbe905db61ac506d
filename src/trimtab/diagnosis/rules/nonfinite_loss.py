"""`nonfinite-loss`: the loss, or a gradient under a finite loss, became NaN or infinite; where it began."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis import ranks
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.recording import COLUMNS, Kind, Site
from trimtab.report import Evidence, Finding, Repair

OVERFLOW = 1e18
"""Magnitudes above this are on their way to float32's largest, 3.4e38: the squares in a loss or a norm no longer fit."""

MANY = 0.1
"""Share of the backward passes that a scaler passes over, from which on the run is broken and not only poorer by some batches."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the first value that is no number was seen."""

    step: int
    where: tuple[str, ...]
    what: str
    site: Site | None
    largest_before: float


def find(view: View) -> Iterator[Found]:
    """The first recorded step with a value that is no number, and the first place in the order of computation."""
    origin = _origin(view)
    if origin is None:
        yield from _skipped(view)
        return
    progress = view.progress
    before = [x for x in view.record.losses[view.record.loss_steps < origin.step] if np.isfinite(x)]
    evidence = [
        Evidence(say("first step with NaN or infinity"), float(origin.step)),
        Evidence(
            say("loss before it"),
            float(before[-1]) if before else say("none: it is the first step"),
            step=max(origin.step - 1, 0),
        ),
    ]
    if np.isfinite(origin.largest_before):
        evidence.append(
            Evidence(say("largest magnitude of any signal before it"), origin.largest_before, OVERFLOW, unit="")
        )
    if origin.site is not None:
        evidence += ranks.bad_values(view, origin.step, origin.site)
    yield Found(
        Finding(
            code="nonfinite-loss",
            severity="error",
            where=origin.where,
            summary=say(
                "{what} at step {step}, and from then on nothing is a number any more.",
                what=origin.what,
                step=origin.step,
            )
            if progress.nonfinite is not None
            else say("{what} at step {step}.", what=origin.what, step=origin.step),
            evidence=tuple(evidence),
            repairs=_repairs(origin),
            location=view.place("backward", "forward"),
        ),
        origin.step,
    )


def _skipped(view: View) -> Iterator[Found]:
    """Backward passes from a loss that was no number, which no optimizer step followed: a gradient scaler passes over them."""
    lost = int(view.record.facts.get("lost_passes", 0))
    if not lost:
        return
    passes = lost + view.record.step_count
    yield Found(
        Finding(
            code="nonfinite-loss",
            severity="error" if lost > MANY * passes and not view.learned else "warning",
            where=("loss",),
            summary=say(
                "In {lost} of {passes} backward passes the loss was NaN or infinite and no optimizer step followed: a gradient scaler skips "
                "such batches without a word.",
                lost=lost,
                passes=passes,
            ),
            evidence=(Evidence(say("backward passes from a loss that is no number"), float(lost), 0.0),),
            repairs=(
                Repair(
                    say(
                        "Look at the batches whose loss is not finite: the scaler is there for gradients that overflow, not for these"
                    ),
                    "assert torch.isfinite(loss), (i, x, y)   # before backward",
                ),
            ),
            location=view.place("backward", "forward"),
        )
    )


def _repairs(origin: Origin) -> tuple[Repair, ...]:
    if origin.where == ("loss",):
        return (
            Repair(
                say("Use the loss that works on logits: it never takes the logarithm of a rounded 0"),
                "loss = F.binary_cross_entropy_with_logits(logits, target)   # or F.cross_entropy(logits, target)",
            ),
            Repair(say("In a loss of your own keep arguments of log, sqrt and division away from 0: clamp_min(eps)")),
        )
    return (
        Repair(
            say(
                "Make the operation safe at the edge of its domain: the backward pass evaluates both branches of torch.where"
            ),
            "y = torch.where(x > 0, torch.sqrt(x.clamp_min(eps)), other)",
        ),
        Repair(
            say("In half precision, compute this operation in float32, with an epsilon that the precision can hold")
        ),
    )


def _origin(view: View) -> Origin | None:
    record = view.record
    bad_loss = view.progress.nonfinite
    steps = [int(s) for s in record.steps]
    suspects = _suspects(view)
    for i, step in enumerate(steps):
        if bad_loss is not None and step > bad_loss and (i == 0 or steps[i - 1] < bad_loss):
            break  # the step of the loss itself was not recorded
        where = _in_step(view, step) if step in suspects else None
        if where is not None:
            return Origin(step, *where, _largest_before(view, step))
    if bad_loss is None:
        return None
    return Origin(bad_loss, ("loss",), say("The loss became NaN or infinite"), None, _largest_before(view, bad_loss))


def _suspects(view: View) -> set[int]:
    """The steps at which anything at all was no number: a long run has too many steps to look at each."""
    record = view.record
    bad = (record.readings[:, :, COLUMNS.index("nonfinite")] > 0).any(1)
    lost = record.loss_steps[record.loss_seen & ~np.isfinite(record.losses)]
    return {*record.steps[bad].tolist(), *lost.tolist()}


def _in_step(view: View, step: int) -> tuple[tuple[str, ...], str, Site | None] | None:
    """The first place, in the order of computation, with a value that is no number at `step`."""
    broken = _broken(view, "parameter", step)
    if broken:
        return (
            (view.name(*broken[0]),),
            say("A parameter is NaN or infinite"),
            view.record.site(*broken[0], "parameter"),
        )
    for model in view.active:
        outputs = {name for m, name in _broken(view, "output", step) if m == model}
        for name in view.forward_order(model):
            if name in outputs:
                return (
                    (view.name(model, name),),
                    say("The output of {name} is the first to become NaN or infinite", name=view.name(model, name)),
                    view.record.site(model, view.module(model, name), "output"),
                )
    loss = view.record.losses[view.record.loss_steps == step]
    if len(loss) and not np.isfinite(loss[0]) and view.record.loss_seen[view.record.loss_steps == step][0]:
        return ("loss",), say("The loss becomes NaN or infinite though every module's output is finite"), None
    for model in view.active:
        gradients = {name for m, name in _broken(view, "gradient", step) if m == model}
        order = [n for n in view.forward_order(model) if view.series(model, n, "gradient") is not None]
        broken_names = [n for n in order if n in gradients]
        if broken_names:
            index = order.index(broken_names[-1])
            if index + 1 == len(order):  # so it comes out of the loss
                return (
                    ("loss",),
                    say(
                        "The loss is finite, but its own gradient, at the output of {name}, is NaN or infinite",
                        name=view.name(model, order[index]),
                    ),
                    view.record.site(model, order[index], "gradient"),
                )
            culprit = order[index + 1]
            return (
                (view.name(model, culprit),),
                say(
                    "The backward pass of {name} gives the first gradient that is NaN or infinite, under a finite loss",
                    name=view.name(model, culprit),
                ),
                view.record.site(model, order[index], "gradient"),
            )
    raw = _broken(view, "raw-gradient", step) or _broken(view, "parameter-gradient", step)
    if raw:
        name = view.name(*raw[0])
        return (name,), say("The gradient of {name} is NaN or infinite", name=name), None
    return None


def _broken(view: View, kind: Kind, step: int) -> list[tuple[int, str]]:
    """Model and name of the sites of a kind that were not finite at a step."""
    at = np.flatnonzero(view.record.steps == step)
    bad = view.record.readings[at, :, COLUMNS.index("nonfinite")].max(0, initial=0.0)
    return [(site.model, site.name) for site in view.sites(kind) if bad[site.index] > 0]


def _largest_before(view: View, step: int) -> float:
    """The largest magnitude of any output at the recorded steps before `step`."""
    rows = view.record.steps < step
    columns = [site.index for site in view.sites("output")]
    values = view.record.readings[rows][:, columns, 4] if rows.any() and columns else np.zeros(0)
    return float(values.max()) if values.size else float("nan")
