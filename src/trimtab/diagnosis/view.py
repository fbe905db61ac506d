"""A record as the rules look at it: layers, the course of the loss, and a few questions they all ask."""

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from trimtab.diagnosis.attention import Course, courses
from trimtab.diagnosis.batch_norms import BatchNorm, batch_norms
from trimtab.diagnosis.expected import TimeFlow, predictions, time_flows
from trimtab.diagnosis.layers import Layer, layers, links_of, module_of
from trimtab.diagnosis.progress import Progress, progress
from trimtab.recording import Kind, Record, Series, Site, Units, split_call
from trimtab.report import Location
from trimtab.report.prediction import Prediction
from trimtab.report.prediction import Site as Expected

ADAPTIVE = {
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Adafactor",
    "SparseAdam",
    "Rprop",
}
"""Optimizers whose step does not grow with the gradient."""

FIRST = 10
"""Recorded updates at the start."""

LEARNED = 0.5
"""Share of the first loss (or of what a constant answer gets) that must be gone before a run counts as one that learns."""


GAP = 0.1
"""Share of the first loss (or of what a constant answer gets) by which a loss in evaluation mode is worth a word."""

TIMES = 1.2
"""And how many times the loss it could have."""


class View:
    """What the rules ask of a record.

    Attributes:
        record: The record.
    """

    def __init__(self, record: Record) -> None:
        self.record = record

    @cached_property
    def layers(self) -> list[Layer]:
        """The weight layers of every active model in forward order."""
        return layers(self.record)

    @cached_property
    def progress(self) -> Progress:
        """How the loss went."""
        return progress(self.record, self.constant_answer)

    @cached_property
    def batch_norms(self) -> list[BatchNorm]:
        """The batch normalizations of every active model in forward order."""
        return batch_norms(self.record)

    @cached_property
    def attentions(self) -> list[Course]:
        """The attentions of every active model in forward order, at the steps that were looked at in detail."""
        return courses(self)

    @cached_property
    def predictions(self) -> dict[int, Prediction]:
        """What theory expects of each model's sites; nothing of a model along whose first pass nobody rode."""
        return predictions(self.record)

    @cached_property
    def time_flows(self) -> list[TimeFlow]:
        """The gradient along time of every recurrent module that an optimizer trains."""
        return [
            flow
            for model, found in self.predictions.items()
            if model in self.active
            for flow in time_flows(model, found)
        ]

    def foretold(self, model: int, call: str) -> Expected | None:
        """What theory expects of a call's output, None where nothing is known.

        Args:
            model: Index of the model.
            call: Name of a module or of a later call of it.

        Returns:
            The site of the prediction.
        """
        return self._foretold.get((model, call))

    @cached_property
    def _foretold(self) -> dict[tuple[int, str], Expected]:
        return {(model, site.name): site for model, found in self.predictions.items() for site in found}

    @property
    def evaluation(self) -> dict[str, float]:
        """Losses of the trained setup by mode (`diagnosis.evaluation`); empty for a run that was watched only."""
        found: dict[str, float] = self.record.facts.get("evaluation") or {}
        return found

    def probe(self, name: str) -> dict[str, Any]:
        """What a probe found (`diagnosis.probes`); empty for a run without a setup, and where the probe could not be made."""
        found: dict[str, Any] = (self.record.facts.get("probes") or {}).get(name) or {}
        return {} if "declined" in found else found

    @cached_property
    def evaluates_worse(self) -> bool:
        """Whether running statistics cost the trained setup a good part of what it has learned."""
        losses = self.evaluation
        if not losses:
            return False
        best = min(losses["train"], losses["recalibrated"])
        lost = losses["evaluation"] - best
        return not lost <= GAP * abs(self.progress.baseline) and not losses["evaluation"] <= TIMES * best

    @cached_property
    def healed(self) -> bool:
        """Whether running statistics computed anew mend most of that."""
        losses = self.evaluation
        return self.evaluates_worse and losses["evaluation"] - losses["recalibrated"] > 0.5 * (
            losses["evaluation"] - min(losses["train"], losses["recalibrated"])
        )

    @property
    def constant_answer(self) -> float:
        """Loss of the best answer that does not look at the input: log K for K classes, the target's variance for squared errors."""
        if self.classes:
            return math.log(self.classes)
        target = self.loss.get("target", {})
        if (
            self.loss.get("kind") == "MseLoss"
            and target.get("std")
            and self.loss.get("operations", [])[:1] == ["MseLoss"]
        ):
            return float(target["std"]) ** 2
        return math.inf

    @cached_property
    def learned(self) -> bool:
        """Whether most of the first loss is gone, and nothing broke."""
        return self.progress.nonfinite is None and self.progress.gained >= LEARNED

    @cached_property
    def before_training(self) -> bool:
        """Whether the record is a look at a model before its first step: one backward pass, no update."""
        return not any(info["optimizers"] for info in self.record.info)

    @property
    def active(self) -> list[int]:
        """Models that an optimizer trains."""
        return [i for i, facts in enumerate(self.record.models) if facts.get("active", True)]

    @cached_property
    def adaptive(self) -> bool:
        """Whether every optimizer divides the gradient by its own size."""
        optimizers = self.record.optimizers
        return bool(optimizers) and all(ADAPTIVE & set(o.get("bases", ())) for o in optimizers)

    @property
    def optimizer(self) -> str:
        """The first optimizer's class as code."""
        return f"torch.optim.{self.record.optimizers[0]['class']}" if self.record.optimizers else "torch.optim.SGD"

    @cached_property
    def loss(self) -> dict[str, Any]:
        """How the loss was made at the first step that was looked at in detail; empty when that was not seen."""
        found = self.record.details.get("loss")
        facts: dict[str, Any] = found[0][1] if found else {}
        return facts

    def name(self, model: int, name: str) -> str:
        """A module's or parameter's name for people; one of a call is that of its module."""
        return self.record.label(model, self.module(model, name)) or self.record.models[model].get("label", "model")

    def module(self, model: int, call: str) -> str:
        """The module of a call ("relu" of "relu#2"); any other name as it is."""
        return module_of(call, self.record.models[model]["modules"])

    def names(self, layers: Iterable[Layer]) -> tuple[str, ...]:
        """The names of layers for people."""
        return tuple(self.name(layer.model, layer.name) for layer in layers)

    def split(self, key: str) -> tuple[int, str]:
        """Model and call of a key of the graph's ("0:body.2")."""
        model, _, name = key.partition(":")
        return int(model), name

    def series(self, model: int, name: str, kind: Kind) -> Series | None:
        """Readings of a site, None when there are none."""
        site = self.record.site(model, self.module(model, name), kind)
        found = None if site is None else self.record.series(site)
        return found if found is not None and len(found) else None

    def units(self, model: int, name: str, kind: Kind = "output") -> list[Units]:
        """Unit summaries of one call of a module by step."""
        module = self.module(model, name)
        site = self.record.site(model, module, kind)
        call = 1 if module == name else split_call(name)[1]
        found = [] if site is None else self.record.units.get(site.index, [])
        return [look for look in found if look.call == call]

    def sites(self, *kinds: Kind) -> Iterator[Site]:
        """Sites of these kinds of all active models."""
        active = set(self.active)
        return (site for site in self.record.sites if site.kind in kinds and site.model in active)

    def forward_order(self, model: int) -> list[str]:
        """Modules in the order in which they ran."""
        return list(dict.fromkeys(self.module(model, call) for call in links_of(self.record, model)))

    def place(self, *whats: str) -> Location | None:
        """The line of the user's code where something happens: "forward", "backward" or "step"; the first one known."""
        places = self.record.facts.get("places", {})
        for what in whats:
            if what in places:
                return Location(*places[what])
        return None

    def class_of(self, model: int, name: str) -> str:
        """The class of a module, or of a call's module; "" when there is no such module."""
        facts = self.record.models[model]["modules"].get(self.module(model, name), {})
        found: str = facts.get("class", "")
        return found

    @cached_property
    def classes(self) -> int | None:
        """Number of classes of a classification loss, None for other losses."""
        prediction = self.loss.get("prediction", {})
        plain = self.loss.get("operations", [])[:1] in (["NllLoss"], ["NllLoss2D"])
        if plain and len(prediction.get("shape", [])) >= 2:
            return int(prediction["shape"][1])
        return None

    @cached_property
    def first_loss(self) -> float:
        """The very first loss, NaN when none was seen."""
        seen = self.record.losses[self.record.loss_seen]
        return float(seen[0]) if len(seen) else math.nan

    def movement(self, layer: Layer, steps: int | None = None) -> float:
        """Length of the path of a layer's weight, relative to the weight: median relative update times steps.

        The largest of the first updates counts where it is larger: a layer that moved until something else broke has moved.

        Args:
            layer: The layer.
            steps: Over how many steps; None for those of the run.

        Returns:
            The length, 0 where no update was seen.
        """
        if not len(layer.updates) or not len(layer.values):
            return 0.0
        updates = relative_updates(layer)
        updates = updates[np.isfinite(updates)]  # a weight that starts at zero has no relative update yet
        steps = self.record.step_count if steps is None else steps
        if not len(updates):
            return 0.0
        return max(float(np.median(updates)), float(updates[:FIRST].max())) * steps


def relative_updates(layer: Layer) -> np.ndarray:
    """Norm of each recorded update of a layer's weight over the norm of the weight.

    Args:
        layer: The layer.

    Returns:
        One number per recorded update, NaN where the weight is zero or not finite.
    """
    steps, in_values, in_updates = np.intersect1d(layer.values.steps, layer.updates.steps, return_indices=True)
    del steps
    with np.errstate(divide="ignore", invalid="ignore"):
        relative: np.ndarray = layer.updates.norm[in_updates] / layer.values.norm[in_values]
    return relative
