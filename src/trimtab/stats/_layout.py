"""The values of any tensor as a flat tensor of real numbers, without a copy wherever the layout is dense."""

import torch
from torch import Tensor

BLOCK = 4096
# A tensor whose storage was freed (FSDP does this) still adds its offset to a null pointer; no allocator hands out
# addresses this low, or, where one does, the storage itself is asked.
LOWEST_ADDRESS = 1 << 40
# What a tensor in name only answers with: lazy, functorch's wrappers, a dtype without arithmetic.
UNREADABLE = (NotImplementedError, RuntimeError, TypeError, ValueError)


def flatten(tensor: Tensor) -> Tensor | None:
    """The values of a tensor, in storage order where that saves a copy.

    Sparse tensors give their stored values, DTensors their local shard, complex numbers their modulus, float16 and
    narrower float32.

    Args:
        tensor: Any tensor.

    Returns:
        A detached strided tensor, one-dimensional (or rows of blocks, see `block_step`), of dtype float32, float64 or
        bfloat16; None when there is nothing to measure: integers, booleans, quantized, meta, or no storage.
    """
    try:
        values = _readable(tensor)
        return None if values is None else _real(storage_order(values))
    except UNREADABLE:
        return None


def flat_difference(after: Tensor, before: Tensor) -> Tensor | None:
    """The difference of two tensors, taken in float32 at least.

    Args:
        after: A strided tensor.
        before: A strided tensor of the same shape.

    Returns:
        As `flatten`.
    """
    try:
        if after.layout != torch.strided or before.layout != torch.strided:
            return None  # the stored values of two sparse tensors need not belong together
        x, y = _readable(after), _readable(before)
        if x is None or y is None:
            return None
        wide = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
        return flatten(x.to(wide) - y.to(wide))
    except UNREADABLE:
        return None


def _readable(tensor: Tensor) -> Tensor | None:
    """Returns the detached values that this process holds of a tensor, if they are numbers in memory."""
    values = _local(tensor.detach())
    if not (values.is_floating_point() or values.is_complex()) or values.is_meta:
        return None
    values = _stored(values)
    if not _has_storage(values):
        return None
    return values.resolve_neg() if values.is_neg() else values


def _local(tensor: Tensor) -> Tensor:
    """Returns the shard of a DTensor on this rank, and what a collective under way brings; duck typing keeps torch.distributed out."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.wait() if hasattr(tensor, "wait") else tensor  # AsyncCollectiveTensor


def _stored(tensor: Tensor) -> Tensor:
    """Returns the stored values of a sparse or nested tensor."""
    if tensor.layout == torch.sparse_coo:
        return tensor.coalesce().values()
    if tensor.is_nested or tensor.layout in {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}:
        return tensor.values().detach()
    return tensor


def _has_storage(tensor: Tensor) -> bool:
    if tensor.layout != torch.strided:
        return False
    storage = tensor.untyped_storage()  # raises for functorch's wrappers, which have none
    if storage.device.type == "meta":
        return False
    # A wrapper around other tensors has a size, but no address: kernels that read memory must never see one.
    return tensor.numel() == 0 or (storage.nbytes() > 0 and storage.data_ptr() != 0)


def _real(flat: Tensor) -> Tensor:
    if flat.dtype == torch.complex32:
        flat = flat.to(torch.complex64)
    if flat.is_complex():
        return flat.abs()
    if flat.dtype in {torch.float32, torch.float64, torch.bfloat16}:
        return flat
    return flat.float()


def storage_order(tensor: Tensor) -> Tensor:
    """A strided tensor as one dimension: in storage order if it is dense in any permutation, else a contiguous copy.

    Args:
        tensor: A strided tensor.

    Returns:
        The flat tensor; rows of blocks (see `block_step`) are handed back as they are.
    """
    if tensor.is_contiguous():
        return tensor.view(-1)
    if block_step(tensor):
        return tensor
    if is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.contiguous().view(-1)


def is_dense(tensor: Tensor) -> bool:
    """Whether a strided tensor fills one block of memory without gaps or overlaps, in any order of its axes.

    Args:
        tensor: A strided tensor.

    Returns:
        True for contiguous, channels_last, transposed and permuted tensors.
    """
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def block_step(tensor: Tensor) -> int:
    """The distance between the blocks of what `sample_blocks` returns.

    Args:
        tensor: A strided tensor.

    Returns:
        Elements from one block's start to the next; 0 if the tensor is not such a view.
    """
    if tensor.dim() == 2 and tensor.shape[1] == BLOCK and tensor.stride(1) == 1 and tensor.stride(0) >= BLOCK:
        return tensor.stride(0)
    return 0
