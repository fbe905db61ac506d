"""Look over the normalizations of a model without training it."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from trimtab.errors import NormalizationError
from trimtab.norms._kinds import kind_of
from trimtab.norms._passes import copy_of
from trimtab.norms.auditing._fact import Fact, Seen, View
from trimtab.norms.auditing._observe import observe
from trimtab.norms.auditing.buffers import buffer_facts
from trimtab.norms.auditing.parameters import parameter_facts
from trimtab.norms.auditing.statistics import statistic_facts


def audit(
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    example: Any | None = None,
    *,
    everything: bool = False,
) -> list[Fact]:
    """State facts about the normalizations of a model, those that are amiss or all.

    | code | value | needs |
    |---|---|---|
    | elements-per-statistic | values per statistic | example, but for LayerNorm and RMSNorm |
    | group-divisibility | groups of a GroupNorm | |
    | shared-norm | places in the model, or calls in a forward pass | |
    | eps-and-dtype | eps, against the smallest that the dtype holds | |
    | eps-and-variance | eps, against a tenth of the variance | example, or running statistics |
    | momentum-convention | momentum | |
    | initial-weight | weight of the initial mean 0 and variance 1 in the running statistics | |
    | effective-mode | what it normalizes by in each mode, from the buffers | |
    | frozen-but-moving | whether running statistics move though no parameter trains | |
    | mode | train or eval, while the model is in training mode | |
    | buffer-dtype | dtype of the running statistics | |
    | nonfinite-buffers | values that are not finite | |
    | buffers-updated-twice | updates, against the other layers' and the optimizer's steps | |
    | decay-on-norm | weight decay on weight or bias | optimizer |
    | bias-before-norm | whether the layer before has a bias without effect; never amiss | |

    Nothing of the model is changed: the example runs in evaluation mode, on a copy.

    Args:
        model: The model.
        optimizer: Its optimizer, or several.
        example: What it is called with: a tensor, a tuple of positional arguments or a mapping of keyword arguments. Of
            the size of a training batch of one device, since that is the size of a BatchNorm's statistics.
        everything: Whether to give all facts, not only those that are amiss.

    Returns:
        The facts.

    Raises:
        NormalizationError: If the model is no module, or the optimizer no optimizer.
    """
    if not isinstance(model, nn.Module):
        raise NormalizationError(f"model must be a torch.nn.Module, but it is {type(model).__name__}")
    optimizers = () if optimizer is None else (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    if wrong := [o for o in optimizers if not isinstance(o, Optimizer)]:
        raise NormalizationError(
            f"optimizer must be a torch.optim.Optimizer or several, but it holds a {type(wrong[0]).__name__}"
        )
    norms = {name: module for name, module in model.named_modules() if kind_of(module) is not None}
    seen: dict[str, Seen] = {}
    complete = False
    if example is not None:
        twin = copy_of(model)
        seen, complete = observe(twin, {name: twin.get_submodule(name) for name in norms}, example)
    view = View(model, norms, optimizers, seen, example if complete else None)
    facts = [*statistic_facts(view), *buffer_facts(view), *parameter_facts(view)]
    return [fact for fact in facts if everything or fact.amiss]
