"""The training loop: gradients cleared, every parameter trained, the loss scaled, arithmetic kept off its poles."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from trimtab._setup import Setup
from trimtab._torch import listen_to_backward, stop_listening_to_backward
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.patient import Patient
from trimtab.repairs.surgery import adopt, after_steps, around_steps, before_steps
from trimtab.report import Finding, Repair

SCALES = (2.0**16, 2.0**12, 2.0**20)
"""What GradScaler starts with, and others around it."""

SAFE = 1e-6
"""How near to its pole the argument of a logarithm or root may come: float32 holds 1 - 1e-6."""


def zero_grad(setup: Setup) -> None:
    """Clear the gradients after each step."""
    after_steps(setup, lambda optimizer: optimizer.zero_grad())


def _tell_zero_grad() -> Repair:
    return Repair("clear the gradients in every step", "optimizer.zero_grad()  # before loss.backward()")


def add_parameters(setup: Setup) -> None:
    """Train what no optimizer holds; layers in plain lists and dictionaries are registered first.

    Raises:
        RepairError: The optimizers hold every parameter that takes gradients.
    """
    for module in list(setup.model.modules()):
        for name, value in list(vars(module).items()):
            registered = _registered(value)
            if registered is not None and not name.startswith("_"):
                delattr(module, name)
                setattr(module, name, registered)
    held = {id(p) for o in setup.optimizers for g in o.param_groups for p in g["params"]}
    missing = [p for p in setup.model.parameters() if p.requires_grad and id(p) not in held]
    if not missing:
        raise RepairError("the optimizers hold every parameter that takes gradients")
    adopt(setup, missing)


def _registered(value: Any) -> nn.Module | None:
    """The container of torch for a plain one of modules or parameters."""
    if isinstance(value, (list, tuple)) and value:
        if all(isinstance(item, nn.Module) for item in value):
            return nn.ModuleList(value)
        if all(isinstance(item, nn.Parameter) for item in value):
            return nn.ParameterList(value)
    if isinstance(value, dict) and value and all(isinstance(key, str) for key in value):
        if all(isinstance(item, nn.Module) for item in value.values()):
            return nn.ModuleDict(value)
        if all(isinstance(item, nn.Parameter) for item in value.values()):
            return nn.ParameterDict(value)
    return None


def _tell_add_parameters() -> Repair:
    return Repair(
        "hand every parameter to the optimizer (layers in plain lists go into nn.ModuleList)",
        "self.layers = torch.nn.ModuleList(self.layers)  # a plain list hides its layers from model.parameters()\n"
        "optimizer = Optimizer(model.parameters(), ...)",
    )


def unfreeze(setup: Setup, *, where: list[str]) -> None:
    """Let parameters take gradients, and train them.

    Raises:
        RepairError: None of them is frozen.
    """
    frozen = [
        p
        for name, p in setup.model.named_parameters()
        if not p.requires_grad
        and p.is_floating_point()
        and any(name == place or name.startswith(f"{place}.") for place in where)
    ]
    if not frozen:
        raise RepairError(f"no parameter of {', '.join(where)} is frozen")
    for parameter in frozen:
        parameter.requires_grad_(True)
    adopt(setup, frozen)


def _tell_unfreeze(*, where: list[str]) -> Repair:
    return Repair(
        f"let {', '.join(where)} train",
        "\n".join(
            [f'model.get_submodule("{place}").requires_grad_(True)' for place in where]
            + ["# before the optimizer is built from model.parameters()"]
        ),
    )


def scale_loss(setup: Setup, *, scale: float) -> None:
    """Multiply the gradient where it leaves the loss, and divide it before the step, as a GradScaler does.

    A step whose gradients have overflowed is left out.
    """
    state = _Scale(scale)
    around_steps(setup, state.listening)
    before_steps(setup, state.leave)


class _Scale:
    """The factor, and whether the gradients carry it; hears of every backward pass of a step."""

    def __init__(self, scale: float) -> None:
        self._scale, self._on = scale, False

    @contextmanager
    def listening(self) -> Iterator[None]:
        self._on = False
        listen_to_backward(self)
        try:
            yield
        finally:
            stop_listening_to_backward(self)

    def before_backward(self, losses: tuple[Tensor, ...]) -> None:
        self._on = True
        for loss in losses:
            if loss.requires_grad:
                loss.register_hook(lambda gradient: gradient * self._scale)  # type: ignore[no-untyped-call]

    def after_backward(self) -> None:
        """Nothing to do: the gradients stay scaled until the step."""

    def leave(self, optimizer: Optimizer) -> None:
        if not self._on:
            return
        held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for parameter in held:
            parameter.grad.div_(self._scale)
        if not all(bool(torch.isfinite(p.grad).all()) for p in held):
            for parameter in held:
                parameter.grad = None


def _tell_scale(*, scale: float) -> Repair:
    return Repair(
        f"scale the loss by {scale:g} before the backward pass, and the gradients back before the step (or use bfloat16)",
        f"scaler = torch.amp.GradScaler(init_scale={scale:g})\n"
        "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()",
    )


def keep_off_poles(setup: Setup, *, eps: float) -> None:
    """Keep the arguments of logarithms and roots in loss and model by `eps` away from where they are not finite; optimizers have their own."""
    mode = _OffPoles(eps)
    around_steps(setup, lambda: mode)
    before_steps(setup, mode.pause)
    after_steps(setup, mode.go_on)


_FROM_BELOW: dict[Callable[..., Any], float] = {
    torch.log: 0.0,
    torch.log2: 0.0,
    torch.log10: 0.0,
    torch.log1p: -1.0,
    torch.sqrt: 0.0,
    torch.rsqrt: 0.0,
    Tensor.log: 0.0,
    Tensor.log2: 0.0,
    Tensor.log10: 0.0,
    Tensor.log1p: -1.0,
    Tensor.sqrt: 0.0,
    Tensor.rsqrt: 0.0,
}
"""Functions of one argument, and where each one's value or slope runs off."""

