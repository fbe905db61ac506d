"""How the run went: loss, learning rate, gradient norm, sharpness against what the rate bears, and what the user logged."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab._messages import say
from trimtab.diagnosis.charting.thinned import points
from trimtab.diagnosis.view import View
from trimtab.recording import Kind
from trimtab.report.charts import Chart, Curve, LineChart, is_wide
from trimtab.report.outline import count

LOGGED = 12
"""Series of the user's that are drawn, at most."""

SHARPNESS = "sharpness"
"""Under this name a record keeps the largest eigenvalue of the Hessian: as a detail, or where a user has logged it."""


def course(view: View) -> tuple[list[Chart], list[str]]:
    """Curves over the training steps."""
    charts = [chart for chart in (_loss(view), _rates(view), _gradient(view), _sharpness(view)) if chart is not None]
    notes = []
    kept = view.record.loss_steps
    if len(kept) > 2000:
        notes.append(
            say("Curves of {n:,} steps are drawn by the lowest and highest values of each stretch.", n=len(kept))
        )
    mine = [name for name in view.record.logged if name not in (SHARPNESS, "loss")]
    charts += [_logged(view, name) for name in mine[:LOGGED]]
    if len(mine) > LOGGED:
        notes.append(say("{n} of the series you logged are not drawn.", n=len(mine) - LOGGED))
    return list(charts), notes


def _over_steps(
    key: str, title: str, steps: NDArray[np.int64], curves: Sequence[Curve], unit: str, caption: str
) -> LineChart:
    return LineChart(
        key=key,
        section="training",
        title=title,
        x=steps.astype(np.float64),
        curves=tuple(curves),
        x_label=say("training step"),
        y_label=unit,
        log=is_wide(np.concatenate([curve.y for curve in curves])),
        caption=caption,
    )


def _loss(view: View) -> LineChart | None:
    record = view.record
    seen = record.loss_seen
    if not seen.any():
        return None
    losses, steps = record.losses[seen], record.loss_steps[seen]
    y = np.where(np.isfinite(losses), losses, np.nan)
    keep = points(y)
    curves = [Curve(say("loss"), y[keep])]
    chance = view.constant_answer
    if math.isfinite(chance) and chance > 0:
        curves.append(Curve(say("an answer that ignores the input"), np.full(len(keep), chance), "limit"))
    caption = say("The loss of each training step as the backward pass saw it, without any loss scale.")
    caption += _gaps(steps, losses)
    return _over_steps("loss", say("Loss"), steps[keep], curves, say("loss"), caption)


def _gaps(steps: NDArray[np.int64], y: NDArray[np.float64]) -> str:
    """A sentence on where a curve was not finite, "" where it always was."""
    lost = ~np.isfinite(y)
    if not lost.any():
        return ""
    return " " + say(
        "It was not finite at {n}, first at step {step:,}; there the line has a gap.",
        n=count(int(lost.sum()), "step"),
        step=int(steps[lost][0]),
    )


def _rates(view: View) -> LineChart | None:
    record = view.record
    known = np.isfinite(record.rates)
    if not known.any():
        return None
    steps, first = record.loss_steps[known], record.rates[known]
    several = _by_group(view)
    caption = say("As each step used it.")
    if len(several) < 2:
        keep = points(first)
        return _over_steps(
            "learning-rate",
            say("Learning rate"),
            steps[keep],
            [Curve(say("learning rate"), first[keep])],
            say("learning rate"),
            caption,
        )
    keep = points(next(iter(several.values())))
    curves = [Curve(name, y[keep]) for name, y in several.items()]
    caption = say("As each step used it, by optimizer and parameter group.")
    return _over_steps("learning-rate", say("Learning rate"), record.steps[keep], curves, say("learning rate"), caption)


def _by_group(view: View) -> dict[str, NDArray[np.float64]]:
    """Learning rates by optimizer and group at the recorded steps, equal ones once."""
    record = view.record
    found: dict[str, NDArray[np.float64]] = {}
    for i, facts in enumerate(record.optimizers):
        for group in range(len(facts.get("groups", ()))):
            y = np.full(len(record.steps), np.nan)
            for row, info in enumerate(record.info):
                rates = info.get("rates") or []
                if i < len(rates) and rates[i] and group < len(rates[i]) and rates[i][group] is not None:
                    y[row] = rates[i][group]
            alike = any(np.array_equal(y, other, equal_nan=True) for other in found.values())
            if np.isfinite(y).any() and not alike and len(found) < 6:
                own = facts.get("label") or facts["class"]
                found[say("{optimizer}, group {group}", optimizer=own, group=group)] = y
    return found


def _gradient(view: View) -> LineChart | None:
    """Norm of the whole gradient before clipping, and as the optimizer used it where that differs."""
    record = view.record
    if not len(record.steps):
        return None
    raw, used = _norm(view, "raw-gradient"), _norm(view, "parameter-gradient")
    names = {say("as it came"): raw, say("as the optimizer used it"): used}
    known = {name: y for name, y in names.items() if np.isfinite(y).any()}
    if not known:
        return None
    if len(known) == 2 and np.allclose(raw, used, rtol=1e-4, equal_nan=True):
        known = {say("gradient norm"): used}
    keep = points(next(iter(known.values())))
    return _over_steps(
        "gradient-norm",
        say("Gradient norm"),
        record.steps[keep],
        [Curve(name, y[keep]) for name, y in known.items()],
        say("Euclidean norm of all gradients"),
        say("Over all parameters that are trained, at the recorded steps."),
    )


def _norm(view: View, kind: Kind) -> NDArray[np.float64]:
    record = view.record
    total, spoilt = np.zeros(len(record.steps)), np.zeros(len(record.steps), dtype=bool)
    for site in view.sites(kind):
        total += record.squares(site.index)
        spoilt |= record.readings[:, site.index, 6] > 0
    return np.where(spoilt | (total == 0), np.nan, np.sqrt(total))


def _sharpness(view: View) -> LineChart | None:
    """The largest eigenvalue of the Hessian beside what the rate bears (Cohen et al. 2021, arXiv:2103.00065, section 2)."""
    record = view.record
    noted = record.details.get(SHARPNESS, [])
    steps, y = (
        np.array([step for step, _ in noted], dtype=np.int64),
        np.array([value for _, value in noted], dtype=float),
    )
    if not len(steps) and SHARPNESS in record.logged:
        steps, y = record.logged[SHARPNESS]
    if not len(steps):
        return None
    curves = [Curve(say("sharpness"), y, "points")]
    known = np.isfinite(record.rates) & (record.rates > 0)
    if known.any():
        place = np.searchsorted(record.loss_steps[known], steps).clip(0, known.sum() - 1)
        curves.append(Curve(say("2 / learning rate"), 2 / record.rates[known][place], "limit"))
    return _over_steps(
        "sharpness",
        say("Sharpness"),
        steps,
        curves,
        say("largest eigenvalue of the Hessian"),
        say("Plain gradient descent diverges along a direction whose curvature is above 2 / learning rate."),
    )


def _logged(view: View, name: str) -> LineChart:
    steps, y = view.record.logged[name]
    caption = say("As your code logged it.") + _gaps(steps, y)
    y = np.where(np.isfinite(y), y, np.nan)
    keep = points(y)
    return _over_steps(f"logged-{name}", name, steps[keep], [Curve(name, y[keep])], name, caption)
