"""What every module gave, and the gradient that came back to it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.prediction.measuring import likened, measured_state, moments
from trimtab.prediction.recurrent import Shadow, shadow
from trimtab.prediction.registry import Value
from trimtab.prediction.state import State
from trimtab.prediction.trace import Tracer
from trimtab.recording.facts import named_modules
from trimtab.recording.walk import measurable, tensors

MOST_OUTPUTS = 4


@dataclass(slots=True)
class Heard:
    """A module's output.

    Attributes:
        name: The module, numbered from its second call on.
        kind: Its class.
        value: Which tensor it is.
        forward: Measured second moment of the values.
        backward: Measured second moment of the gradient, None before it came.
    """

    name: str
    kind: str
    value: Value
    forward: float
    backward: float | None = None


class Listener:
    """Hooks on a model while it runs once under a tracer.

    Attributes:
        heard: The sites in order.
        outputs: What the model gave, and which tensors they are.
        cotangents: The gradient at its outputs.
    """

    def __init__(self, model: nn.Module, tracer: Tracer) -> None:
        self.model = model
        self.tracer = tracer
        self.heard: list[Heard] = []
        self.outputs: list[tuple[Tensor, Value]] = []
        self.cotangents: dict[int, State] = {}
        self._calls: dict[str, int] = {}
        self._shadows: list[tuple[nn.RNNBase, Shadow]] = []

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Hooks on every module, for the time of the block.

        Yields:
            Nothing.
        """
        handles = [self.model.register_forward_pre_hook(lambda _, *given: self.begin(given), with_kwargs=True)]
        for name, module in named_modules(self.model):
            handles.append(module.register_forward_hook(self._hook(name)))
        handles.append(self.model.register_forward_hook(lambda _, args, output: self.end(output)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def begin(self, given: Any) -> None:
        """The model is about to run.

        Args:
            given: What it was called with.
        """
        for tensor in tensors(given):
            self.tracer.add_source(tensor)
        self.tracer.listening = True

    def end(self, output: Any) -> None:
        """The model has run.

        Args:
            output: What it gave.
        """
        self.tracer.listening = False
        self.outputs = []
        for tensor in measurable(output, MOST_OUTPUTS):
            value = self.tracer.find(tensor)
            if value is not None:
                self.outputs.append((tensor, value))
                if _passes(tensor):
                    tensor.register_hook(self.tracer.quietly(partial(self._answer, value)))  # type: ignore[no-untyped-call]

    def backward_ended(self) -> None:
        """The gradients have come back to what the modules gave; the steps of fused layers get them now."""
        for module, shade in self._shadows:
            shade.send_back(list(module.parameters()))
        self._shadows = []

    def _answer(self, value: Value, gradient: Tensor) -> None:
        self.cotangents[value.id] = likened(measured_state(gradient), gradient)

    def _hook(self, name: str) -> Callable[..., None]:
        def hear(module: nn.Module, args: Any, output: Any) -> None:
            listening, self.tracer.listening = self.tracer.listening, False
            if listening:
                self.hear(name, module, args, output)
            self.tracer.listening = listening

        return hear

    def hear(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A module has run.

        Args:
            name: Its name.
            module: The module.
            args: What it was called with, in order.
            output: What it gave.
        """
        count = self._calls[name] = self._calls.get(name, 0) + 1
        label = name or type(module).__name__
        label = f"{label}#{count}" if count > 1 else label
        if isinstance(module, nn.RNNBase):
            shade = shadow(module, args, output, self.tracer)
            self._steps(label, module, output if shade is None else shade.output)
            if shade is not None:
                self._shadows.append((module, shade))
        found = measurable(output, MOST_OUTPUTS)
        seen = {site.value.id for site in self.heard}
        for k, tensor in enumerate(found):
            value = self.tracer.find(tensor)
            if value is None or value.id in seen or not tensor.is_floating_point():
                continue
            site = self._add(f"{label}.{k}" if len(found) > 1 else label, module, value, moments(tensor)[0])
            if _passes(tensor):
                tensor.register_hook(self.tracer.quietly(partial(_note, site)))  # type: ignore[no-untyped-call]

    def _add(self, name: str, module: nn.Module, value: Value, forward: float) -> Heard:
        site = Heard(name, type(module).__name__, value, forward)
        self.heard.append(site)
        return site

    def _steps(self, name: str, module: nn.Module, output: Any) -> None:
        """The time steps of a fused recurrent layer: what its last stack of more than one tensor has joined."""
        first = next(tensors(output), None)
        joined = [c for c in self.tracer.calls if c.name in {"aten.stack", "aten.cat"} and len(c.args[0]) > 1]
        if first is None or not joined or first.grad_fn is None:
            return
        values = joined[-1].args[0]
        node = _stacked(first.grad_fn, len(values))
        for t, value in enumerate(values):
            if value is None or value.id not in self.tracer.values:
                continue
            site = self._add(f"{name}[{t}]", module, value, self.tracer.values[value.id][0])
            if node is not None:
                step = node.next_functions[t][0]
                step.register_prehook(self.tracer.quietly(partial(_note_first, site)))


def _passes(tensor: Tensor) -> bool:
    """Whether a gradient comes through a tensor that ends with the pass; a leaf is the user's, and would keep the hook."""
    return tensor.requires_grad and not tensor.is_leaf


def _stacked(node: Any, count: int) -> Any:
    """The autograd node that joined so many steps, behind transpositions."""
    for _ in range(8):
        if node is None or len(node.next_functions) == count > 1:
            return node
        node = node.next_functions[0][0] if node.next_functions else None
    return None


def _note(site: Heard, gradient: Tensor | None) -> None:
    if gradient is not None:
        with torch.no_grad():
            site.backward = moments(gradient)[0]


def _note_first(site: Heard, gradients: tuple[Tensor | None, ...]) -> None:
    _note(site, gradients[0])
