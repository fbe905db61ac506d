"""What a user may give in place of a problem: a setup, or a model with its loss and batches."""

from typing import Any

from torch import nn

from trimtab._setup import Setup
from trimtab.curvature.problem import Loss, Problem, problem


def as_problem(given: Setup | nn.Module | Problem, loss: Loss | None, batches: Any, **options: Any) -> Problem:
    """What was given, as a problem.

    Args:
        given: A setup, a model or a problem.
        loss: As for `problem`.
        batches: As for `problem`.
        **options: As for `problem`; a problem has them already.

    Returns:
        The problem.

    Raises:
        TypeError: Something was given beside a problem.
    """
    if not isinstance(given, Problem):
        return problem(given, loss, batches, **options)
    if loss is not None or batches is not None or options:
        raise TypeError("a problem has its loss, batches and options already; give them to trimtab.curvature.problem")
    return given
