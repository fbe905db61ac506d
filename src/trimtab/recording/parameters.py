"""Reading parameters: their values, their gradients before clipping and as used, and what a step adds to them."""

import weakref
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from trimtab.recording.facts import distinct_units, readable
from trimtab.recording.record import Kind
from trimtab.recording.sites import SiteTable
from trimtab.recording.watched import WatchedModel
from trimtab.recording.window import Window
from trimtab.stats import Tape, sample_blocks

KINDS: tuple[Kind, ...] = ("parameter", "raw-gradient", "parameter-gradient", "update")


class ParameterReader:
    """Knows every parameter's sites and reads them into an open window."""

    def __init__(self, models: list[WatchedModel], sites: SiteTable, tape: Tape) -> None:
        self._models = models
        self._table = sites
        self._tape = tape
        self._sites: dict[int, tuple[int, int, int, int]] = {}
        self._known: list[tuple[weakref.ref[Tensor], tuple[int, int, int, int]]] = []
        self._before: dict[int, Tensor] = {}

    def refresh(self) -> None:
        """Look at the models afresh: parameters may have come or been replaced."""
        self._sites.clear()
        self._known.clear()
        for watched in self._models:
            for name, parameter, _ in watched.named_parameters():
                if id(parameter) not in self._sites:
                    sites = tuple(self._table.index(watched.index, name, kind) for kind in KINDS)
                    self._sites[id(parameter)] = sites  # type: ignore[assignment]
                    self._known.append((weakref.ref(parameter), sites))  # type: ignore[arg-type]

    def forget(self) -> None:
        """Let go of the copies of a step that has ended."""
        self._before.clear()

    def owns(self, parameter: Tensor) -> bool:
        """Whether a watched model has this parameter."""
        return id(parameter) in self._sites

    def read_raw(self, window: Window) -> None:
        """The backward pass has ended: gradients are summed over ranks and not yet clipped."""
        measure, raw = self._tape.measure, window.raw
        for reference, sites in self._known:
            parameter = reference()
            grad = None if parameter is None else parameter.grad
            if grad is not None:
                raw[sites[1]] = (measure(grad), id(grad), grad._version)

    def thrown_away(self, window: Window) -> bool:
        """Whether the gradients that earlier passes of this window left have been cleared since."""
        seen = False
        for reference, sites in self._known:
            entry = window.raw.get(sites[1])
            parameter = reference()
            if entry is None or parameter is None:
                continue
            grad = parameter.grad
            if grad is not None and id(grad) == entry[1] and (grad._version == entry[2] or bool(grad.any())):
                return False
            seen = True
        return seen

    def before_step(self, optimizer: Optimizer, window: Window) -> None:
        """The gradients are as the optimizer will use them, the parameters as the forward call used them."""
        scale: Any = getattr(optimizer, "grad_scale", None)
        divisor = None if scale is None else float(scale)  # fused optimizers unscale inside their own kernel
        if any(id(p) not in self._sites for group in optimizer.param_groups for p in group["params"]):
            self.refresh()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                sites = self._sites.get(id(parameter))
                if sites is not None:
                    self._read(parameter, sites, window, divisor)

    def _read(self, parameter: Tensor, sites: tuple[int, int, int, int], window: Window, divisor: float | None) -> None:
        grad = parameter.grad
        if grad is not None:
            raw = window.raw.get(sites[1])
            same = raw is not None and raw[1] == id(grad) and raw[2] == grad._version
            window.parameters[sites[2]] = raw[0] if raw is not None and same else self._tape.measure(grad)
            if divisor:
                window.scales[sites[2]] = divisor
        if readable(parameter):
            window.parameters[sites[0]] = self._tape.measure(parameter)
            self._before[id(parameter)] = sample_blocks(parameter.detach()).clone()

    def after_step(self, optimizer: Optimizer, window: Window) -> None:
        """The parameters have been updated."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                before = self._before.pop(id(parameter), None)
                if before is not None:
                    row = self._tape.measure_difference(sample_blocks(parameter.detach()), before)
                    window.parameters[self._sites[id(parameter)][3]] = row

    def distinct(self) -> dict[str, list[int]]:
        """Output units with weights of their own, and all output units, of every weight."""
        found = {}
        for watched in self._models:
            for name, parameter, _ in watched.named_parameters():
                if parameter.ndim > 1 and readable(parameter):
                    found[f"{watched.index}:{name}"] = [distinct_units(parameter), parameter.shape[0]]
        return found
