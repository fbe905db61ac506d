"""Whether a loss is a function that has a curvature: finite, repeatable, dependent on the parameters that were chosen."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trimtab.curvature._checks import CurvatureError, kind
from trimtab.curvature.memory import saved_bytes
from trimtab.curvature.shadow import differentiating

if TYPE_CHECKING:
    from trimtab.curvature.problem import Problem


def checked(problem: "Problem") -> tuple[tuple[str, ...], int]:
    """Let only losses pass that have a curvature.

    Args:
        problem: All of it but what is returned.

    Returns:
        Names of parameters without influence, and the bytes that a forward pass of the first batch keeps.

    Raises:
        CurvatureError: The loss has none.
    """
    for name, parameter in problem.shadow.model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise CurvatureError(f"parameter {name} holds NaN or infinity, so no curvature is defined there")
    point = problem.variables()
    with differentiating(), saved_bytes() as saved:
        loss = problem.batch_loss(0, point)
    if not loss.requires_grad:
        raise CurvatureError(
            "loss does not depend on any chosen parameter of the model it is given: it was computed under no_grad, "
            "from detach(), .item() or numpy, or with another model than the one that loss(model, batch) gets"
        )
    value = float(loss.detach())
    if not math.isfinite(value):
        raise CurvatureError(f"loss is {value} on the first batch, so no curvature is defined there")
    _check_repeats(problem, value)
    return _unused(problem, point, _reached(loss)), saved[0]


def _unused(problem: "Problem", point: Sequence[Tensor], reached: set[int]) -> tuple[str, ...]:
    """Names of parameters that no batch's loss leads to.

    Args:
        problem: The problem.
        point: Leaves, one a parameter.
        reached: Those that the first batch leads to.

    Returns:
        The names.

    Raises:
        CurvatureError: It is all of them.
    """
    for index in range(1, len(problem.batches)):
        if len(reached.intersection(map(id, point))) == len(point):
            break
        with differentiating():
            reached = reached | _reached(problem.batch_loss(index, point))
    unused = tuple(name for name, leaf in zip(problem.names, point, strict=True) if id(leaf) not in reached)
    if len(unused) == len(point):
        raise CurvatureError(
            "loss depends on none of the chosen parameters: it uses others, or another model than the one that "
            "loss(model, batch) gets"
        )
    return unused


def _check_repeats(problem: "Problem", first: float) -> None:
    """Let only losses pass that are the same again: with other random numbers, or with the same frozen ones.

    Args:
        problem: The problem.
        first: The first batch's loss.

    Raises:
        CurvatureError: It is another one.
    """

    def again(seed: int | None) -> float:
        with torch.inference_mode(False), torch.no_grad():
            return float(problem.batch_loss(0, problem.origin, seed))

    second = again(1 if problem.seed is None else problem.seed)
    if _alike(first, second, problem.dtype):
        return
    if problem.seed is None and _alike(first, again(None), problem.dtype):
        names = problem.shadow.active_dropouts()
        who = f"dropout in training mode ({', '.join(names[:3])})" if names else "the model or the loss function"
        raise CurvatureError(
            f"loss is random: {first:.6g} and {second:.6g} on the same batch, because {who} draws random numbers; "
            'freeze them with seed=0, or give mode="eval"'
        )
    raise CurvatureError(
        f"loss is not deterministic: {first:.6g} and then {second:.6g} on the same batch, at the same parameters and "
        "with the same random numbers; the model or the loss function keeps something from call to call"
    )


def _alike(first: float, second: float, dtype: torch.dtype) -> bool:
    """Whether two losses differ by no more than the rounding of sums in another order."""
    return abs(first - second) <= 100 * torch.finfo(dtype).eps * max(abs(first), abs(second))


def _reached(loss: Tensor) -> set[int]:
    """Identities of the leaves that a graph leads to."""
    seen: set[Any] = set()
    leaves: set[int] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        waiting += [following for following, _ in node.next_functions]
    return leaves


def dtype_of(model: nn.Module, dtype: torch.dtype | None) -> torch.dtype:
    """The precision to compute in.

    Args:
        model: The model.
        dtype: What was asked for; None for the model's own, where half precisions become float32.

    Returns:
        float32 or float64.

    Raises:
        CurvatureError: Something else was asked for.
    """
    if dtype not in {None, torch.float32, torch.float64}:
        raise CurvatureError(f"dtype must be torch.float32 or torch.float64, but it is {dtype!r}")
    found = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return dtype or (torch.float64 if found == {torch.float64} else torch.float32)


def chosen(model: nn.Module, parameters: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the parameters to differentiate by.

    Args:
        model: The model.
        parameters: Names of parameters or modules; None for all that ask for a gradient.

    Returns:
        The names, in the model's order.

    Raises:
        CurvatureError: There are none, or a name is not there.
    """
    every = dict(model.named_parameters())
    if isinstance(parameters, str):
        raise CurvatureError(f"parameters must be a list of names, but it is a str; write parameters=[{parameters!r}]")
    if parameters is not None and not isinstance(parameters, Iterable):
        raise CurvatureError(f"parameters must be a list of names, but it is {kind(parameters)}")
    names = {name for name, p in every.items() if p.requires_grad} if parameters is None else set()
    for asked in parameters or ():
        if not isinstance(asked, str):
            raise CurvatureError(
                f"parameters must be a list of names, but it holds {kind(asked)}; names are those of model.named_parameters()"
            )
        hits = {name for name in every if name == asked or name.startswith(f"{asked}.")}
        if not hits:
            raise CurvatureError(
                f"parameters names {asked!r}, but the model has neither such a parameter nor such a module with any; "
                f"it has {', '.join(list(every)[:6])}{', ...' if len(every) > 6 else ''}"
            )
        names |= hits
    if not names:
        what = (
            "parameters is empty" if parameters is not None else "none asks for a gradient" if every else "it has none"
        )
        raise CurvatureError(f"the model has no parameters to differentiate by: {what}")
    for name in names:
        if not every[name].is_floating_point():
            raise CurvatureError(f"parameter {name} is of {every[name].dtype}; real floating parameters are needed")
    return tuple(name for name in every if name in names)
