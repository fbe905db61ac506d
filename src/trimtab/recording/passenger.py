"""What may ride along the first training pass of a model: it sees each operation, and says afterwards what it made of them.

The recorder knows no theory. It opens the door to somebody who does (`prediction.Ride`), tells of the modules that have run, and
keeps what comes of it as a fact of the record.
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from trimtab.errors import UsageError
from trimtab.recording.listening import take_hooks_off
from trimtab.recording.watched import WatchedModel

TRIES = 3
"""Forward calls of a model that are ridden along until the gradient of one comes back: the first may be a look at the shapes."""


class Passenger(Protocol):
    """Somebody who rides along."""

    listening: bool
    running: bool

    @property
    def answered(self) -> bool:
        """Whether a gradient has come back."""

    def left(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A module has run."""

    def end(self) -> None:
        """The forward pass has ended, by an error perhaps."""

    def backward_ended(self) -> None:
        """A backward pass has ended; the weights are still those of the pass."""

    def prediction(self) -> Any:
        """What came of it; it has a `to_dict`."""


def _same(tensor: Tensor) -> Tensor:
    return tensor


Boarding = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Passenger]
"""Gets on as a forward call begins; a `UsageError` says why it does not."""


class Seat:
    """The passengers of a recorder, one for each model.

    Args:
        board: Who rides; None leaves the seat empty.

    Attributes:
        facts: What the rides have told, by the index of the model as text: a prediction, or "declined" and why.
    """

    def __init__(self, board: Boarding | None) -> None:
        self._board = board
        self._rides: dict[int, Passenger] = {}
        self._tries: dict[int, int] = {}
        self._handles: list[Any] = []
        self._told = True
        self._rider: Passenger | None = None
        self._thread = 0
        self.facts: dict[str, Any] = {}

    @property
    def rider(self) -> Passenger | None:
        """Who is on board just now, in the calling thread: another one's operations are none of its business."""
        return self._rider if self._rider is not None and self._thread == threading.get_ident() else None

    def begin(self, watched: WatchedModel, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward call of a whole model begins.

        Args:
            watched: The model.
            module: The same, as the module that is called.
            args: What it is called with.
            kwargs: The same, by name.
        """
        index = watched.index
        if self.rider is not None and self._rider is self._rides.get(index):
            self.end()  # a pass that was broken off from outside, by Ctrl-C
        if self._board is None or self._rider is not None or str(index) in self.facts:
            return
        ride, tries = self._rides.get(index), self._tries.get(index, 0)
        if tries == TRIES or (ride is not None and ride.answered):
            return
        self._tries[index] = tries + 1
        try:
            self._rider = self._rides[index] = self._board(module, args, kwargs)
        except Exception as error:  # what is foretold is not worth a record
            self._decline(index, error)
            return
        self._thread = threading.get_ident()
        end = watched.end(module)
        if end is not None:
            self._handles.append(module.register_forward_hook(end, always_call=True))

    def left(self, model: int, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A module has run.

        Args:
            model: Index of its model.
            name: Its name in the model.
            module: The module.
            args: What it was called with, in order.
            output: What it gave.
        """
        rider = self.rider
        if rider is not None and self._rides.get(model) is rider:
            try:
                rider.left(name, module, args, output)
            except Exception as error:
                self.end()
                self._decline(model, error)

    def backward_ended(self) -> None:
        """A backward pass has ended."""
        for index, ride in list(self._rides.items()):
            try:
                ride.backward_ended()
            except Exception as error:
                self._decline(index, error)

    def end(self) -> None:
        """The forward call is over, however it ended."""
        if self.rider is not None:
            take_hooks_off((), self._handles)
            self.rider.end()
            self._rider = None

    def leave(self) -> None:
        """Whoever is on board gets off for good; in another thread than this one it only stops to listen."""
        self.end()
        take_hooks_off((), self._handles)
        if self._rider is not None:
            self._rider.listening = False

    def _decline(self, index: int, error: Exception) -> None:
        """Nobody rides along this model: what was refused, or has gone wrong."""
        self._rides.pop(index, None)
        said = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        self.facts[str(index)] = {"declined": said}
        self._told = False

    def step_ended(self) -> bool:
        """Ask those who have seen all that they will see what they make of it.

        Returns:
            Whether `facts` has changed since the step before.
        """
        self.end()
        done = [i for i, ride in self._rides.items() if ride.answered or self._tries[i] == TRIES]
        for index in done:
            try:
                # This may be inside the user's next forward call: a checkpoint around it must not take our tensors for its own.
                with saved_tensors_hooks(_same, _same):
                    self.facts[str(index)] = self._rides.pop(index).prediction().to_dict()
            except Exception as error:
                self._decline(index, error)
        changed, self._told = bool(done) or not self._told, True
        return changed
