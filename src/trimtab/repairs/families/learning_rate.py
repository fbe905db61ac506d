"""How large the steps are, and when: rate, warm-up, schedule."""

import random
from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.patient import Patient
from trimtab.repairs.surgery import scale_rates
from trimtab.report import Finding, Repair

LOWER = (0.1, 0.01, 0.3, 0.001)
HIGHER = (10.0, 100.0, 1000.0, 3.0, 10000.0)
"""Factors, a decade apart around the likeliest: a short run of each tells more than a formula."""

WARMUPS = (0.1, 0.3)
"""Shares of the run, by orders of magnitude as the Deep Learning Tuning Playbook searches them."""

DECADES = 3
"""A random rate lies within so many decades of the user's."""


def scale_rate(setup: Setup, *, factor: float) -> None:
    """Multiply the learning rates."""
    scale_rates(setup, factor)


def _tell_rate(*, factor: float) -> Repair:
    how = f"{'lower' if factor < 1 else 'raise'} the learning rate to {factor:g} times what it is"
    return Repair(
        how, f'for group in optimizer.param_groups:  # before a scheduler is made\n    group["lr"] *= {factor:g}'
    )


def warm_up(setup: Setup, *, share: float) -> None:
    """Let the rates rise in a straight line from near zero over the first steps of the run."""
    steps = max(int(share * setup.steps), 1)
    for optimizer in setup.optimizers:
        ramp = _Ramp(steps)
        optimizer.register_step_pre_hook(ramp.lower)
        optimizer.register_step_post_hook(ramp.put_back)


class _Ramp:
    """Lowers the rates for the duration of a step, so that any scheduler can go on above it."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done = steps, 0
        self._rates: list[Any] = []

    def lower(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._done += 1
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * min(self._done / self._steps, 1.0)

    def put_back(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate


def _tell_warm_up(*, share: float) -> Repair:
    return Repair(
        f"warm the learning rate up over the first {share:.0%} of the steps",
        f"warmup = max(int({share:g} * steps), 1)\n"
        "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warmup, 1.0))\n"
        "# scheduler.step() after each optimizer.step()",
    )


def keep_rate(setup: Setup) -> None:
    """Leave the schedule out.

    Raises:
        RepairError: There is none.
    """
    if setup.scheduler is None:
        raise RepairError("there is no schedule")
    for optimizer in setup.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.get("initial_lr", group["lr"])
    setup.scheduler = None


def _tell_keep_rate() -> Repair:
    return Repair("train at a constant learning rate: leave the schedule out", "scheduler = None")


def stretch_schedule(setup: Setup, *, factor: int) -> None:
    """Step the schedule once in several training steps.

    Raises:
        RepairError: There is none, or it goes by the loss.
    """
    if setup.scheduler is None:
        raise RepairError("there is no schedule")
    if isinstance(setup.scheduler, ReduceLROnPlateau):
        raise RepairError("the schedule goes by the loss: it has no period")
    setup.scheduler = Slower(setup.scheduler, factor)


class Slower:
    """Steps a schedule once in `every` of its own steps."""

    def __init__(self, schedule: Any, every: int) -> None:
        self._schedule, self._every, self._done = schedule, every, 0

    def step(self) -> None:
        """Count a training step."""
        self._done += 1
        if self._done % self._every == 0:
            self._schedule.step()


def _tell_stretch(*, factor: int) -> Repair:
    return Repair(
        f"step the schedule once in {factor} training steps (once an epoch, if that is what its period counts)",
        f"if (step + 1) % {factor} == 0:\n    scheduler.step()",
    )


def _passes(setup: Setup) -> int:
    """Batches in one pass over the data."""
    from trimtab._unchanged import unchanged

    with unchanged(used_by=(setup.batches,)) as kept:
        batches = setup.batches()
        kept.add_data(batches)
        try:
            return len(batches)  # type: ignore[arg-type]
        except TypeError:
            return sum(1 for _, _ in zip(range(setup.steps), batches, strict=False))


def _lower(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield from (Change("scale-rate", {"factor": factor}) for factor in LOWER)


def _higher(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield Change("keep-rate")
    yield Change("stretch-schedule", {"factor": max(_passes(patient.setup), 2)})
    yield from (Change("scale-rate", {"factor": factor}) for factor in HIGHER)


def _lower_or_warm(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield from (Change("warm-up", {"share": share}) for share in WARMUPS)
    yield from _lower(finding, patient)


def _some_rate(patient: Patient, rng: random.Random) -> dict[str, Any]:
    return {"factor": float(f"{10 ** rng.uniform(-DECADES, DECADES):.3g}")}


def _some_warm_up(patient: Patient, rng: random.Random) -> dict[str, Any]:
    return {"share": float(f"{10 ** rng.uniform(-2, 0):.3g}")}


def _if_scheduled(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    return {} if patient.setup.scheduler is not None else None


def _some_stretch(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    return {"factor": round(10 ** rng.uniform(0.3, 3))} if patient.setup.scheduler is not None else None


KINDS = {
    "scale-rate": Kind(scale_rate, _tell_rate, _some_rate),
    "warm-up": Kind(warm_up, _tell_warm_up, _some_warm_up),
    "keep-rate": Kind(keep_rate, _tell_keep_rate, _if_scheduled),
    "stretch-schedule": Kind(stretch_schedule, _tell_stretch, _some_stretch),
}

ANSWERS = {
    "learning-rate-too-high": _lower,
    "learning-rate-too-low": _higher,
    "exploding-gradient": _lower,
    "loss-spike": _lower_or_warm,
    "missing-warmup": _lower_or_warm,
    "nonfinite-loss": _lower,
}
