"""The fixed batches that a loss is taken over: drawn once, without a trace, each with its share of the mean."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.curvature._checks import CurvatureError, kind, require_count


def drawn_from_setup(setup: Setup, count: int) -> list[Any]:
    """The first batches of a pass; DataLoaders and random states are afterwards as they were.

    Args:
        setup: The setup.
        count: How many; fewer where a pass has fewer.

    Returns:
        The batches.
    """
    require_count("batches", count)
    found: list[Any] = []
    passes = 0
    with unchanged(setup.model, used_by=(setup.batches,)) as kept:

        def begun(batches: Iterable[Any]) -> None:
            nonlocal passes
            passes += 1
            kept.add_data(batches)

        for batch in setup.stream(on_pass=begun):
            if passes > 1:  # the pass is shorter than that
                break
            found.append(copied(batch))
            if len(found) == count:
                break
    return found


def drawn(batches: Any, count: int | None = None) -> list[Any]:
    """The batches of an iterable, or of a function that gives one; what it draws from is afterwards as it was.

    Args:
        batches: A list, a DataLoader, or a function that gives a fresh pass.
        count: At most so many; None for all.

    Returns:
        The batches.

    Raises:
        CurvatureError: It is no such thing, or empty.
    """
    if isinstance(batches, (Tensor, tuple, Mapping, str, bytes)):
        raise CurvatureError(f"batches must be a list of batches, but it is {kind(batches)}; write batches=[batch]")
    if isinstance(batches, Iterator):
        raise CurvatureError(
            "batches must be there to be drawn again, but it is a one-shot iterator, which would be used up; "
            "give a list, the DataLoader, or a function that returns a new iterator"
        )
    with unchanged(used_by=(batches,) if callable(batches) else ()) as kept:
        kept.add_data(batches)
        one_pass = batches() if callable(batches) and not isinstance(batches, Iterable) else batches
        if not isinstance(one_pass, Iterable):
            raise CurvatureError(
                f"batches must be a list of batches, a DataLoader or a function, but it is {kind(batches)}"
            )
        kept.add_data(one_pass)
        found = [copied(batch) for batch in islice(one_pass, count)]
    if not found:
        raise CurvatureError("batches must hold at least one batch, but it is empty")
    return found


def copied(batch: Any, dtype: torch.dtype | None = None) -> Any:
    """A batch whose tensors are copies: a model may change its input in place.

    Args:
        batch: Tensors in tuples, lists and dictionaries; anything else in it stays the object it is.
        dtype: What its floating tensors become; None leaves them.

    Returns:
        The copy.
    """

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = leaf.detach()
        return leaf.to(dtype, copy=True) if dtype is not None and leaf.is_floating_point() else leaf.clone()

    return pytree.tree_map(own, batch)


def samples_in(batch: Any) -> int | None:
    """Number of samples of a batch: the common length of the first axes of its tensors.

    Args:
        batch: The batch.

    Returns:
        The number; None where its tensors differ in it or there are none.
    """
    leaves = batch.values() if isinstance(batch, Mapping) else pytree.tree_leaves(batch)
    lengths = {leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim}
    return int(lengths.pop()) if len(lengths) == 1 else None


def shares(
    batches: list[Any],
    weights: Sequence[float] | None,
    reduction: str,
    total: Callable[[float], float],
) -> tuple[float, ...]:
    """What each batch's loss counts for in the loss of all, so that uneven batches are weighted rightly.

    Args:
        batches: The batches.
        weights: Numbers in proportion to what each batch's mean was taken over (tokens, say); None for its samples.
        reduction: "mean" where the loss of a batch is a mean, "sum" where it is a sum.
        total: Adds a number up over the ranks of a distributed run.

    Returns:
        One factor a batch; those of a mean add up to one over all ranks.

    Raises:
        CurvatureError: The number of samples is not known, or the weights do not fit.
    """
    if reduction == "sum":
        if weights is not None:
            raise CurvatureError('weights belong to reduction="mean": the losses of sums are added up as they are')
        return (1.0,) * len(batches)
    if weights is None:
        counts = [samples_in(batch) for batch in batches]
        alone = total(float(len(batches))) == 1
        if any(count is None for count in counts) and not alone:
            raise CurvatureError(
                "the tensors of a batch have different lengths, so that its number of samples is not known; "
                "give weights=[...], one number a batch in proportion to what its mean loss is taken over"
            )
        weights = [1.0 if alone else float(count or 0) for count in counts]
    if len(weights) != len(batches):
        raise CurvatureError(f"weights must hold one number a batch, {len(batches)}, but it holds {len(weights)}")
    if not all(0 <= float(w) < float("inf") for w in weights) or not sum(weights) > 0:
        raise CurvatureError(f"weights must be numbers from 0 on that are not all 0, but they are {list(weights)}")
    whole = total(float(sum(weights)))
    return tuple(float(weight) / whole for weight in weights)
