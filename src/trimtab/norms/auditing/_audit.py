"""Look over the normalizations of a model without training it."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab.norms._arguments import refuse, require_flag, require_module, require_values
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
    | spectral-vectors | length of u times length of v, by which evaluation takes sigma wrong | |

    Nothing of the model is changed: the example runs in evaluation mode, on a copy, and what hooks note is taken back.

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
    require_module("model", model)
    require_flag(everything=everything)
    optimizers = _optimizers(optimizer)
    norms = {name: module for name, module in model.named_modules() if kind_of(module) is not None}
    seen: dict[str, Seen] = {}
    complete = False
    if example is not None:
        require_values(model)
        twin = copy_of(model)
        seen, complete = observe(twin, {name: twin.get_submodule(name) for name in norms}, example)
    view = View(model, norms, optimizers, seen, example if complete else None)
    facts = [*statistic_facts(view), *buffer_facts(view), *parameter_facts(view)]
    return [fact for fact in facts if everything or fact.amiss]


def _optimizers(given: Any) -> tuple[Optimizer, ...]:
    if given is None or isinstance(given, Optimizer):
        return () if given is None else (given,)
    several = tuple(given) if isinstance(given, Iterable) and not isinstance(given, (nn.Module, Tensor)) else (given,)
    if wrong := [one for one in several if not isinstance(one, Optimizer)]:
        refuse("optimizer", wrong[0], "a torch.optim.Optimizer, or a list of them, is needed")
    return several
