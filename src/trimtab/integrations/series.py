"""The series of a run: which numbers of a record go to a tracker, and under which names. They are the same for every tracker.

`trimtab/KIND/LAYER`, where a layer is a module with parameters of its own, by the name that it has in the model. docs/integrations.md
lists them with their units.
"""

import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from trimtab.integrations._moments import Moment, Source
from trimtab.recording import Record
from trimtab.runner import Watch

Run: TypeAlias = Watch | Record | str | Path
Point: TypeAlias = tuple[int, str, float]
"""Step, name and value."""

PREFIX = "trimtab"
MEASURED = {"output": "output_rms", "gradient": "gradient_rms"}
"""Name of the series by kind of site: of a module."""

OWNED = {"parameter": "weight_rms", "parameter-gradient": "weight_gradient_rms"}
"""The same of all parameters that a module has itself, put together."""

NORMS = {"parameter-gradient": "gradient_norm", "raw-gradient": "gradient_norm_unclipped"}
"""The same of all parameters of a model."""


class Series:
    """The series of one run, each step once.

    Args:
        layers: Patterns as of a shell ("encoder.*", "*.fc1") of the layers to tell; None for every module with parameters of its own.

    Raises:
        TypeError: `layers` is no sequence of strings.
    """

    def __init__(self, layers: Sequence[str] | None = None) -> None:
        if layers is not None and (isinstance(layers, str) or not all(isinstance(name, str) for name in layers)):
            raise TypeError(f'layers must be a list of patterns such as ["encoder.*"], or None, not {layers!r}')
        self._patterns = None if layers is None else tuple(layers)
        self._source = Source()
        self._plan: _Plan | None = None

    def new(self, run: Run) -> Iterator[Point]:
        """What has come since the last call.

        Args:
            run: A watch, a record, or the path of a record's file; each time the same run.

        Yields:
            Points, step by step.
        """
        for moment in self._source.new(run):
            if self._plan is None or self._plan.sites is not self._source.sites:
                self._plan = _Plan(self._source, self._patterns)
            yield from self._plan.points(moment)


def series(run: Run, layers: Sequence[str] | None = None) -> list[Point]:
    """All series of a run so far.

    Args:
        run: A watch, a record, or the path of a record's file.
        layers: As for `Series`.

    Returns:
        Step, name and value of every point, step by step.
    """
    return list(Series(layers).new(run))


class _Plan:
    """Which sites go into which series, settled once as long as no site is added."""

    def __init__(self, source: Source, patterns: tuple[str, ...] | None) -> None:
        self.sites = source.sites
        self._patterns = patterns
        self._several = sum(facts.get("active", True) for facts in source.models) > 1
        self._rates = _optimizer_names(source.optimizers)
        self._rms: dict[str, list[int]] = {}
        self._norms: dict[str, list[int]] = {}
        self._ratios: dict[str, list[tuple[int, int]]] = {}
        self._silent: dict[int, str] = {}
        updates = {(site.model, site.name): site.index for site in self.sites if site.kind == "update"}
        owners = [_owners(facts) for facts in source.models]
        for site in self.sites:
            if site.model >= len(source.models):
                continue  # of a model that joined after the facts were written
            facts, owner = source.models[site.model], owners[site.model]
            own = facts.get("label") or f"model{site.model}"
            if site.kind in NORMS:
                self._norms.setdefault(f"{NORMS[site.kind]}/{own}" if self._several else NORMS[site.kind], []).append(
                    site.index
                )
            if site.kind in OWNED and site.name in owner:
                label = self._label(own, owner[site.name])
                if self._wanted(label, True):
                    self._rms.setdefault(f"{OWNED[site.kind]}/{label}", []).append(site.index)
                    update = updates.get((site.model, site.name))
                    if site.kind == "parameter" and update is not None:
                        self._ratios.setdefault(f"update_ratio/{label}", []).append((update, site.index))
            elif site.kind in MEASURED and site.name in facts["modules"]:
                has_parameters = site.name in owner.values() or bool(facts["modules"][site.name]["parameters"])
                label = self._label(own, site.name)
                if self._wanted(label, has_parameters):
                    self._rms[f"{MEASURED[site.kind]}/{label}"] = [site.index]
                unit = site.kind == "output" and facts["modules"][site.name]["leaf"] and not has_parameters
                if unit and self._wanted(label, True):
                    self._silent[site.index] = f"silent_units/{label}"

    def _label(self, own: str, layer: str) -> str:
        """A layer's name: with its model's where there are several, and its model's alone for the model itself."""
        return ".".join(filter(None, (own, layer))) if self._several or not layer else layer

    def _wanted(self, label: str, by_default: bool) -> bool:
        return by_default if self._patterns is None else any(fnmatchcase(label, pattern) for pattern in self._patterns)

    def points(self, moment: Moment) -> Iterator[Point]:
        """The points of one step: only what was seen in it."""
        for name, value in self._values(moment):
            yield moment.step, f"{PREFIX}/{name}", float(value)

    def _values(self, moment: Moment) -> Iterator[tuple[str, float]]:
        rows = np.zeros((len(self.sites), 7))
        known = moment.readings[: len(rows)]
        rows[: len(known)] = known
        counts, nonfinite = rows[:, 0], rows[:, 6]
        squares = np.where(
            counts > 0, counts * (rows[:, 1] ** 2 + rows[:, 2] ** 2), np.where(nonfinite > 0, math.nan, 0.0)
        )
        seen = (counts > 0) | (nonfinite > 0)
        if moment.loss is not None:
            yield "loss", moment.loss
        for names, rates in zip(self._rates, moment.rates, strict=False):
            yield from zip(names, rates, strict=False)
        yield "nonfinite", nonfinite.sum()
        for name, sites in self._norms.items():
            if seen[sites].any():
                yield name, math.sqrt(squares[sites].sum())
        for name, sites in self._rms.items():
            if seen[sites].any():
                count = counts[sites].sum()
                yield name, math.sqrt(squares[sites].sum() / count) if count else math.nan
        for name, pairs in self._ratios.items():
            both = np.array([pair for pair in pairs if seen[list(pair)].all()], dtype=int).reshape(-1, 2)
            moved, size = squares[both].sum(axis=0)
            if size > 0:
                yield name, math.sqrt(moved / size)
        for site, share in moment.silent.items():
            if site in self._silent:
                yield self._silent[site], share


def _owners(facts: dict[str, Any]) -> dict[str, str]:
    """The module that each parameter belongs to; of a parametrized one, the module around the parametrization."""
    found = {}
    for parameter in facts["parameters"]:
        owner = parameter.rpartition(".")[0]
        while owner and owner not in facts["modules"]:
            owner = owner.rpartition(".")[0]
        found[parameter] = owner
    return found


def _optimizer_names(optimizers: list[dict[str, Any]]) -> list[list[str]]:
    """Names of the learning rates by optimizer and group: the optimizer's, and the group's number where there are several."""
    names: list[list[str]] = []
    taken: dict[str, int] = {}
    for facts in optimizers:
        own = facts.get("label") or facts["class"]
        taken[own] = taken.get(own, 0) + 1
        name = f"learning_rate/{own}" if taken[own] == 1 else f"learning_rate/{own}-{taken[own]}"
        groups = len(facts["groups"])
        names.append([name] if groups < 2 else [f"{name}/{i}" for i in range(groups)])
    return names
