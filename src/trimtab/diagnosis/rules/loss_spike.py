"""`loss-spike`: a loss that had come down jumps up after a step that was too long, and comes back late or not at all."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import Layer
from trimtab.diagnosis.view import View, relative_updates
from trimtab.report import Evidence, Finding, Repair, Severity

WINDOW = 20
"""Losses before a step, whose median and spread it is compared with."""

DEVIATIONS = 8.0
"""Robust standard deviations of these losses: no noise of small batches reaches that at several steps on end."""

REGAINED = 0.3
"""Share of what the run had taken off the loss that the jump puts on again."""

LASTS = 3
"""Steps out of five that stay up by half of the jump: one bad batch is up for one."""

OUTLIER = 3.0
"""Relative update of a layer before the jump over its median in the steps before: the step that did it."""

BEFORE = 5
"""Steps before the jump in which that update is looked for."""

LATE = 0.1
"""Share of the run that it takes to come back, from which on it has cost something."""


@dataclass(frozen=True, slots=True)
class Spike:
    """A jump of the loss.

    Attributes:
        step: The step whose loss is up.
        before: Median of the losses before.
        peak: Largest loss of the five steps from it on.
        deviations: The jump in robust standard deviations of the losses before.
        back: Steps until the loss was down again by most of the jump, None when it never was.
    """

    step: int
    before: float
    peak: float
    deviations: float
    back: int | None


def find(view: View) -> Iterator[Found]:
    """The largest jump of a loss that had come down, with the layer whose update grew before it."""
    record = view.record
    seen = record.loss_seen
    losses, steps = record.losses[seen], record.loss_steps[seen]
    if (
        len(np.unique(record.stepped[seen])) != 1 or not np.isfinite(losses).all()
    ):  # optimizers that take turns have a loss each
        return
    spike = largest_spike(losses, steps)
    if spike is None:
        return
    layer, outlier = _culprit(view, spike.step)
    if layer is None or _raised(view, spike.step):  # another kind of batch, or a schedule that starts anew
        return
    late = spike.back is None or spike.back > LATE * record.step_count
    severity: Severity = "error" if spike.back is None else "warning" if late else "note"
    yield Found(_finding(view, spike, layer, outlier, severity), max(spike.step - 1, 0))


def largest_spike(losses: np.ndarray, steps: np.ndarray) -> Spike | None:
    """The largest jump of a loss that had come down.

    Args:
        losses: Finite losses, one a step.
        steps: Their steps.

    Returns:
        The jump; None where nothing jumped by more than its noise and by a good part of what had been gained.
    """
    found: Spike | None = None
    first = float(np.median(losses[:3])) if len(losses) else 0.0
    for i in _candidates(losses, first):
        window, ahead = losses[i - WINDOW : i], losses[i : i + 5]
        before = float(np.median(window))
        jump = float(ahead.max()) - before
        if found and ahead.max() <= found.peak:
            continue
        spread = 1.4826 * float(np.median(np.abs(window - before)))
        spread = max(spread, 1e-3 * abs(first))
        if (
            (losses[i] - before) / spread < DEVIATIONS
            or np.sum(ahead > before + jump / 2) < LASTS
            or np.sort(window)[-2]
            > before + jump / 2  # it was up before; one step may have been, the batch that did it
        ):
            continue
        down = np.flatnonzero(losses[i + 1 :] < before + 0.1 * jump)
        returned = len(down) and np.median(losses[-WINDOW:]) < before + jump / 2
        back = int(steps[i + 1 + down[0]] - steps[i]) if returned else None
        found = Spike(int(steps[i]), before, float(ahead.max()), jump / spread, back)
    return found


def _candidates(losses: np.ndarray, first: float) -> Iterator[int]:
    """Where the loss jumps by a good part of what had been gained; a block at a time, since a long run has millions of losses."""
    if len(losses) < WINDOW + BEFORE:
        return
    windows = np.lib.stride_tricks.sliding_window_view(losses, WINDOW)
    peaks = np.lib.stride_tricks.sliding_window_view(losses, 5)
    together = 50_000  # a long run has more losses than windows of them fit into memory
    for low in range(WINDOW, len(losses) - BEFORE + 1, together):
        at = np.arange(low, min(low + together, len(losses) - BEFORE + 1))
        before = np.median(windows[at - WINDOW], axis=1)
        gained, jump = first - before, peaks[at].max(axis=1) - before
        jumps = (gained > 0) & (jump >= REGAINED * gained) & (losses[at] - before >= jump / 2)
        yield from at[jumps].tolist()


def _culprit(view: View, step: int) -> tuple[Layer | None, float]:
    """The layer whose update grew most before a step, and how many times its median; None where none did."""
    best: tuple[Layer | None, float] = (None, OUTLIER)
    for layer in view.layers:
        if not len(layer.updates) or not len(layer.values):
            continue
        steps = np.intersect1d(layer.values.steps, layer.updates.steps)
        sizes = relative_updates(layer)
        close = sizes[(steps < step) & (steps >= step - BEFORE)]
        usual = sizes[(steps < step - BEFORE) & (steps >= min(step // 2, step - WINDOW))]
        if len(close) and len(usual) and np.median(usual) > 0 and close.max() / np.median(usual) > best[1]:
            best = layer, float(close.max() / np.median(usual))
    return best


def _raised(view: View, step: int) -> bool:
    """Whether the schedule itself had raised the rate by then to twice what it was."""
    rates, steps = view.record.rates, view.record.loss_steps
    now, then = (
        rates[(steps < step) & (steps >= step - BEFORE)],
        rates[(steps < step - BEFORE) & (steps >= step - WINDOW)],
    )
    return bool(len(now) and len(then) and np.isfinite(now).all() and now.max() > 2 * np.median(then))


def _finding(view: View, spike: Spike, layer: Layer, outlier: float, severity: Severity) -> Finding:
    steps = view.record.step_count
    return Finding(
        code="loss-spike",
        severity=severity,
        where=("optimizer", view.name(layer.model, layer.name)),
        summary=say(
            "At step {step} of {steps} the loss jumps from {before:.3g} to {peak:.3g}, {deviations:.0f} times its noise, after an update of {name} that was "
            "{outlier:.2g} times its usual size{back}.",
            step=spike.step,
            steps=steps,
            before=spike.before,
            peak=spike.peak,
            deviations=spike.deviations,
            name=view.name(layer.model, layer.name),
            outlier=outlier,
            back=say(", and does not come back")
            if spike.back is None
            else say("; it is back after {back} steps", back=spike.back),
        ),
        evidence=(
            Evidence(
                say("jump of the loss over its spread before"), spike.deviations, 0.0, DEVIATIONS, "x", spike.step
            ),
            Evidence(
                say("update of the layer that grew first, over its median"),
                outlier,
                1.0,
                OUTLIER,
                "x",
                max(spike.step - 1, 0),
            ),
            Evidence(say("share of the run at which it happens"), spike.step / max(steps, 1)),
        ),
        repairs=(
            Repair(
                say(
                    "Clip the norm of the gradient at a few times its median, so that rare large ones lose their reach"
                ),
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)   # between backward and optimizer.step",
            ),
            Repair(say("With Adam, lower beta2 (0.95): its average then follows a gradient that grows suddenly")),
            Repair(say("Lower the learning rate, or warm it up for longer if the jump is at the start")),
        ),
        reference="Wortsman et al. 2023, arXiv:2304.13013; Deep Learning Tuning Playbook, optimization failures",
        location=view.place("step"),
    )
