"""RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) by its closed form: PyTorch's is slow on the CPU."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import require_device_and_dtype, require_eps, require_flag, require_tensor, sizes_of
from trimtab.norms.layers._kernels import address, compiled_kernel
from trimtab.norms.layers._paths import eager_on_cpu

# Below so many values the fixed cost of a function of our own is more than what it saves, on either path.
_LEAST_COMPILED = 1 << 14
_LEAST = 1 << 17
# Shorter rows are left to PyTorch where numba is missing: an operation a block pays for the columns of one row alone.
_NARROW = 16
# Longer rows are left to PyTorch: a norm in float32 keeps one accumulator a lane and loses digits with the length.
_WIDE = 1 << 16
# Values of a block, all of whose operations find it in the cache of one core. Several threads meet after each operation,
# so theirs are few and large.
_BLOCK, _BLOCK_OF_MANY = 1 << 17, 1 << 22
_HALF = (torch.bfloat16, torch.float16)


def _rows_at_once(width: int) -> int:
    return max(1, (_BLOCK if torch.get_num_threads() == 1 else _BLOCK_OF_MANY) // width)


def _worth_it(x: Tensor, width: int) -> bool:
    """Returns whether our own function is faster than PyTorch's operation, for `_LEAST_COMPILED` values or more."""
    if width > _WIDE or not x.is_floating_point():
        return False
    return compiled_kernel("_numba_rms", x) is not None or (x.numel() >= _LEAST and width >= _NARROW)


def _default_eps(dtype: torch.dtype) -> float:
    """Returns what `eps=None` means in PyTorch: the epsilon of the type that is computed in."""
    return torch.finfo(torch.float32 if dtype in _HALF else dtype).eps


