"""Riding along the first training pass of a watched model: a prediction without a pass of its own.

What runs is the user's own forward and backward pass. A dispatch mode writes its operations down and changes no bit of them; the
hooks that hear what the modules gave are the recorder's.
"""

from typing import Any

from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trimtab import _torch
from trimtab.errors import UsageError
from trimtab.prediction.listening import Listener
from trimtab.prediction.predict import checked, concluded
from trimtab.prediction.trace import Tracer
from trimtab.recording.facts import class_name
from trimtab.recording.walk import tensors
from trimtab.report.prediction import Prediction


class Ride:
    """One forward pass, and the gradients that come back from it.

    Args:
        model: The model whose forward call begins just now.
        args: What it was called with.
        kwargs: The same, by name.

    Raises:
        UsageError: Nothing can be foretold of this model, or nothing may be put around its operations; the message says why.

    Attributes:
        running: Whether its forward pass is still under way.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        checked(model)
        if any(is_traceable_wrapper_subclass(p) for p in model.parameters()):
            raise UsageError("the model's parameters are no plain tensors, whose operations cannot be followed")
        if _torch.dispatch_mode_is_active() or _torch.is_traced():
            raise UsageError("something else follows the operations of this pass")
        self._name = class_name(model)
        self._tracer = Tracer()
        self._listener = Listener(model, self._tracer)
        self._single = all(t.ndim == 0 or t.shape[0] == 1 for t in tensors((args, kwargs)))
        self.running = True
        self._listener.begin((args, kwargs))
        self._tracer.__enter__()  # type: ignore[no-untyped-call]  # torch's own lacks types

    @property
    def listening(self) -> bool:
        """Whether operations are written down; off while the recorder measures."""
        return self._tracer.listening

    @listening.setter
    def listening(self, on: bool) -> None:
        self._tracer.listening = on

    @property
    def answered(self) -> bool:
        """Whether a gradient has come back to the model's output."""
        return bool(self._listener.cotangents)

    def left(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A module of the model has run.

        Args:
            name: Its name.
            module: The module.
            args: What it was called with, in order.
            output: What it gave.
        """
        if self.running:
            self._listener.hear(name, module, args, output)
            if not name:
                self._listener.end(output)
                self._listener.outputs = []  # its graph is the user's

    def end(self) -> None:
        """The forward pass has ended, by an error perhaps."""
        if self.running:
            self.running = False
            self._tracer.listening = False
            self._tracer.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def backward_ended(self) -> None:
        """A backward pass has ended; the weights are still those of the pass."""
        if self.answered:
            self._listener.backward_ended()

    def prediction(self) -> Prediction:
        """What the pass should have given, beside what it gave."""
        return concluded(self._name, self._tracer, self._listener, single=self._single)
