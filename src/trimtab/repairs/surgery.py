"""Changes of a setup's parts that keep the others in step: modules, parameters, optimizers' groups, schedulers."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab._setup import Setup
from trimtab.errors import RepairError


def replace_module(setup: Setup, name: str, new: nn.Module) -> None:
    """Put another module in the place of one; optimizers take its parameters in place of the old ones.

    Parameters that both have stay where they are. New ones join the group that the old ones were in, or else the group of most
    parameters.

    Args:
        setup: The setup.
        name: Of the old module; not the model itself.
        new: The new module.

    Raises:
        RepairError: The name is the model's own.
    """
    if not name:
        raise RepairError("the model itself cannot be replaced: the setup's functions may hold it")
    parent, _, child = name.rpartition(".")
    old = setup.model.get_submodule(name)
    new.train(old.training)
    setattr(setup.model.get_submodule(parent), child, new)
    kept = {id(p) for p in setup.model.parameters()}
    gone = [p for p in old.parameters() if id(p) not in kept]
    fresh = [p for p in new.parameters() if p.requires_grad]
    adopt(setup, fresh, gone)


def adopt(setup: Setup, new: Iterable[nn.Parameter], gone: Iterable[nn.Parameter] = ()) -> None:
    """Hand parameters to the optimizers, and take others out of them.

    Args:
        setup: The setup.
        new: To be trained; those that an optimizer has already stay there.
        gone: To be taken out, with their state.
    """
    leaving = {id(p) for p in gone}
    groups = [(o, g) for o in setup.optimizers for g in o.param_groups]
    home = next((g for _, g in groups if any(id(p) in leaving for p in g["params"])), None)
    home = home or max((g for _, g in groups), key=lambda g: len(g["params"]))
    for optimizer, group in groups:
        for parameter in [p for p in group["params"] if id(p) in leaving]:
            optimizer.state.pop(parameter, None)
        group["params"][:] = [p for p in group["params"] if id(p) not in leaving]
    held = {id(p) for _, g in groups for p in g["params"]}
    home["params"].extend(p for p in new if id(p) not in held)


def split_groups(setup: Setup, apart: Callable[[nn.Parameter], bool], **settings: Any) -> int:
    """Give some parameters a group of their own in their optimizer, with other settings.

    Args:
        setup: The setup.
        apart: Which parameters.
        **settings: What is other in the new groups.

    Returns:
        How many parameters were set apart.
    """
    moved = 0
    for optimizer in setup.optimizers:
        for index, group in enumerate(list(optimizer.param_groups)):
            leaving = [p for p in group["params"] if apart(p)]
            if not leaving or all(group.get(key) == value for key, value in settings.items()):
                continue
            moved += len(leaving)
            if len(leaving) == len(group["params"]):
                group.update(settings)
                continue
            group["params"][:] = [p for p in group["params"] if not apart(p)]
            kept = {key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items()}
            optimizer.add_param_group({**kept, **settings, "params": leaving})
            _tell_scheduler(setup.scheduler, optimizer, index)
    return moved


_OTHER_LISTS = ("_schedulers", "_milestones", "milestones", "_schedule_phases")
"""Lists of schedulers with an entry a part, not a group."""


def _tell_scheduler(scheduler: Any, optimizer: Optimizer, index: int) -> None:
    """Schedulers keep lists with an entry a group (base_lrs, lr_lambdas, min_lrs): the new group gets that of the old one."""
    for one in (scheduler, *getattr(scheduler, "_schedulers", ())):
        if getattr(one, "optimizer", None) is not optimizer:
            continue
        for key, value in vars(one).items():
            if isinstance(value, list) and len(value) == len(optimizer.param_groups) - 1 and key not in _OTHER_LISTS:
                value.append(value[index])


def scale_rates(setup: Setup, factor: float) -> None:
    """Multiply every learning rate, and what a scheduler remembers of it.

    Args:
        setup: The setup.
        factor: The factor.
    """
    for optimizer in setup.optimizers:
        for group in optimizer.param_groups:
            for key in ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr"):
                if key in group:
                    group[key] = group[key] * factor
    scheduler = setup.scheduler
    for one in (scheduler, *getattr(scheduler, "_schedulers", ())):
        for key in ("base_lrs", "max_lrs", "min_lrs", "_last_lr"):
            value = getattr(one, key, None)
            if isinstance(value, list):
                value[:] = [rate * factor for rate in value]
        for key in ("eta_min", "min_lr"):
            if isinstance(getattr(one, key, None), (int, float)):
                setattr(one, key, getattr(one, key) * factor)


def before_steps(setup: Setup, act: Callable[[Optimizer], None]) -> None:
    """Do something before each step of each optimizer, wherever the user's code calls it.

    Args:
        setup: The setup.
        act: Given the optimizer.
    """
    for optimizer in setup.optimizers:
        optimizer.register_step_pre_hook(lambda o, args, kwargs: act(o))


def after_steps(setup: Setup, act: Callable[[Optimizer], None]) -> None:
    """Do something after each step of each optimizer.

    Args:
        setup: The setup.
        act: Given the optimizer.
    """
    for optimizer in setup.optimizers:
        optimizer.register_step_post_hook(lambda o, args, kwargs: act(o))


def around_steps(setup: Setup, inside: Callable[[], AbstractContextManager[Any]]) -> None:
    """Do each training step, the user's own or the plain one, inside a block.

    Args:
        setup: The setup.
        inside: Gives the block.
    """
    own = setup.step

    def step(of: Setup, batch: Any) -> Tensor:
        with inside():
            return of.plain_step(batch) if own is None else own(of, batch)

    setup.step = step


def slow_path(setup: Setup) -> None:
    """Keep torch's transformer stacks from the kernel that knows nothing of hooks, and from the nested tensors that are made for it.

    Args:
        setup: The setup, whose model's layers have been given hooks (which each layer sees by itself, but its stack does not).
    """
    for module in setup.model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
