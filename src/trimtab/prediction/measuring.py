"""What is measured of a tensor while it is there: moments, covariances of its entries, how alike its samples are.

It may be the user's own training pass that waits: of what is very large some rows are looked at, so that no copy weighs on it.
"""

from dataclasses import replace

import torch
from torch import Tensor

from trimtab.prediction.laws import coarse
from trimtab.prediction.state import State, few_rows, measure

MOST_ROWS, FEW = 256, 8  # of a mask, that are looked at, and points of the law they have
PAIRS = 128  # samples whose correlations are looked at


@torch.no_grad()
def moments(tensor: Tensor) -> tuple[float, float]:
    """Mean square and mean."""
    values = tensor.detach()
    norm = float(torch.linalg.vector_norm(values, dtype=torch.float64 if values.element_size() < 4 else None))
    if norm < 1e-12:  # squares below what float32 holds
        norm = float(torch.linalg.vector_norm(values, dtype=torch.float64))
    return norm**2 / values.numel(), float(values.mean())


@torch.no_grad()
def likened(state: State, tensor: Tensor) -> State:
    """The state with the mean squared correlation of two samples: of gradients of ten classes a tenth, of two classes all."""
    rows = few_rows(tensor.detach())[:PAIRS].flatten(1).to(torch.float32) if tensor.ndim > 1 else None
    if rows is None or len(rows) < 2:
        return state
    unit = torch.nn.functional.normalize(rows, dim=1)
    square = (unit @ unit.T).square()
    n = len(rows)
    return replace(state, alike=min(float((square.sum() - square.diagonal().sum()) / (n * (n - 1))), 1.0))


@torch.no_grad()
def measured_state(tensor: Tensor, hidden: bool | None = None) -> State:
    """The state of a tensor that is there; -inf in a mask of attention scores counts as left out.

    Args:
        tensor: The tensor.
        hidden: For a boolean mask, the value that leaves a score out; None if it does not mask.

    Returns:
        Its state; that of a mask holds the softmax of the mask alone.
    """
    if tensor.dtype == torch.bool:
        state = measure(tensor.float())
        if hidden is None or tensor.ndim < 2:
            return state
        return replace(state, mask=_choice(_masking(tensor == hidden)))
    if tensor.is_floating_point() and tensor.ndim >= 2 and bool(torch.isneginf(tensor).any()):
        state = measure(tensor.masked_fill(torch.isneginf(tensor), 0.0))
        return replace(state, mask=_choice(tensor))
    return measure(tensor)


def _choice(mask: Tensor) -> State:
    """What a softmax of the mask alone gives, with the law of its weights."""
    weights = mask.to(torch.float32).softmax(-1).nan_to_num(0.0)
    rows = weights.reshape(-1, weights.shape[-1])
    some = rows[torch.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS), device=rows.device).long()]
    given = some[some > 0].double().cpu().numpy()
    return replace(measure(weights), law=coarse((given, given / given.sum()), FEW) if len(given) else None)


def _masking(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)


@torch.no_grad()
def shown_moments(tensor: Tensor) -> tuple[float, float]:
    """Moments of a result; those of scores under a mask without what it leaves out.

    Args:
        tensor: The result.

    Returns:
        Mean square and mean.
    """
    found = moments(tensor)
    if found[1] == -torch.inf:
        kept = tensor[~torch.isneginf(tensor)]
        return moments(kept) if kept.numel() else found
    return found