_BOTH_SIDES = {torch.acos, torch.asin, torch.atanh, Tensor.acos, Tensor.asin, Tensor.atanh}
"""Functions of [-1, 1] whose slope or value runs off at both ends."""


class _OffPoles(TorchFunctionMode):
    """Clamps arguments on their way in."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self._eps, self._paused = eps, False

    def pause(self, optimizer: Optimizer) -> None:
        self._paused = True

    def go_on(self, optimizer: Optimizer) -> None:
        self._paused = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._paused and args and isinstance(args[0], Tensor) and args[0].is_floating_point():
            if func in _FROM_BELOW:
                args = (args[0].clamp_min(_FROM_BELOW[func] + self._eps), *args[1:])
            elif func in _BOTH_SIDES:
                args = (args[0].clamp(self._eps - 1, 1 - self._eps), *args[1:])
        return func(*args, **(kwargs or {}))


def _tell_poles(*, eps: float) -> Repair:
    return Repair(
        f"keep logarithms and roots {eps:g} away from zero in the loss and the model "
        "(better still: a loss that works on raw scores, such as binary_cross_entropy_with_logits)",
        f"torch.log(p.clamp_min({eps:g}))\ntorch.sqrt(x.clamp_min({eps:g}))  # before torch.where chooses, not behind it",
    )


def _cleared(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield Change("zero-grad")


def _held(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield Change("add-parameters")


def _thawed(finding: Finding, patient: Patient) -> Iterator[Change]:
    places = [place for place in finding.where if place not in ("optimizer", "loop", "data", "loss")]
    modules = {name.rpartition(".")[0] for name, _ in patient.model.named_parameters()}
    if places:
        yield Change("unfreeze", {"where": [p for p in places if _is_part(patient.model, p)] or places})
    frozen = sorted({name.partition(".")[0] for name, p in patient.model.named_parameters() if not p.requires_grad})
    if frozen and modules:
        yield Change("unfreeze", {"where": frozen})


def _is_part(model: nn.Module, place: str) -> bool:
    return any(name == place or name.startswith(f"{place}.") for name, _ in model.named_parameters())


def _scaled(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield from (Change("scale-loss", {"scale": scale}) for scale in SCALES)


def _off_poles(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield Change("off-poles", {"eps": SAFE})
    yield Change("off-poles", {"eps": 1e-3})


def _always(patient: Patient, rng: random.Random) -> dict[str, Any]:
    return {}


def _some_frozen(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    frozen = sorted({name.partition(".")[0] for name, p in patient.model.named_parameters() if not p.requires_grad})
    return {"where": [rng.choice(frozen)]} if frozen else None


def _some_scale(patient: Patient, rng: random.Random) -> dict[str, Any]:
    return {"scale": 2.0 ** rng.randint(-24, 24)}


def _some_eps(patient: Patient, rng: random.Random) -> dict[str, Any]:
    return {"eps": float(f"{10 ** rng.uniform(-12, 0):.2g}")}


KINDS = {
    "zero-grad": Kind(zero_grad, _tell_zero_grad, _always),
    "add-parameters": Kind(add_parameters, _tell_add_parameters, _always),
    "unfreeze": Kind(unfreeze, _tell_unfreeze, _some_frozen),
    "scale-loss": Kind(scale_loss, _tell_scale, _some_scale),
    "off-poles": Kind(keep_off_poles, _tell_poles, _some_eps),
}

ANSWERS = {
    "missing-zero-grad": _cleared,
    "missing-from-optimizer": _held,
    "frozen-parameters": _thawed,
    "loss-scale-underflow": _scaled,
    "nonfinite-loss": _off_poles,
}
