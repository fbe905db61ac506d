"""What a running record says just now, read as cheaply as it can be: nothing is read twice, and of the readings the last ones only."""

import json
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trimtab.diagnosis.layers import weight_of
from trimtab.recording import Recorder, Store
from trimtab.recording.store import from_disk

QUANTITIES = ("signal", "gradient", "update")
"""Root mean square of a layer's output and of the gradient there, and of its weight's update over the weight's own."""

BUCKETS = 256
"""Points of the course of the loss."""

PAST = 8
"""Looks over which the speed is averaged."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Signal, gradient and update size of each layer at one recorded step.

    Attributes:
        step: The step. What did not run in it is shown as it was when it ran last.
        names: The layers in the order in which they ran first.
        sizes: By quantity, one number a layer; None where it was not seen, NaN where it holds values that are not finite.
    """

    step: int
    names: tuple[str, ...]
    sizes: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A run at one moment.

    Attributes:
        steps: Steps that have ended.
        loss: The last one, None where none was seen.
        losses: Their course over the run, means of equally many; NaN where none of them is finite.
        rate: Learning rate of the first group.
        speed: Steps a second, None as long as it is not known.
        watching: Share of the time that watching takes.
        recorded: Recorded steps of this session.
        seconds: Since the run began.
        flow: At the last recorded step, None before the first.
    """

    steps: int
    loss: float | None = None
    losses: Sequence[float] = ()
    rate: float | None = None
    speed: float | None = None
    watching: float = 0.0
    recorded: int = 0
    seconds: float = 0.0
    flow: Flow | None = None


@dataclass
class Course:
    """Means of a series whose length nobody knows: where there are too many, each two become one."""

    each: int = 1
    means: list[float] = field(default_factory=list)
    _open: list[float] = field(default_factory=list)

    def add(self, values: Sequence[float]) -> None:
        """Go on with the series.

        Args:
            values: Numbers, finite or not.
        """
        self._open += values
        while len(self._open) >= self.each:
            whole = len(self._open) // self.each * self.each
            self.means += _means(self._open[:whole], self.each)
            del self._open[:whole]
            while len(self.means) > BUCKETS:
                if len(self.means) % 2:
                    self._open[:0] = [self.means.pop()] * self.each
                self.means = _means(self.means, 2)
                self.each *= 2

    @property
    def points(self) -> list[float]:
        """The means so far, the last one of what has come since."""
        return self.means + _means(self._open, len(self._open))


def _means(values: list[float], each: int) -> list[float]:
    """Means of the finite ones of each few; NaN where none is."""
    if not values:
        return []
    block = np.array(values).reshape(-1, each)
    finite = np.isfinite(block)
    with np.errstate(all="ignore"):
        means: list[float] = (np.where(finite, block, 0.0).sum(1) / finite.sum(1)).tolist()
    return means


class Gauges:
    """Reads a run that goes on, from its recorder and its store.

    Args:
        recorder: The run's recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recorded = 0
        self._course = Course()
        self._last_loss = recorder.store.past.step - 1
        self._flow: Flow | None = None
        self._plan = _Plan()
        self._times: deque[tuple[float, int]] = deque(maxlen=PAST)

    def step_ended(self, step: int) -> None:
        """Count a step."""
        self._recorded += self._recorder.schedule.records(step)

    def read(self, step: int) -> Reading:
        """Look at the run.

        Args:
            step: The step that has just ended.

        Returns:
            What it says.
        """
        recorder = self._recorder
        loss, rate = recorder.newest()
        self._read_losses(recorder.store)
        self._read_flow(recorder.store)
        self._times.append((time.perf_counter(), step))
        (before, first), (now, _) = self._times[0], self._times[-1]
        seconds = recorder.seconds
        return Reading(
            steps=step + 1,
            loss=loss,
            losses=self._course.points,
            rate=rate,
            speed=(step - first) / (now - before) if step > first else None,
            watching=recorder.spent / seconds if seconds > 0 else 0.0,
            recorded=self._recorded,
            seconds=seconds,
            flow=self._flow,
        )

    def _read_losses(self, store: Store) -> None:
        table = "SELECT step, loss FROM losses WHERE step > ? AND loss IS NOT NULL ORDER BY step"
        found = store.connection.execute(table, (self._last_loss,)).fetchall()
        if found:
            self._last_loss = found[-1][0]
            self._course.add([float(loss) for _, loss in found])  # what is not finite may be a word

    def _read_flow(self, store: Store) -> None:
        ask = store.connection.execute
        last = ask("SELECT max(step) FROM steps").fetchone()[0]
        if last is None or (self._flow is not None and last == self._flow.step):
            return
        readings = from_disk(ask("SELECT readings FROM steps WHERE step = ?", (last,)).fetchone()[0])
        if len(readings) != self._plan.sites:
            self._plan = _Plan.of(store, len(readings))
        self._flow = self._plan.flow(last, readings, self._flow)


