"""A sample of contiguous blocks of a large tensor: cheap to copy, and read at the speed of memory."""

from torch import Tensor

from trimtab.stats._layout import BLOCK, storage_order

LIMIT = 2**20


def sample_blocks(tensor: Tensor, limit: int = LIMIT) -> Tensor:
    """The whole tensor, flat, or every k-th block of 4096 elements when it has more than `limit`.

    k is odd: the shapes of layers are mostly powers of two, and an even step would see the same columns in every row.
    The choice depends on the shape and strides alone, so samples of one parameter before and after an optimizer's step
    belong together.

    Args:
        tensor: A strided tensor.
        limit: About how many elements to keep at most, never less than one block.

    Returns:
        A view of shape (numel,), or (blocks, 4096) when sampled; a copy only where the tensor is not dense.
    """
    flat = storage_order(tensor.detach())
    step = _step(flat.numel(), limit)
    if step == 1:
        return flat
    blocks = flat.numel() // BLOCK
    return flat[: blocks * BLOCK].view(blocks, BLOCK)[::step]


def is_sampled(tensor: Tensor, limit: int = LIMIT) -> bool:
    """Whether `sample_blocks` leaves anything of this tensor out.

    Args:
        tensor: The tensor that was, or will be, given to `sample_blocks`.
        limit: The same limit.

    Returns:
        True when only every k-th block is kept.
    """
    return _step(tensor.numel(), limit) > 1


def _step(n: int, limit: int) -> int:
    return 1 if n <= max(limit, BLOCK) else -(-n // max(limit, BLOCK)) | 1
