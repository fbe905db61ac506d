"""Applying and undoing the standardization, on arrays and on tensors.

The mean is subtracted in two parts, its value in the data's dtype and what that rounding left over. Of float32 data around 1e6 the mean
alone is only known to 0.03; one subtraction would leave that as the mean of the result.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.errors import NormalizationError
from trimtab.norms.layers._paths import someone_looks_on
from trimtab.norms.standardizer._inputs import require_dense
from trimtab.norms.standardizer.columns import ColumnSums, Floats

_SLAB = 1 << 16  # values that go through all steps while they are in the cache


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """z = (x - high - low) / scale, each of shape (d,) and of one dtype; None where there is nothing to do."""

    high: NDArray[np.floating] | None
    low: NDArray[np.floating] | None
    scale: NDArray[np.floating] | None


def scaling(columns: ColumnSums, scale: Floats | None, with_mean: bool, kind: np.dtype[Any]) -> Scaling:
    """Split the mean for a dtype.

    Args:
        columns: The moments.
        scale: What to divide by, or None.
        with_mean: Whether the mean is subtracted.
        kind: Dtype of the data, float32 or float64.

    Returns:
        The constants of the standardization, of that dtype.
    """
    divisor = None if scale is None else scale.astype(kind)
    if not with_mean:
        return Scaling(None, None, divisor)
    high = columns.mean.astype(kind)
    low = (columns.shift - high) + columns.offset
    unit = 1.0 if scale is None else scale
    with np.errstate(invalid="ignore"):
        matters = np.abs(low) > 0.25 * np.finfo(kind).eps * unit
    return Scaling(high, low.astype(kind) if matters.any() else None, divisor)


def scale_array(x: NDArray[np.floating], constants: Scaling, inverse: bool) -> NDArray[np.floating]:
    """Standardize an array in place, or undo it.

    Args:
        x: Shape (n, d), writable, float32 or float64.
        constants: Of the same dtype.
        inverse: Whether to undo.

    Returns:
        The same array.
    """
    step = max(1, _SLAB // max(1, x.shape[1]))
    for start in range(0, len(x), step):
        part = x[start : start + step]
        if inverse:
            if constants.scale is not None:
                part *= constants.scale
            for term in (constants.low, constants.high):
                if term is not None:
                    part += term
        else:
            for term in (constants.high, constants.low):
                if term is not None:
                    part -= term
            if constants.scale is not None:
                part /= constants.scale
    return x


def refuse_infinite(x: Tensor) -> None:
    """Refuse what has no place on a scale, as arrays are refused; a meta, fake or wrapped tensor is let through unseen.

    Args:
        x: The tensor that is to be standardized.

    Raises:
        NormalizationError: If it is complex or sparse, or a value is infinite.
    """
    if not x.is_meta:
        require_dense("X", x)
    if x.is_meta or not x.is_floating_point() or not x.numel() or someone_looks_on():
        return
    extremes = torch.stack(torch.aminmax(x.detach()))  # one fast pass; a NaN makes both NaN, and asks for a slow one
    if not bool(extremes.isfinite().all()) and bool(x.detach().isinf().any()):
        raise NormalizationError(
            "X holds infinite values: Input X contains infinity. NaN passes, infinity does not; replace or drop these values"
        )


def feature_axis(x: Tensor, feature_dim: int, size: int, name: str = "X") -> int:
    """Where the features of a tensor lie.

    Args:
        x: The tensor.
        feature_dim: Axis of the features where there are more than two.
        size: Number of features expected.
        name: What the tensor is, for the message.

    Returns:
        The axis, or -1 for a tensor of one axis that holds a single feature.

    Raises:
        NormalizationError: If the number of features is another one.
    """
    if x.dim() == 1 and size == 1:
        return -1
    axis = feature_dim if x.dim() > 2 else 1
    if x.dim() < 2 or not -x.dim() <= axis < x.dim() or x.shape[axis] != size:
        raise NormalizationError(
            f"{name} has shape {tuple(x.shape)}; {size} features are expected on axis {axis} (feature_dim), as in fitting"
        )
    return axis % x.dim()


def scale_tensor(x: Tensor, axis: int, constants: Scaling, inverse: bool, copy: bool) -> Tensor:
    """Standardize a tensor, or undo it; gradients pass through.

    Args:
        x: Any real dtype but complex, any device; float16 and bfloat16 are computed in float32.
        axis: Axis of the features, -1 for a single feature without an axis.
        constants: Of float64 for float64 and integers, of float32 for the others.
        inverse: Whether to undo.
        copy: False to write into `x` where its dtype and its memory allow.

    Returns:
        Of the dtype of `x`; torch's default dtype for integers.
    """
    result = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
    steps: list[tuple[str, NDArray[np.floating] | None]] = [
        ("sub", constants.high),
        ("sub", constants.low),
        ("div", constants.scale),
    ]
    if inverse:
        steps = [("mul", constants.scale), ("add", constants.low), ("add", constants.high)]
    shape = [-1 if place == axis else 1 for place in range(x.dim())] if axis >= 0 else [1]
    values, own = x, not copy and not x.requires_grad and _may_be_written(x)
    for name, constant in steps:
        if constant is None:
            continue
        term = torch.from_numpy(constant).to(x.device, non_blocking=True).view(shape)
        if values.dtype != term.dtype:
            values, own = values.to(term.dtype), not values.requires_grad
        values = getattr(values, f"{name}_" if own else name)(term)
        own = not values.requires_grad  # from here on it is a result of ours
    return values.to(result, copy=copy and values is x)


def _may_be_written(x: Tensor) -> bool:
    """Returns whether each value has a place of its own, which an expanded one has not, and autograd lets us write there."""
    repeated = any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True))
    return not repeated and (not x.is_inference() or torch.is_inference_mode_enabled())