def _forward(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Returns y and 1 / rms of each row, for contiguous rows x of shape (rows, width)."""
    rows, width = x.shape
    y = torch.empty_like(x)
    work = torch.float32 if x.dtype in _HALF else x.dtype
    inverse = x.new_empty((rows, 1), dtype=work)
    kernel = compiled_kernel("_numba_rms", x)
    if kernel is not None:
        kernel.forward(x.data_ptr(), address(weight), y.data_ptr(), inverse.data_ptr(), rows, width, eps)
        return y, inverse
    weight = None if weight is None else weight.to(work)
    n = _rows_at_once(width)
    for given, out, r in zip(torch.split(x, n), torch.split(y, n), torch.split(inverse, n), strict=True):
        values = given.to(work)
        torch.linalg.vector_norm(values, dim=1, keepdim=True, out=r)
        r.square_().div_(width).add_(eps).rsqrt_()
        scaled = torch.mul(values, r, out=out) if work == x.dtype else values.mul_(r)
        if weight is not None:
            scaled.mul_(weight)
        if work != x.dtype:
            out.copy_(scaled)
    return y, inverse


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, inverse: Tensor, weight_wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """Returns dx and dweight: dx = r (g - x r² mean(g x)), g = weight dy, and dweight = sum over rows of dy x r."""
    rows, width = x.shape
    dx = torch.empty_like(x)
    kernel = compiled_kernel("_numba_rms", x)
    if kernel is not None:
        total = x.new_zeros(width, dtype=torch.float64) if weight_wanted else None
        addresses = (t.data_ptr() for t in (dy, x))
        kernel.backward(*addresses, address(weight), inverse.data_ptr(), dx.data_ptr(), address(total), rows, width)
        return dx, None if total is None else total.to(x.dtype)
    work = inverse.dtype
    gain = None if weight is None else weight.to(work)
    ones = x.new_ones(width, dtype=work) if gain is None else gain
    dweight = x.new_zeros(width, dtype=work) if weight_wanted else None
    n = _rows_at_once(width)
    product = x.new_empty((min(n, rows), width), dtype=work)
    blocks = zip(*(torch.split(t, n) for t in (dy, x, inverse, dx)), strict=True)
    for above, given, r, out in blocks:
        values, upper = given.to(work), above.to(work)
        both = torch.mul(upper, values, out=product[: len(given)])
        # mean(g x) and dweight are two products of this one matrix with a vector.
        share = both.mv(ones).unsqueeze(1).mul_(r).mul_(r).mul_(r)
        if dweight is not None:
            dweight.addmv_(both.t(), r.squeeze(1))
        target = out if work == x.dtype else both
        torch.mul(upper, r, out=target)
        if gain is not None:
            target.mul_(gain)
        target.addcmul_(values, share, value=-1.0 / width)
        if target is not out:
            out.copy_(target)
    return dx, None if dweight is None else dweight.to(x.dtype)


def _differentiable(
    dy: Tensor, x: Tensor, weight: Tensor | None, eps: float, weight_wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """Returns what `_backward` does, in operations that can be differentiated again."""
    work = torch.float32 if x.dtype in _HALF else x.dtype
    values, above = x.to(work), dy.to(work)
    r = torch.rsqrt(values.square().mean(1, keepdim=True) + eps)
    normalized = values * r
    g = above if weight is None else above * weight.to(work)
    dx = r * (g - normalized * (g * normalized).mean(1, keepdim=True))
    dweight = (above * normalized).sum(0).to(x.dtype) if weight_wanted else None
    return dx.to(x.dtype), dweight


class _RMSNorm(torch.autograd.Function):
    """RMSNorm of rows (rows, width)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        y, inverse = _forward(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, inverse = ctx.saved_tensors
        weight_wanted = ctx.needs_input_grad[1]
        if torch.is_grad_enabled() or not eager_on_cpu(dy):  # create_graph=True, or a batch of gradients by vmap
            return *_differentiable(dy, x, weight, ctx.eps, weight_wanted), None
        return *_backward(dy.contiguous(), x, weight, inverse, weight_wanted), None


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm`, fast on the CPU; signature, state_dict and results are those of PyTorch's layer.

    y = weight x / sqrt(mean(x²) + eps), the mean over the last `len(normalized_shape)` axes. The backward pass is the
    closed form dx = r (g - x r² mean(g x)) with g = weight dy and r = 1 / sqrt(mean(x²) + eps). bfloat16 and float16 are
    computed in float32 and rounded once.

    A repair for `norm-placement` and `norm-precision` where a LayerNorm is replaced. `convert(model, "rms_norm")` puts in
    PyTorch's layer; a model of this one loads its state_dict.

    Cost: forward and backward on one core of an x86 CPU in float32 at (32, 512, 768) and (4096, 4096) take 0.12 to 0.21
    times the time of `torch.nn.RMSNorm` with numba and 0.29 to 0.37 times without (benchmarks/bench_norm_layers.py).
    numba serves float32 in a process with one torch thread; its kernel is loaded at the first large call. Small inputs,
    other devices, compiled, exported and traced code use PyTorch's operation.

    Shapes: input (*, *normalized_shape), output the same.

    Args:
        normalized_shape: The last axes of the input, which are normalized together.
        eps: Added to the mean square; None is the machine epsilon of the type that is computed in (float32's for
            bfloat16 and float16).
        elementwise_affine: Whether there is a learnable weight, which starts at one.
        device: Where the weight is made.
        dtype: Its type.

    Raises:
        NormalizationError: If eps is not above zero.
    """

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size | tuple[int, ...],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if eps is not None:
            require_eps(eps)
        require_flag(elementwise_affine=elementwise_affine)
        require_device_and_dtype(device, dtype)
        super().__init__(list(sizes_of(normalized_shape)), eps, elementwise_affine, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize.

        Args:
            x: Shape (*, *normalized_shape).

        Returns:
            The same shape and type.

        Raises:
            NormalizationError: If the last axes are not `normalized_shape`.
        """
        require_tensor("x", x)
        shape, weight = self.normalized_shape, self.weight
        if tuple(x.shape[-len(shape) :]) != shape:
            raise NormalizationError(
                f"the input has shape {tuple(x.shape)}; its last axes must be {shape}, which are normalized"
            )
        width = math.prod(shape)
        if (
            torch.compiler.is_compiling()  # first: a compiler must not have to ask for a size
            or x.numel() < _LEAST_COMPILED
            or (weight is not None and weight.dtype != x.dtype)
            or not (eager_on_cpu(x, weight) and _worth_it(x, width))
        ):
            return functional.rms_norm(x, shape, weight, self.eps)
        eps = _default_eps(x.dtype) if self.eps is None else self.eps
        rows = x.reshape(-1, width).contiguous()
        return _apply(rows, None if weight is None else weight.flatten(), eps).view(x.shape)


def _apply(rows: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    y: Tensor = _RMSNorm.apply(rows, weight, eps)  # type: ignore[no-untyped-call]
    return y
