"""One fact, and what the checks look at."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is so, beside what is usual.

    Attributes:
        code: What kind of fact.
        module: Name of the normalization; "" where it is the model itself.
        value: What was found.
        expected: What is expected instead, or as well.
        text: Both in a sentence, with what follows from it.
        amiss: Whether the value departs from what is expected.
    """

    code: str
    module: str
    value: float | int | str | bool | None
    expected: str
    text: str
    amiss: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """What an example showed of a normalization.

    Attributes:
        shape: Shape of its input.
        dtype: Dtype of its input.
        variance: Median over its statistics of the variance (for RMSNorm the mean square) of its input.
        calls: How often it was called.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    variance: float
    calls: int


@dataclass(frozen=True, slots=True)
class View:
    """What the checks look at.

    Attributes:
        model: The model.
        norms: Its normalizations by their first names.
        optimizers: The optimizers, if any were given.
        seen: What the example showed, by name.
        example: The example, None for none or one that the model does not run on to the end.
    """

    model: nn.Module
    norms: Mapping[str, nn.Module]
    optimizers: tuple[Optimizer, ...]
    seen: Mapping[str, Seen]
    example: object | None


def called(name: str) -> str:
    """A module's name for a sentence.

    Args:
        name: The name.

    Returns:
        It, or words for the model itself.
    """
    return name or "the model itself"


def running(norm: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Running mean and variance.

    Args:
        norm: A normalization.

    Returns:
        Both, None where the layer has none.
    """
    mean, var = getattr(norm, "running_mean", None), getattr(norm, "running_var", None)
    return (mean, var) if isinstance(mean, Tensor) and isinstance(var, Tensor) else None