@dataclass(frozen=True)
class _Plan:
    """Which sites make up a layer's numbers, settled as long as no site is added.

    Attributes:
        sites: Their number.
        names: The layers.
        places: By quantity, the site of each layer; -1 where there is none.
        weights: The site of each layer's weight.
    """

    sites: int = 0
    names: tuple[str, ...] = ()
    places: dict[str, np.ndarray] = field(default_factory=dict)
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))

    @classmethod
    def of(cls, store: Store, sites: int) -> "_Plan":
        ask = store.connection.execute
        index = {tuple(key): i for i, *key in ask("SELECT id, model, name, kind FROM sites ORDER BY id")}
        models = json.loads(ask("SELECT value FROM facts WHERE key = 'models'").fetchone()[0])
        several = sum(facts.get("active", True) for facts in models) > 1
        found: list[tuple[int, str, list[int]]] = []
        for model, facts in enumerate(models):
            if facts.get("active", True):
                found += _layers(index, model, facts, several)
        found.sort()
        columns = np.array([places for _, _, places in found], dtype=int).reshape(-1, 4)
        places = dict(zip(QUANTITIES, columns.T, strict=False))
        return cls(sites, tuple(name for _, name, _ in found), places, columns[:, 3])

    def flow(self, step: int, readings: np.ndarray, before: Flow | None) -> Flow:
        """The flow at a step; of layers that did not run in it (a generator's while its critic learns) that of before."""
        count, mean, std, broken = readings[:, 0], readings[:, 1], readings[:, 2], readings[:, 6]
        with np.errstate(all="ignore"):
            rms = np.sqrt(mean**2 + std**2)
        rms[broken > 0] = np.nan
        rms = np.append(rms, 0.0)  # of no site at all
        seen = np.append((count > 0) | (broken > 0), False)
        sizes: dict[str, list[float | None]] = {}
        for quantity, places in self.places.items():
            values, known = rms[places], seen[places]
            if quantity == "update":
                known = known & seen[self.weights] & (rms[self.weights] != 0)
                with np.errstate(all="ignore"):
                    values = values / rms[self.weights]
            last = (
                before.sizes[quantity]
                if before is not None and before.names == self.names
                else [None] * len(self.names)
            )
            sizes[quantity] = [float(v) if k else b for v, k, b in zip(values, known, last, strict=True)]
        return Flow(step, self.names, sizes)


def _layers(
    index: dict[tuple[Any, ...], int], model: int, facts: dict[str, Any], several: bool
) -> list[tuple[int, str, list[int]]]:
    """The weight layers of a model: where in the run each was first heard, its name, and its sites."""
    found = []
    for name, module in facts["modules"].items():
        weight = weight_of(module, name, facts)
        if not weight:
            continue
        keys = ((name, "output"), (name, "gradient"), (weight, "update"), (weight, "parameter"))
        places = [index.get((model, *key), -1) for key in keys]
        if max(places) >= 0:
            label = ".".join(filter(None, (facts.get("label") or f"model{model}", name))) if several else name
            found.append((places[0] if places[0] >= 0 else len(index), label, places))
    return found


FAR = 2.0
"""Decades from a layer to its neighbours, from which on it stands out."""


def odd(sizes: Sequence[float | None]) -> list[bool]:
    """Which layers stand out: zero, not a number, or a hundred times larger or smaller than both layers next to it.

    Args:
        sizes: One number a layer.

    Returns:
        One answer a layer; False where it was not seen.
    """
    known = [(i, size) for i, size in enumerate(sizes) if size is not None]
    found = [False] * len(sizes)
    for place, (i, size) in enumerate(known):
        first = min(max(place - 1, 0), len(known) - 3)
        beside = [known[j][1] for j in range(first, first + 3) if j != place] if len(known) > 2 else []
        found[i] = not (size > 0 and math.isfinite(size)) or _is_apart(size, beside)
    return found


def _is_apart(size: float, beside: Sequence[float]) -> bool:
    """Whether a size is far above all of these, or far below: a step in depth is neither."""
    usual = [math.log10(other) - math.log10(size) for other in beside if other > 0 and math.isfinite(other)]
    return bool(usual) and (min(usual) >= FAR or max(usual) <= -FAR)
