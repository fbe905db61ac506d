"""`trimtab.watch`: a recorder around the user's own loop, with a diagnosis at hand."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab.diagnosis import diagnose
from trimtab.recording import Record, Recorder, Schedule, Store
from trimtab.report import Diagnosis


class Watch:
    """A running watch; leave the `with` block, or call `close`, to end it.

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
        models = [model] if isinstance(model, nn.Module) else list(model)
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        for given, kind, argument in ((models, nn.Module, "model"), (optimizers, Optimizer, "optimizer")):
            for item in given:
                if not isinstance(item, kind):
                    raise TypeError(
                        f"{argument} must be a torch {kind.__name__} or several of them, not {type(item).__name__}"
                    )
        schedule = Schedule(every)
        self._store = Store(store)
        self._recorder = Recorder(self._store, schedule, name or type(models[0]).__name__)
        for item in models:
            self._recorder.add_model(item)
        for item in optimizers:
            self._recorder.add_optimizer(item)

    def __enter__(self) -> "Watch":
        self._recorder.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("ended" if error is None else f"{type(error).__name__}: {error}")

    def close(self, how: str = "ended") -> None:
        """Take every hook away and finish the record."""
        self._recorder.close(how)

    def log(self, **values: float | Tensor) -> None:
        """Keep numbers of your own with the open step: `watch.log(loss=loss, accuracy=accuracy)`.

        Args:
            **values: Numbers or tensors of one element.
        """
        for name, value in values.items():
            self._recorder.log(name, value)

    @property
    def record(self) -> Record:
        """The record as it stands."""
        return Record.of(self._store)

    def diagnose(self, **options: Any) -> Diagnosis:
        """What the record so far tells.

        Args:
            **options: As for `trimtab.diagnose`.

        Returns:
            The diagnosis.
        """
        return diagnose(self.record, **options)


def watch(
    model: nn.Module | Iterable[nn.Module],
    optimizer: Optimizer | Iterable[Optimizer],
    *,
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

    Losses are seen by themselves, where `backward` is called on them.

    Args:
        model: One model, or several.
        optimizer: One optimizer, or several.
        every: Record every so many steps after the first ten; None: every 10th up to step 100, every 50th from there on.
        store: File for the record, which must not exist yet; None keeps the record in memory.
        name: What to call the run in reports; the model's class by default.

    Returns:
        A context manager with `log`, `record`, `diagnose` and `close`.
    """
    return Watch(model, optimizer, every=every, store=store, name=name)
