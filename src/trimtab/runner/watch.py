"""`trimtab.watch`: a recorder around the user's own loop, with a diagnosis at hand."""

import sys
from collections.abc import Callable, Iterable
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab import _distributed
from trimtab._messages import say
from trimtab.diagnosis import diagnose
from trimtab.errors import RunStopped, UsageError
from trimtab.prediction.riding import Ride
from trimtab.recording import BUDGET, Record, Recorder, Schedule, Store, class_name
from trimtab.report import Diagnosis, Finding
from trimtab.runner.discovery import variable
from trimtab.runner.live import Live, Stopper, check_every, telling
from trimtab.runner.signals import interrupts_wait

T = TypeVar("T", nn.Module, Optimizer)
OnFinding: TypeAlias = Callable[[Finding], None] | Literal["stop"] | None


class Watch:
    """A running watch, from the moment it is made; leave the `with` block, or call `close`, to end it.

    Args:
        model: One model, or several.
        optimizer: One optimizer, or several.
        every: Record every so many steps after the first ten; None: every 10th up to step 100, every 50th from there on.
        store: File for the record, which must not exist yet unless `resume` says so; None keeps the record in memory.
        name: What to call the run in reports.
        budget: Megabytes that the record may take, in the file or in memory; None or 0 for no bound.
        resume: As for `trimtab.watch`.
        on_finding: As for `trimtab.watch`.
        diagnose_every: As for `trimtab.watch`.

    Raises:
        TypeError: `model`, `optimizer` or `on_finding` is something else.
        RecordError: The file cannot be written, or is to be resumed and cannot be.
        ValueError: `every`, `budget`, `resume` or `diagnose_every` makes no sense.
    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Module],
        optimizer: Optimizer | Iterable[Optimizer],
        *,
        every: int | None = None,
        store: str | Path | None = None,
        name: str = "",
        budget: float | None = BUDGET,
        resume: bool | int = False,
        on_finding: OnFinding = None,
        diagnose_every: int | None = None,
    ) -> None:
        models = _several(model, nn.Module, "model")
        optimizers = _several(optimizer, Optimizer, "optimizer")
        schedule = Schedule(every)
        if on_finding is not None and on_finding != "stop" and not callable(on_finding):
            raise TypeError(f'on_finding must be a function of a finding, or "stop", not {on_finding!r}')
        if on_finding is None and diagnose_every is not None:
            raise ValueError("diagnose_every says how often to look, but nobody is told: give on_finding as well")
        check_every(diagnose_every)
        self._store = Store.of_this_rank(store, budget=budget, resume=resume)
        self._store.telling = telling(self._store)
        self._recorder = Recorder(self._store, schedule, name or class_name(models[0]), Ride)
        try:
            if on_finding is not None:
                self._recorder.on_step = self._looking(on_finding, diagnose_every)
            self._ended = False
            frame = sys._getframe(1)
            for one in models:
                self._recorder.add_model(one, variable(one, frame))
            for item in optimizers:
                self._recorder.add_optimizer(item, variable(item, frame))
            self._recorder.check_models()
        except BaseException:
            self._recorder.close()
            self._store.close()
            raise
        self._recorder.start()

    def _looking(self, on_finding: OnFinding, every: int | None) -> Callable[[int], None]:
        """What is done when a step has ended: of the ranks of a distributed run the first one looks."""
        first = _distributed.rank() == 0
        if callable(on_finding):
            return Live(self._recorder, on_finding, every=every).step_ended if first else _nothing
        stopper = Stopper(self._recorder)
        live = Live(self._recorder, stopper, every=every, severity="error") if first else None

        def ended(step: int) -> None:
            if live is not None:
                live.step_ended(step)
            stopper.check(step)

        return ended

    def __enter__(self) -> "Watch":
        if self._ended:
            raise UsageError("this watch has ended: make a new one with trimtab.watch(model, optimizer)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        stopped = isinstance(error, RunStopped)
        self.close("ended" if error is None else str(error) if stopped else f"{type(error).__name__}: {error}")
        if stopped:
            print(say("trimtab: {reason}", reason=error), file=sys.stderr)
        return stopped

    def close(self, how: str = "ended") -> None:
        """Take every hook away and finish the record."""
        self._ended = True
        with interrupts_wait():  # a second Ctrl-C must not leave the record open
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


def _nothing(step: int) -> None:
    """A step has ended on a rank that does not look."""


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
    budget: float | None = BUDGET,
    resume: bool | int = False,
    on_finding: OnFinding = None,
    diagnose_every: int | None = None,
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
        store: File for the record, which must not exist yet unless `resume` says so; None keeps the record in memory.
        name: What to call the run in reports; the model's class by default.
        budget: Megabytes (10⁶ bytes) that the record may take, in the file or in memory. Where they run out, old steps are
            thinned evenly; None or 0 for no bound.
        resume: Go on with the record in `store`: True after its last step, a number at this step, from which on what the record
            holds is replaced. The models must have the parameters that the record's have.
        on_finding: Diagnose while the run trains: called once with each new finding (error or warning) that two looks in a row
            have made, and may raise to end the run. "stop" ends it at the first error with `RunStopped`, which the `with` block
            takes for its end.
        diagnose_every: Recorded steps from look to look; None for as many looks as one percent of the run's time pays for, so
            that the clock decides where they fall.

    Returns:
        A context manager with `log`, `record`, `diagnose` and `close`.

    Raises:
        TypeError: `model`, `optimizer` or `on_finding` is something else, or there are more models without a list.
        RecordError: The file cannot be written, or is to be resumed and cannot be.
        ValueError: `every`, `budget`, `resume` or `diagnose_every` makes no sense.
    """
    if others:
        kinds = ", ".join(type(other).__name__ for other in others)
        raise TypeError(
            f"watch takes one model and one optimizer, or a list of each, but it was given {kinds} besides: "
            "write watch([model, ...], [optimizer, ...]); every, store and name go by their names"
        )
    return Watch(
        model,
        optimizer,
        every=every,
        store=store,
        name=name,
        budget=budget,
        resume=resume,
        on_finding=on_finding,
        diagnose_every=diagnose_every,
    )
