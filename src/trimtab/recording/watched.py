"""One watched model: its named modules and parameters, and the hooks that are put on and taken off at each recorded step."""

import weakref
from collections.abc import Callable, Container, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from trimtab import _distributed
from trimtab.recording import facts
from trimtab.recording.taps import End, Entry, Listener, Tap


class WatchedModel:
    """A model, held weakly.

    Attributes:
        index: Its number in the record.
        label: What the user calls it.
        classes: Its class name.
        active: Whether it is watched at all; a model that nothing trains is left alone.
        absorbed: Whether it has turned out to be a part of another watched model.
        trained: Whether an optimizer is known to train it, or to have trained it.
        adopted: Weights by name that `functional_call` puts in the place of the model's own, and that an optimizer trains.
    """

    def __init__(self, listener: Listener, model: nn.Module, index: int, label: str) -> None:
        self.index = index
        self.label = label
        self.classes = facts.class_name(model)
        self._model = weakref.ref(model)
        self._listener = weakref.ref(listener)
        self._taps: list[tuple[weakref.ref[nn.Module], Tap]] | None = None
        self._shares: tuple[int, int, bool] | None = None
        self._handles: list[Any] = []
        self._entry_handles: list[Any] = []
        self._aside: Any = None
        self._entries: list[weakref.ref[nn.Module]] = [weakref.ref(model), *(weakref.ref(m) for m in model.children())]
        self.active = True
        self.absorbed = False
        self.trained = False
        self.adopted: dict[str, weakref.ref[Tensor]] = {}
        self._facts: dict[str, Any] = {"modules": {}, "parameters": {}}

    @property
    def model(self) -> nn.Module | None:
        """The model, None when the user has let go of it."""
        return self._model()

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Name and module of everything worth a tap."""
        model = self.model
        if model is not None:
            yield from facts.named_modules(model)

    def named_parameters(self) -> Iterator[tuple[str, Tensor, bool]]:
        """Name, parameter and whether `model.parameters()` knows it."""
        model = self.model
        if model is None:
            return
        registered = {id(p) for p in model.parameters()}
        seen: set[int] = set()
        for owner, module in self._all_modules(model):
            for name, own in module.named_parameters(recurse=False):
                full = f"{owner}.{name}" if owner else name
                adopted = self.adopted[full]() if full in self.adopted else None
                parameter = own if adopted is None else adopted
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield full, parameter, adopted is not None or id(own) in registered

    def adopt(self, module: nn.Module, trained: Container[int]) -> None:
        """The model runs with weights that are not its own: those of them that are trained are its own from now on.

        Args:
            module: The model, with these weights in place.
            trained: Identities of parameters that an optimizer has.
        """
        wrapped = facts.wrapping(module)
        for name, parameter in module.named_parameters():
            if id(parameter) in trained:
                self.adopted[facts.plain_name(name, wrapped)] = weakref.ref(parameter)

    def _all_modules(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        seen: set[int] = set()
        for name, module in self.named_modules():
            seen.add(id(module))
            yield name, module
        wrapped = facts.wrapping(model)
        for name, module in model.named_modules():  # the inside of parametrizations, which has parameters but no taps
            if id(module) not in seen:
                yield facts.plain_name(name, wrapped), module

    def entry(self, module: nn.Module) -> Entry | None:
        """The hook for forward calls of `module`, where that is a part of this model."""
        listener = self._listener()
        name = next((name for name, part in self.named_modules() if part is module), None)
        return None if listener is None or name is None else Entry(listener, module, self.index, name)

    def end(self, module: nn.Module) -> End | None:
        """The hook that tells when a forward call of `module`, the model itself, has ended."""
        listener = self._listener()
        return None if listener is None else End(listener, module, self.index, "")

    def add_entry(self, module: nn.Module) -> None:
        """Forward calls of `module` come from outside the model."""
        if all(reference() is not module for reference in self._entries):
            self._entries.append(weakref.ref(module))
            self.detach_entries()

    def only_root_enters(self) -> None:
        """The root itself has been called: its children are called by it."""
        if len(self._entries) > 1:
            self._entries = self._entries[:1]
            self.detach_entries()

    def attach_entries(self) -> None:
        """Listen for forward calls of the root, and of its children as long as the root itself was never called."""
        if self._entry_handles or not self.active:
            return
        for reference in self._entries:
            module = reference()
            hook = None if module is None else self.entry(module)
            if module is not None and hook is not None:
                self._entry_handles.append(module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True))

    def detach_entries(self) -> None:
        """Stop listening for forward calls."""
        for handle in self._entry_handles:
            handle.remove()
        self._entry_handles.clear()
        if self._aside is not None:
            self._aside.remove()
            self._aside = None

    def step_aside(self, module: nn.Module) -> None:
        """Let one forward call of `module`, which looks at its own hooks, run as if it had none."""

        def back(called: nn.Module, args: Any, output: Any) -> None:
            if called is module:
                self.detach_entries()
                self.attach_entries()

        self.detach_entries()
        self._aside = register_module_forward_hook(back, always_call=True)

    def attach_taps(self) -> None:
        """Put a tap on every module."""
        listener = self._listener()
        if self._handles or listener is None or not self.active:
            return
        if self._taps is None:
            self._taps = [
                (weakref.ref(module), Tap(listener, module, self.index, name))
                for name, module in self.named_modules()
                if not _distributed.is_wrapper(module)  # which may hand on a copy of what the module inside gave
            ]
        for reference, tap in self._taps:
            module = reference()
            if module is not None:
                self._handles.append(module.register_forward_hook(tap))

    def shares(self) -> tuple[int, int, bool]:
        """How a distributed run shares the model out.

        Returns:
            Ranks that average the gradients of its shards, this rank's place among them, and whether ranks compute parts of one and
            the same output.
        """
        if self._shares is None:
            copies, place = max((_distributed.share(module) for _, module in self.named_modules()), default=(1, 0))
            over = max((_distributed.mesh_size(p) for _, p, _ in self.named_parameters()), default=1)
            self._shares = copies, place, over > copies
        return self._shares

    def detach_taps(self) -> None:
        """Take all taps off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def forget_structure(self) -> None:
        """Look at the modules afresh at the next recorded step: the model has changed."""
        self._taps = None
        self._shares = None

    def facts(self, optimized: set[int], was_updated: Callable[[Tensor], bool]) -> dict[str, Any]:
        """The model as plain data; of one that the user has let go of, what was last known.

        Args:
            optimized: Identities of the parameters that an optimizer has.
            was_updated: Whether a parameter has been trained under watch.

        Returns:
            Label, class, modules and parameters.
        """
        if self.model is not None:
            before, registered = self._facts["parameters"], {}
            for name, parameter, known in self.named_parameters():
                owner, _, _ = name.rpartition(".")
                trained = id(parameter) in optimized or before.get(name, {}).get("optimized", False)
                registered[name] = facts.parameter_facts(parameter, owner, known, trained, was_updated(parameter))
            modules = {name: facts.module_facts(module) for name, module in self.named_modules()}
            self._facts = {"modules": modules, "parameters": registered}
            self.trained |= any(parameter["optimized"] for parameter in registered.values())
        return {"label": self.label, "class": self.classes, "active": self.active} | self._facts
