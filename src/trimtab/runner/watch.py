"""`trimtab.watch`: a recorder around the user's own loop, with a diagnosis at hand."""

import sys
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab import _distributed
from trimtab.diagnosis import diagnose
from trimtab.errors import UsageError
from trimtab.prediction.riding import Ride
from trimtab.recording import Record, Recorder, Schedule, Store, class_name
from trimtab.report import Diagnosis
from trimtab.runner.discovery import variable

T = TypeVar("T", nn.Module, Optimizer)


class Watch:
    """A running watch, from the moment it is made; leave the `with` block, or call `close`, to end it.

    Args:
        model: One model, or several.
        optimizer: One optimizer, or several.
        every: Record every so many steps after the first ten; None: every 10th up to step 100, every 50th from there on.
        store: File for the record, which must not exist yet; None keeps the record in memory.
        name: What to call the run in reports.

    Raises:
        TypeError: `model` or `optimizer` is something else.
        RecordError: The file cannot be written.
        ValueError: `every` is not a whole number of at least 1.
    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Module],
        optimizer: Optimizer | Iterable[Optimizer],
        *,
        every: int | None = None,
        store: str | Path | None = None,
        name: str = "",
    ) -> None:
        models = _several(model, nn.Module, "model")
        optimizers = _several(optimizer, Optimizer, "optimizer")
        schedule = Schedule(every)
        self._store = Store(store if _distributed.rank() == 0 else None)
        self._recorder = Recorder(self._store, schedule, name or class_name(models[0]), Ride)
        self._ended = False
        frame = sys._getframe(1)
        for one in models:
            self._recorder.add_model(one, variable(one, frame))
        for item in optimizers:
            self._recorder.add_optimizer(item, variable(item, frame))
        self._recorder.start()

    def __enter__(self) -> "Watch":
        if self._ended:
            raise UsageError("this watch has ended: make a new one with trimtab.watch(model, optimizer)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("ended" if error is None else f"{type(error).__name__}: {error}")

    def close(self, how: str = "ended") -> None:
        """Take every hook away and finish the record."""
        self._ended = True
        self._recorder.close(how)
        self._store.close()

    def log(self, **values: float | Tensor) -> None:
        """Keep numbers of your own with the open step: `watch.log(loss=loss, accuracy=accuracy)`.

        Args:
            **values: Numbers or tensors of one element.

        Raises:
            TypeError: A value is something else.
            UsageError: The watch has ended, and with it the record.
        """
        if self._ended:
            raise UsageError(
                "this watch has ended, so its record is closed: call log before close or inside the with block"
            )
        for name, value in values.items():
            if not isinstance(value, (Real, Tensor)) or (isinstance(value, Tensor) and value.numel() != 1):
                kind = (
                    f"a tensor of shape {tuple(value.shape)}"
                    if isinstance(value, Tensor)
                    else f"a {type(value).__name__}"
                )
                raise TypeError(f"{name} must be a number or a tensor of one element, not {kind}")
        for name, value in values.items():
            self._recorder.log(name, value)

    @property
    def record(self) -> Record:
        """The record as it stands; on ranks of a distributed run but the first, what this rank itself saw."""
        if not self._ended:
            self._recorder.catch_up()
        return Record.of(self._store)

    def diagnose(self, **options: Any) -> Diagnosis:
        """What the record so far tells.

        Args:
            **options: As for `trimtab.diagnose`.

        Returns:
            The diagnosis.
        """
        return diagnose(self.record, **options)


def _several(given: T | Iterable[T], kind: type[T], argument: str) -> list[T]:
    """One or several of a kind, as a list."""
    items = list(given) if isinstance(given, Iterable) and not isinstance(given, kind) else [given]
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"{argument} must be a torch {kind.__name__} or several of them, not {type(item).__name__}")
    if not items:
        raise TypeError(
            f"{argument} must be a torch {kind.__name__} or several of them, not an empty {type(given).__name__}"
        )
    return items


def watch(
    model: nn.Module | Iterable[nn.Module],
    optimizer: Optimizer | Iterable[Optimizer],
    *others: Any,
    every: int | None = None,
    store: str | Path | None = None,
    name: str = "",
) -> Watch:
    """Watch a training loop without changing one bit of it.

    ::

        with trimtab.watch(model, optimizer) as watch:
            for batch in loader:
                ...                      # zero_grad, loss, backward, step: as ever
        print(watch.diagnose())

    Losses are seen by themselves, where `backward` is called on them. Without `with`, call `close` at the end.

    Args:
        model: One model, or several.
        optimizer: One optimizer, or several.
        *others: Nothing: several models or optimizers are each one argument, a list.
        every: Record every so many steps after the first ten; None: every 10th up to step 100, every 50th from there on.
        store: File for the record, which must not exist yet; None keeps the record in memory.
        name: What to call the run in reports; the model's class by default.

    Returns:
        A context manager with `log`, `record`, `diagnose` and `close`.

    Raises:
        TypeError: `model` or `optimizer` is something else, or there are more of them without a list.
    """
    if others:
        kinds = ", ".join(type(other).__name__ for other in others)
        raise TypeError(
            f"watch takes one model and one optimizer, or a list of each, but it was given {kinds} besides: "
            "write watch([model, ...], [optimizer, ...]); every, store and name go by their names"
        )
    return Watch(model, optimizer, every=every, store=store, name=name)
