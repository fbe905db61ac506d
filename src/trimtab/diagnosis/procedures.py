"""Procedures that engineers follow by hand, done step by step on copies of a setup; each has a file of its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trimtab._setup import Setup
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
        SetupError: The batches cannot be used.
        KeyboardInterrupt: Ctrl-C, unless it is kept.
    """
    done: list[ProcedureStep] = []
    try:
        for step in plan.steps(setup, progress):
            done.append(step)  # noqa: PERF402 - those before an interrupt count
    except KeyboardInterrupt:
        if not keep_interrupted:
            raise
        return Procedure(plan.title, plan.reference, tuple(done), finished=False)
    return Procedure(plan.title, plan.reference, tuple(done))
