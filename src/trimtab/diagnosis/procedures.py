"""Procedures that engineers follow by hand, done step by step on copies of a setup; each has a file of its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from trimtab._setup import Setup
from trimtab.diagnosis.probes.calls import drawn, refuse_empty, still
from trimtab.errors import UsageError
from trimtab.norms._passes import own
from trimtab.report.procedure import Procedure, ProcedureStep

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, and how much of it is done of how much."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A procedure before it is followed.

    Attributes:
        title: Its name.
        reference: Where it is described.
        steps: Does one step after the other.
    """

    title: str
    reference: str
    steps: Callable[[Setup, Progress | None], Iterator[ProcedureStep]]


def follow(plan: Plan, setup: Setup, progress: Progress | None = None, *, keep_interrupted: bool = False) -> Procedure:
    """Do the steps of a plan.

    Args:
        plan: The plan.
        setup: The run; it is not trained, and everything is as it was afterwards.
        progress: Told how far the steps are.
        keep_interrupted: Whether Ctrl-C ends it with the steps that are done, in place of raising.

    Returns:
        The steps with their verdicts.

    Raises:
        UsageError: `setup` is none.
        SetupError: The batches cannot be used.
        StepError: The loss is not a scalar tensor.
        KeyboardInterrupt: Ctrl-C, unless it is kept.
    """
    if not isinstance(setup, Setup):
        raise UsageError(f"{plan.title} takes a Setup, but it was given a {type(setup).__name__}")
    done: list[ProcedureStep] = []
    try:
        _refuse_unusable(setup)
        for step in plan.steps(setup, progress):
            done.append(step)  # noqa: PERF402 - those before an interrupt count
    except KeyboardInterrupt:
        if not keep_interrupted:
            raise
        return Procedure(plan.title, plan.reference, tuple(done), finished=False)
    return Procedure(plan.title, plan.reference, tuple(done))


def _refuse_unusable(setup: Setup) -> None:
    """Where not even a first loss can be had, the user is to see why, and not a list of steps that could not be done."""
    batch = drawn(setup, 1).batches[0]
    refuse_empty(batch)
    with still(setup, training=True), torch.enable_grad():
        setup.compute_loss(own(batch))
