"""What is known of a tensor without its values: mean and covariances of two of its entries."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from trimtab.prediction.fields import Field

Array = NDArray[np.float64]
Dims = tuple[tuple[int, ...], ...]

GAUSSIAN = 2.0
"""Var(x^2)/(E x^2)^2 of a centred Gaussian."""
MANY_AXES = 8
MOST_VALUES = 2**24
"""Of a larger tensor the first rows stand for all."""


class NoRuleError(Exception):
    """A rule cannot tell what this operation makes of these states; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Second-order statistics of a tensor whose entries are exchangeable along each axis.

    An axis is a factor of a dimension: flattening makes one dimension of several axes, a view can split an axis in two.
    `kappa` has two places for each axis, in order. `kappa[1, ..., 1]` is E x^2; where an index is 0, two entries are
    multiplied that differ along this axis: with axes (sample, unit), `kappa[0, 1]` is the E x_a x_b over pairs of
    samples of the correlation map (Poole et al. 2016, arXiv:1606.05340, eq. 5).

    Attributes:
        dims: Sizes of the axes in each dimension; a dimension of size 1 has none.
        kappa: E[x x'] for each way two entries can share their indices.
        mean: E x.
        spread: Var(x^2)/(E x^2)^2 of an entry, 2 for a Gaussian: what the scatter over a finite width comes from.
        scatter: Variance of log E x^2 over the draw of the weights below.
        alike: Mean squared correlation of two samples that a finite width makes by chance (1/n a layer): what its scatter does not
            lose by averaging over them.
        near: Between far pairs of positions (0) and the same position (1): covariance at distance 1, 2, 4, ... in images.
        measured: Whether a measured value entered since the last site.
        field: Where the entries are a function of a Gaussian entry each, that function.
        profile: In images, the second moment by position along each spatial dimension, of mean 1: behind zero padding the
            border has less.
        law: Where the entries are far from Gaussian without being a function of one, points and weights of their distribution.
        roots: The biases, and the weights behind them, that what all samples have in common comes from: two states with one of
            them share it, as the time steps of a recurrent layer do.
        parts: Which dimension joins which tensors, for a stack of them.
        mask: For attention scores under a mask, the state of the softmax of the mask alone; its law has these weights, each
            counted by its size, so that every row counts once.
    """

    dims: Dims
    kappa: Array
    mean: float = 0.0
    spread: float = GAUSSIAN
    scatter: float = 0.0
    alike: float = 0.0
    near: tuple[float, ...] = ()
    measured: bool = False
    field: "Field | None" = None
    profile: tuple[Array, ...] = ()
    law: tuple[Array, Array] | None = None
    roots: frozenset[int] = frozenset()
    parts: "tuple[int, tuple[Any, ...], dict[int, State]] | None" = None
    mask: "State | None" = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of all axes in order."""
        return tuple(itertools.chain.from_iterable(self.dims))

    @property
    def second_moment(self) -> float:
        """E x^2."""
        return float(self.kappa.reshape(-1)[-1])

    @property
    def ndim(self) -> int:
        """Number of dimensions of the tensor."""
        return len(self.dims)

    def axes(self, *dimensions: int) -> tuple[int, ...]:
        """Positions of the axes of these dimensions."""
        starts = np.cumsum([0, *map(len, self.dims)])
        wanted = sorted(d % self.ndim for d in dimensions) if self.dims else []
        return tuple(k for d in wanted for k in range(starts[d], starts[d + 1]))

    def scaled(self, factor: float) -> "State":
        """The state of the tensor times a number."""
        law = (self.law[0] * factor, self.law[1]) if self.law is not None else None
        return replace(self, kappa=self.kappa * factor**2, mean=self.mean * factor, field=None, law=law)


def size(factors: Sequence[int]) -> int:
    """Product of the sizes."""
    return int(np.prod(factors, dtype=np.int64)) if len(factors) else 1


def dims_of(shape: Sequence[int]) -> Dims:
    """One axis for each dimension longer than 1."""
    return tuple((n,) if n > 1 else () for n in shape)


def few_rows(tensor: Tensor) -> Tensor:
    """The first rows of a very large tensor, at least two of them; any other as it is."""
    if tensor.numel() <= MOST_VALUES or tensor.ndim < 2 or tensor.shape[0] < 3:
        return tensor
    return tensor[: max(2, tensor.shape[0] * MOST_VALUES // tensor.numel())]


@torch.no_grad()
@np.errstate(all="ignore")  # values that are no numbers, or too large: what comes of them is none either
def measure(tensor: Tensor) -> State:
    """The state of a tensor that is there: every covariance by means over subsets of its axes.

    With V the mean square after averaging over an axis of n entries, (n V - E x^2)/(n - 1) is the mean product of two
    different ones (the unbiased estimate of a random-effects model).

    Args:
        tensor: Any floating tensor.

    Returns:
        Its state, with no field.

    Raises:
        NoRuleError: If it is complex, or has more dimensions than a table of covariances bears.
    """
    if tensor.is_complex():
        raise NoRuleError("a complex tensor")
    dims = dims_of(tensor.shape)
    values = few_rows(tensor.detach())
    if not values.is_floating_point() or values.dtype in {torch.float16, torch.bfloat16}:
        values = values.to(torch.float32)
    flat = values.reshape([n for n in values.shape if n > 1])
    if flat.ndim > MANY_AXES:
        raise NoRuleError(f"a tensor of {values.ndim} dimensions")
    kappa = _table(flat)
    q = float(kappa.reshape(-1)[-1])
    fourth = float(flat.square().square().mean(dtype=torch.float64)) if flat.numel() < 2**22 and q > 0 else 3.0 * q**2
    spread = max(fourth / q**2 - 1.0, 0.0) if q > 0 else 0.0
    mean = float(flat.mean(dtype=torch.float64)) if flat.numel() else 0.0
    return State(dims, kappa, mean, spread, near=_nearness(values))


def _table(values: Tensor, axis: int = 0) -> Array:
    if axis == values.ndim:
        if not values.numel():
            return np.zeros(())
        norm = torch.linalg.vector_norm(values, dtype=torch.float64)
        return np.array(float(norm) ** 2 / values.numel())
    same = _table(values, axis + 1)
    n = values.shape[axis]
    averaged = _table(values.mean(axis, keepdim=True).squeeze(axis), axis)
    return np.stack([(n * averaged - same) / (n - 1), same])


def _nearness(values: Tensor) -> tuple[float, ...]:
    """How far the covariance at distance 1, 2, 4, ... along rows and columns is from that of far positions."""
    if values.ndim != 4 or min(values.shape[2:]) < 4:
        return ()
    n = values.shape[2] * values.shape[3]
    same = float(values.square().mean())
    far = (n * float(values.mean((2, 3)).square().mean()) - same) / (n - 1)
    if same - far <= 1e-12 * max(same, 1e-300):
        return ()
    found, apart = [], 1
    while apart < min(values.shape[2:]):
        across = float((values[..., apart:] * values[..., :-apart]).mean())
        down = float((values[..., apart:, :] * values[..., :-apart, :]).mean())
        found.append((0.5 * (across + down) - far) / (same - far))
        apart *= 2
    return tuple(found)


def constant(shape: Sequence[int], value: float) -> State:
    """A tensor of one value."""
    dims = dims_of(shape)
    return State(dims, np.full((2,) * sum(map(len, dims)), value**2), value, 0.0)


def independent(shape: Sequence[int], q: float) -> State:
    """A tensor of independent centred entries."""
    dims = dims_of(shape)
    kappa = np.zeros((2,) * sum(map(len, dims)))
    kappa[(1,) * kappa.ndim] = q
    return State(dims, kappa)
