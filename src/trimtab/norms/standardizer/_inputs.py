"""What a `Standardizer` may be fitted on besides arrays: tensors, and streams of batches."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import refuse
from trimtab.norms.standardizer.columns import Floats


def is_stream(data: object) -> bool:
    """Whether an object yields batches rather than rows.

    Args:
        data: What was given to `fit`.

    Returns:
        True for a `DataLoader` and for any iterator (a generator, say). A list is an array to scikit-learn, and to us.
    """
    return isinstance(data, DataLoader | Iterator)


def is_plain(data: object, size: int) -> bool:
    """Whether data is an array of the kind that the sums want, and needs no conversion.

    Args:
        data: What was given to `partial_fit`.
        size: Number of features expected.

    Returns:
        True for a numpy array of float32 or float64, of shape (n, size) with n >= 1.
    """
    return (
        type(data) is np.ndarray
        and data.dtype in (np.float32, np.float64)
        and data.ndim == 2
        and data.shape[1] == size
        and len(data) > 0
    )


def grain_of(data: object) -> float:
    """Relative spacing of the numbers an array was stored in, before anything converts it.

    Args:
        data: An array, data frame, matrix or list.

    Returns:
        The machine epsilon of its floating dtype, the finest one of a data frame's; that of float64 where there is none.
    """
    kinds = [data.dtype] if hasattr(data, "dtype") else list(getattr(data, "dtypes", ()))
    spacings = [float(np.finfo(kind).eps) for kind in kinds if isinstance(kind, np.dtype) and kind.kind == "f"]
    return min(spacings, default=float(np.finfo(np.float64).eps))


def batches(stream: Iterable[Any], part: int | str) -> Iterator[Any]:
    """The inputs of each batch.

    Args:
        stream: Yields arrays, tensors, or tuples, lists and dictionaries that hold them.
        part: Which element of a tuple, list or dictionary holds the inputs.

    Yields:
        An array or tensor of each batch.

    Raises:
        NormalizationError: If there is no batch, or a batch has no such element.
    """
    number = -1
    for number, batch in enumerate(stream):
        if isinstance(batch, Tensor) or hasattr(batch, "shape"):
            yield batch
            continue
        try:
            yield batch[part]
        except (LookupError, TypeError) as error:
            keys = (
                list(batch)
                if isinstance(batch, dict)
                else f"{len(batch)} elements"
                if hasattr(batch, "__len__")
                else ""
            )
            raise NormalizationError(
                f"part is {part!r}, but batch {number} is a {type(batch).__name__} ({keys}) without it; "
                "name the element that holds the inputs: Standardizer(part=...)"
            ) from error
    if number < 0:
        raise NormalizationError("the stream gave no batch; a DataLoader or iterator with at least one is expected")


def example_of(example: Any) -> Tensor:
    """A batch of a model's inputs.

    Args:
        example: An array or tensor, or what can be made into one.

    Returns:
        Float64, without gradient.

    Raises:
        NormalizationError: If it holds no numbers, none at all, or some that are not finite.
    """
    try:
        x = torch.as_tensor(example).detach()
    except (TypeError, ValueError, RuntimeError):
        refuse("example", example, "a batch of the model's inputs is needed, an array or a tensor")
    require_dense("example", x)
    if not x.numel() or not bool(x.isfinite().all()):
        what = "no value" if not x.numel() else "NaN or infinite values"
        raise NormalizationError(
            f"example has shape {tuple(x.shape)} and holds {what}; at least one sample of finite numbers is needed"
        )
    return x.to(torch.float64)


def _weights(sample_weight: Any) -> Floats:
    """Returns a copy in float64: compiled code wants it writable and in one piece."""
    if isinstance(sample_weight, Tensor):
        require_dense("sample_weight", sample_weight)
        sample_weight = sample_weight.detach().cpu().numpy()
    try:
        return np.array(sample_weight, np.float64)
    except (TypeError, ValueError):
        refuse("sample_weight", sample_weight, "one number for each sample is needed")


def require_dense(name: str, x: Tensor) -> None:
    """Let only tensors pass whose numbers are real and lie in memory.

    Args:
        name: The argument.
        x: The tensor.

    Raises:
        NormalizationError: If it is complex, sparse or without values.
    """
    if x.is_complex():
        raise NormalizationError(f"Complex data not supported: {name} has dtype {x.dtype}")
    if x.layout is not torch.strided:
        raise NormalizationError(
            f"{name} is a tensor of layout {x.layout}; a strided tensor or a SciPy sparse matrix is expected"
        )
    if x.is_meta:
        raise NormalizationError(
            f"{name} is a tensor on the meta device, which has no values; one with values is needed"
        )


def refuse_zeros(sample_weight: Any) -> None:
    """Refuse weights that leave nothing; a batch of a stream may have them, all of the data may not.

    Args:
        sample_weight: One number a sample, a scalar, or None.

    Raises:
        NormalizationError: If all are zero.
    """
    if sample_weight is None:
        return
    if not np.any(_weights(sample_weight)):
        raise NormalizationError("every sample_weight is zero; at least one non-zero weight is needed")


def check_weight(sample_weight: Any, samples: int) -> Floats | None:
    """The weights as float64.

    Args:
        sample_weight: One number a sample, a scalar, or None.
        samples: Number of samples.

    Returns:
        Shape (samples,), or None.

    Raises:
        NormalizationError: If the shape is another one, or a weight is negative or not finite.
    """
    if sample_weight is None:
        return None
    weight = _weights(sample_weight)
    if weight.ndim == 0:
        weight = np.full(samples, float(weight))
    if weight.shape != (samples,):
        raise NormalizationError(
            f"sample_weight has shape {weight.shape}; one weight for each of the {samples} samples is expected"
        )
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise NormalizationError(
            "sample_weight holds negative, NaN or infinite values; finite weights of zero and above are expected"
        )
    return weight
