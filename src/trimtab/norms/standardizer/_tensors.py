"""Column sums of tensors, on the device they live on."""

import numpy as np
import torch
from torch import Tensor

from trimtab.errors import NormalizationError
from trimtab.norms.standardizer._dense import dense_sums, exact, guess, sample
from trimtab.norms.standardizer._inputs import require_dense
from trimtab.norms.standardizer.columns import ColumnSums, Floats, from_shifted

_SLAB = 1 << 22  # values in float64 at a time: 32 MiB
_FAR = 1e6  # variances between shift and mean that cost float64 no digit worth having


def rows_of(x: Tensor, feature_dim: int) -> Tensor:
    """A tensor as rows of features.

    Args:
        x: One axis (a single feature), two (samples, features), or more with the features on `feature_dim`.
        feature_dim: Axis of the features where there are more than two.

    Returns:
        A view or copy of shape (n, d), without gradient.

    Raises:
        NormalizationError: If it cannot be read as numbers with features.
    """
    require_dense("X", x)
    x = x.detach()
    if x.dim() == 0:
        raise NormalizationError("X is a tensor without axes; (samples, features) is expected")
    if x.dim() == 1:
        return x[:, None]
    if x.dim() > 2:
        if not -x.dim() <= feature_dim < x.dim() or feature_dim % x.dim() == 0:
            raise NormalizationError(
                f"feature_dim is {feature_dim}, but the tensor has shape {tuple(x.shape)}; an axis after the first is expected"
            )
        x = x.movedim(feature_dim, -1).flatten(0, -2)
    return x


def tensor_sums(x: Tensor, feature_dim: int, weight: Floats | None) -> ColumnSums:
    """The moments of each feature of a tensor.

    Args:
        x: Any real dtype and device; shapes as in `rows_of`.
        feature_dim: Axis of the features where there are more than two.
        weight: One weight a sample (first axis), or None.

    Returns:
        Moments of the features, on the host.

    Raises:
        NormalizationError: If there is no sample or no feature.
    """
    rows = rows_of(x, feature_dim)
    if 0 in rows.shape:
        raise NormalizationError(f"X has shape {tuple(x.shape)}; at least one sample and one feature are expected")
    if weight is not None and len(weight) != len(rows):
        weight = np.repeat(weight, len(rows) // len(weight))  # all places of a sample weigh the same
    floating = rows.dtype.is_floating_point
    grain = torch.finfo(rows.dtype if floating else torch.float64).eps
    if rows.dtype not in {torch.float32, torch.float64}:
        rows = rows.to(torch.float32 if floating else torch.float64)
    if rows.device.type in {"cpu", "mps"}:  # mps has no float64
        return dense_sums(rows.cpu().numpy(), weight, grain)
    return device_sums(rows, weight, grain)


def device_sums(rows: Tensor, weight: Floats | None, grain: float) -> ColumnSums:
    """The moments of each column in float64 on the tensor's own device, fetched in one transfer.

    Args:
        rows: Shape (n, d), float32 or float64.
        weight: Shape (n,), or None.
        grain: Relative spacing of the dtype the values were stored in.

    Returns:
        Moments of the d columns, on the host.
    """
    chosen = torch.from_numpy(sample(len(rows))).to(rows.device)
    near = guess(rows[chosen].double().cpu().numpy())
    shift = torch.from_numpy(near).to(rows.device)
    shares = None if weight is None else torch.from_numpy(weight).to(rows.device)
    total = torch.zeros(4, rows.shape[1], dtype=torch.float64, device=rows.device)
    step = max(1, _SLAB // rows.shape[1])
    for start in range(0, len(rows), step):
        delta = rows[start : start + step].double() - shift
        valid = ~delta.isnan()
        delta = delta.masked_fill_(~valid, 0.0)
        if shares is None:
            count = valid.sum(0)
            total += torch.stack([count, count, delta.sum(0), delta.square().sum(0)])
        else:
            part = shares[start : start + step]
            count = (valid & (part > 0)[:, None]).sum(0)
            total += torch.stack([count, part @ valid.double(), part @ delta, part @ delta.square()])
    count_, weight_, rest, squares = total.cpu().numpy()
    columns = from_shifted(count_, weight_, near, rest, squares, grain)
    with np.errstate(invalid="ignore"):
        doubtful = ~np.isfinite(squares) | (rest * columns.offset > _FAR * columns.m2)
    if doubtful.any():  # infinity, overflow, or a shift from values that are far from all others
        names = np.flatnonzero(doubtful)
        parts = exact(rows[:, torch.from_numpy(names).to(rows.device)].double().cpu().numpy(), weight, grain, names)
        for name in ("count", "weight", "shift", "offset", "m2"):
            getattr(columns, name)[names] = getattr(parts, name)
    return columns
