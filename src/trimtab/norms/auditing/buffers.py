"""Running statistics: how they move, whether they should, and what is in them."""

import statistics
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trimtab.norms._arguments import require_share, require_whole
from trimtab.norms._kinds import kind_of
from trimtab.norms.auditing._fact import Fact, View, called, running

LARGEST_MOMENTUM = 0.5  # above, more than half of the statistics is the last batch: the other convention's 0.9 or 0.99
LARGEST_INITIAL_WEIGHT = 0.05  # of the (0, 1) that running statistics start from
MORE_UPDATES = 1.1  # than optimizer steps, or 1.5 than the other layers: a second forward pass in each step makes it 2
MORE_THAN_OTHERS = 1.5


def momentum_for_updates(momentum: float, updates: int) -> float:
    """The momentum with which several updates a step move running statistics as far as one update did.

    1 - (1 - m)^(1/k): for checkpointed layers (two updates a step) and for k micro-batches of an accumulated gradient.

    Args:
        momentum: The momentum m meant for one update a step.
        updates: Updates a step, k.

    Returns:
        The momentum to set.

    Raises:
        NormalizationError: If the momentum is not in [0, 1], or there is less than one update.
    """
    require_share(momentum=momentum)
    require_whole(updates=updates)
    return float(1.0 - (1.0 - momentum) ** (1.0 / updates))


def buffer_facts(view: View) -> Iterator[Fact]:
    """Momentum, modes, counters, dtype and values of running statistics.

    Args:
        view: What to look at.

    Yields:
        The facts.
    """
    tracked = {n: norm for n, norm in view.norms.items() if kind_of(norm) != "frozen_batch_norm" and running(norm)}
    for name, norm in view.norms.items():
        yield from _mode(view, name, norm)
    for name, norm in tracked.items():
        yield from _momentum(name, norm)
        yield from _values(name, norm)
    yield from _counters(view, tracked)


def _momentum(name: str, norm: nn.Module) -> Iterator[Fact]:
    momentum = _momentum_of(norm)
    if momentum is not None:
        amiss = momentum > LARGEST_MOMENTUM
        text = f"{called(name)}: momentum {momentum:g}, at most {LARGEST_MOMENTUM:g} expected; the running statistics"
        text += f" remember the last {1 / momentum:.3g} batches" if momentum > 0 else " never move"
        if amiss:
            text += f"; PyTorch's momentum weighs the new batch, in Keras' convention this would be {1 - momentum:g}"
        yield Fact("momentum-convention", name, momentum, f"<= {LARGEST_MOMENTUM:g}", text, amiss)
    seen = _count(norm)
    if seen is None or momentum is None:
        return
    weight = (1.0 - momentum) ** seen
    fresh = seen == 0 and norm.training  # a model that has not been trained yet
    amiss = weight > LARGEST_INITIAL_WEIGHT and not fresh and (seen > 0 or _is_initial(norm))
    text = f"{called(name)}: after {seen} updates the initial mean 0 and variance 1 still weigh {weight:.3g}"
    yield Fact("initial-weight", name, weight, f"<= {LARGEST_INITIAL_WEIGHT:g}", text, amiss)


def _mode(view: View, name: str, norm: nn.Module) -> Iterator[Fact]:
    flag = getattr(norm, "track_running_stats", None)
    if flag is None:
        return
    has = running(norm) is not None
    in_training = "the batch, and the buffers move" if flag and has else "the batch"
    in_evaluation = "its buffers" if has else "the batch"
    odd = bool(flag) != has
    text = f"{called(name)} normalizes in training by {in_training}, in evaluation by {in_evaluation}"
    if odd:
        text += f"; track_running_stats={flag} says otherwise: the buffers decide, not the flag"
    yield Fact(
        "effective-mode", name, f"training: {in_training}; evaluation: {in_evaluation}", "as the flag says", text, odd
    )
    parameters = list(norm.parameters(recurse=False))
    trains = any(p.requires_grad for p in parameters)
    if has and parameters:
        moves = bool(norm.training and flag and not trains)
        text = f"{called(name)}: its parameters {'train' if trains else 'are frozen'}, its running statistics "
        text += "move" if norm.training and flag else "do not move"
        text += (
            ": requires_grad=False freezes no buffer; call eval() on it or convert it to frozen_batch_norm"
            if moves
            else ""
        )
        yield Fact("frozen-but-moving", name, moves, "False", text, moves)
    if has and view.model.training:
        left = not norm.training and trains
        text = f"{called(name)} is in {'training' if norm.training else 'evaluation'} mode while the model is in training mode"
        text += ", and its parameters train: it normalizes by statistics that no longer follow" if left else ""
        yield Fact("mode", name, "train" if norm.training else "eval", "train", text, left)


def _values(name: str, norm: nn.Module) -> Iterator[Fact]:
    both = running(norm)
    assert both is not None
    dtype = both[0].dtype
    low = dtype in (torch.float16, torch.bfloat16)
    text = f"{called(name)}: running statistics in {dtype}"
    if low:
        text += ": updates below half a unit in the last place are lost, so they stall short of the true values"
    yield Fact("buffer-dtype", name, str(dtype), "torch.float32", text, low)
    broken = sum(int((~torch.isfinite(t)).sum()) for t in both if not t.is_meta)
    text = f"{called(name)}: {broken} values of its running statistics are not finite"
    text += ", and no later batch mends them; recalibrate the model" if broken else ""
    yield Fact("nonfinite-buffers", name, broken, "0", text, broken > 0)


def _counters(view: View, tracked: dict[str, nn.Module]) -> Iterator[Fact]:
    counts = {name: count for name, norm in tracked.items() if (count := _count(norm)) is not None}
    if not counts:
        return
    steps = _steps(view)
    usual = statistics.median_low(counts.values())
    for name, count in counts.items():
        amiss = count > MORE_THAN_OTHERS * usual > 0
        expected = str(usual)
        text = f"{called(name)}: {count} updates of its running statistics, the layers' median is {usual}"
        if steps and count > MORE_UPDATES * steps:
            amiss, expected = True, str(steps)
            text = f"{called(name)}: {count} updates of its running statistics in {steps} optimizer steps"
        if amiss:
            times = max(round(count / (steps or usual)), 2)
            text += (
                ", unless it was trained before: a checkpointed block runs twice, and accumulation, evaluation in training "
                "mode or a second forward pass add more"
            )
            if (momentum := _momentum_of(tracked[name])) is not None:
                text += (
                    f"; with {times} updates a step, momentum {momentum_for_updates(momentum, times):.4g} does what "
                )
                text += f"{momentum:g} does with one"
        yield Fact("buffers-updated-twice", name, count, expected, text, amiss)


def _steps(view: View) -> int | None:
    """Returns how many steps the optimizers have made, where they count them."""
    states = (state for optimizer in view.optimizers for state in optimizer.state.values())
    steps = [float(state["step"]) for state in states if "step" in state]
    return round(max(steps)) if steps else None


def _count(norm: nn.Module) -> int | None:
    seen = getattr(norm, "num_batches_tracked", None)
    return int(seen) if isinstance(seen, Tensor) and not seen.is_meta else None


def _momentum_of(norm: nn.Module) -> float | None:
    """Returns the momentum, None for a cumulative average."""
    momentum = norm.momentum
    return float(momentum) if isinstance(momentum, (int, float)) else None


def _is_initial(norm: nn.Module) -> bool:
    both = running(norm)
    return both is not None and bool((both[0] == 0).all() and (both[1] == 1).all())
