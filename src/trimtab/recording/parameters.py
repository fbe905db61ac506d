"""Reading parameters: their values, their gradients before clipping and as used, and what a step adds to them."""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab._distributed import first_holder, is_copy, is_sum_pending, is_whole, local
from trimtab.recording.facts import distinct_units, readable
from trimtab.recording.record import Kind
from trimtab.recording.sites import SiteTable
from trimtab.recording.watched import WatchedModel
from trimtab.recording.window import Deposit, Window
from trimtab.stats import Tape, is_sampled, sample_blocks

KINDS: tuple[Kind, ...] = ("parameter", "raw-gradient", "parameter-gradient", "update")


class ParameterReader:
    """Knows every parameter's sites and reads them into an open window.

    Attributes:
        changed: Whether parameters have come or gone since somebody last set it to False.
    """

    def __init__(self, models: list[WatchedModel], sites: SiteTable, tape: Tape) -> None:
        self._models = models
        self._table = sites
        self._tape = tape
        self._sites: dict[int, tuple[int, int, int, int]] = {}
        self._known: list[tuple[weakref.ref[Tensor], tuple[int, int, int, int]]] = []
        self._shards: dict[int, int] = {}
        self._copies: set[int] = set()
        self._strangers: dict[int, weakref.ref[Tensor]] = {}
        self._marks: dict[int, tuple[int, int]] = {}
        self._before: dict[int, Tensor] = {}
        self._updated: dict[int, weakref.ref[Tensor]] = {}
        self.changed = False

    def refresh(self) -> bool:
        """Look at the models afresh: parameters may have come or been replaced.

        Returns:
            Whether that could be done: not inside `functional_call`, with weights that last for the call.
        """
        found = [(watched, name, p) for watched in self._models for name, p, _ in watched.named_parameters()]
        if self._known and not all(isinstance(p, nn.Parameter) or watched.adopted for watched, _, p in found):
            return False
        before = set(self._sites)
        self._sites.clear()
        self._known.clear()
        self._shards.clear()
        self._copies.clear()
        for watched, name, parameter in found:
            if id(parameter) not in self._sites:
                sites = tuple(self._table.index(watched.index, name, kind) for kind in KINDS)
                self._sites[id(parameter)] = sites  # type: ignore[assignment]
                self._known.append((weakref.ref(parameter), sites))  # type: ignore[arg-type]
                self._strangers.pop(id(parameter), None)
                if not is_whole(parameter):
                    if is_copy(parameter):
                        self._copies.add(id(parameter))
                    else:
                        self._shards[id(parameter)] = first_holder(parameter)
        if set(self._sites) != before:
            self.changed = True
            for watched in self._models:
                watched.forget_structure()
        return True

    def forget(self) -> None:
        """Let go of the copies of a step that has ended."""
        self._before.clear()

    def mark(self) -> None:
        """A backward pass begins: note the gradients that are there already, to tell what it leaves from what was left."""
        self._marks.clear()
        for reference in self._all():
            parameter = reference()
            grad = None if parameter is None else parameter.grad
            if grad is not None:
                self._marks[id(parameter)] = (id(grad), grad._version)

    def _all(self) -> Iterator["weakref.ref[Tensor]"]:
        yield from (reference for reference, _ in self._known)
        yield from self._strangers.values()

    def read_raw(self, window: Window) -> bool:
        """The backward pass has ended: gradients are summed over ranks and not yet clipped.

        Args:
            window: The open step.

        Returns:
            Whether the pass has left anything in a gradient.
        """
        deposits = self._deposits()
        if not deposits:  # the model may have got new parameters
            self.refresh()
            deposits = self._deposits()
        window.deposits |= deposits
        if window.recording:
            for parameter, (reference, _, _) in deposits.items():
                held, sites = reference(), self._sites.get(parameter)
                if held is not None and held.grad is not None and sites is not None and self._is_read(held, held.grad):
                    window.raw[sites[1]] = self._tape.measure(held.grad)
        return bool(deposits)

    def _is_read(self, parameter: Tensor, grad: Tensor | None) -> bool:
        """Whether this rank reads a parameter: not a shard that another reads as well, nor one whose gradient is yet to be added up."""
        return id(parameter) not in self._copies and (grad is None or not is_sum_pending(grad))

    def _deposits(self) -> dict[int, Deposit]:
        found: dict[int, Deposit] = {}
        for reference in self._all():
            parameter = reference()
            grad = None if parameter is None else parameter.grad
            if grad is not None:
                key, now = id(parameter), (id(grad), grad._version)
                if self._marks.get(key) != now:
                    found[key] = (reference, *now)
        return found

    def set_aside(self, window: Window, stepped: list[Optimizer], idle: list[Optimizer]) -> None:
        """Drop what the passes have left in parameters that only an optimizer which did not step trains.

        A generator's loss also reaches the critic: what it leaves there is no gradient of the critic's own, and is cleared before one
        is taken. Where it is not, it is read again at the step that uses it.

        Args:
            window: The step.
            stepped: The optimizers that have stepped in it.
            idle: Those that have not, but have before.
        """
        used = {id(p) for optimizer in stepped for group in optimizer.param_groups for p in group["params"]}
        for optimizer in idle:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in used and id(parameter) in self._sites:
                        window.raw.pop(self._sites[id(parameter)][1], None)

    def thrown_away(self, window: Window) -> bool:
        """Whether the gradients that earlier passes of this window left have been cleared since."""
        for reference, identity, version in window.deposits.values():
            parameter = reference()
            grad = None if parameter is None else parameter.grad
            if grad is not None and id(grad) == identity and (grad._version == version or bool(local(grad).any())):
                return False
        return bool(window.deposits)

    def meet(self, optimizer: Optimizer) -> list[Tensor]:
        """Know an optimizer's parameters, also those that no model has: what a pass leaves in them counts.

        Args:
            optimizer: Any optimizer.

        Returns:
            Its parameters.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any(id(p) not in self._sites and id(p) not in self._strangers for p in parameters):
            self.refresh()
            self._strangers |= {id(p): weakref.ref(p) for p in parameters if id(p) not in self._sites}
        return parameters

    def knows(self, watched: WatchedModel, module: nn.Module) -> bool:
        """Whether the weights of a module are known, judged by the first: `functional_call` puts others in the place of its own.

        Args:
            watched: Its model, which adopts weights that an optimizer trains.
            module: The model, or a part of it.

        Returns:
            Whether they are, or are known from now on.
        """
        first = next(module.parameters(), None)
        if first is not None and id(first) in self._strangers and module is watched.model:
            watched.adopt(module, self._strangers)
            self.refresh()
        return first is None or id(first) in self._sites

    def before_step(self, optimizer: Optimizer, window: Window) -> None:
        """The gradients are as the optimizer will use them, the parameters as the forward call used them."""
        scale: Any = getattr(optimizer, "grad_scale", None)
        divisor = None if scale is None else float(scale)  # fused optimizers unscale inside their own kernel
        for parameter in self.meet(optimizer):
            sites = self._sites.get(id(parameter))
            if sites is not None:
                self._read(parameter, sites, window, divisor)

    def _read(self, parameter: Tensor, sites: tuple[int, int, int, int], window: Window, divisor: float | None) -> None:
        grad = parameter.grad
        if not self._is_read(parameter, grad):
            return
        if id(parameter) in self._shards:
            window.spread |= dict.fromkeys(sites, self._shards[id(parameter)])
        if grad is not None and grad.layout == torch.sparse_coo:
            window.note_rows(sites[2], grad)
        if grad is not None:  # read again: neither `grad.data` nor a gradient scaler counts its version up
            window.parameters[sites[2]] = self._tape.measure(grad)
            if divisor:
                window.scales[sites[2]] = divisor
        if readable(parameter):
            window.parameters[sites[0]] = self._tape.measure(parameter)
            if not window.closure or id(parameter) not in self._before:  # a closure's later runs see it under way
                self._before[id(parameter)] = _looked_at(parameter).clone()

    def after_step(self, optimizer: Optimizer, window: Window) -> None:
        """The parameters have been updated."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                before = self._before.pop(id(parameter), None)
                if parameter.grad is not None:
                    self._updated[id(parameter)] = weakref.ref(parameter)
                if before is not None:
                    row = self._tape.measure_difference(_looked_at(parameter), before)
                    site = self._sites[id(parameter)][3]
                    window.parameters[site] = row
                    if before.numel() < (size := local(parameter).numel()):
                        window.samples[site] = size

    def was_updated(self, parameter: Tensor) -> bool:
        """Whether an optimizer has stepped this parameter with a gradient, at a recorded step."""
        reference = self._updated.get(id(parameter))
        return reference is not None and reference() is parameter

    def distinct(self) -> dict[str, list[int]]:
        """Output units with weights of their own, and all output units, of every weight."""
        found = {}
        for watched in self._models:
            for name, parameter, _ in watched.named_parameters():
                if parameter.ndim > 1 and readable(parameter):
                    found[f"{watched.index}:{name}"] = [distinct_units(parameter), local(parameter).shape[0]]
        return found


def _looked_at(parameter: Tensor) -> Tensor:
    """What the update of a parameter is measured on: all of it, or blocks of a large one."""
    values = local(parameter.detach())
    return sample_blocks(values) if is_sampled(values) else values
