"""A training run as a value: what to train, on what, how; and the plain loop over it."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from trimtab.errors import SetupError, StepError


@dataclass
class Setup:
    """One training run, fresh and ready to start.

    Args:
        model: What is trained.
        optimizer: One optimizer, or several.
        batches: Called without arguments, gives a fresh pass over the training batches; the passes are cycled. An
            iterator that can be used once, the same at each call, is refused.
        loss: `loss(model, batch)` gives a scalar tensor.
        steps: Training steps of the run.
        evaluate: `evaluate(model)` gives a number, higher is better, by which `trimtab.repair` judges what it tries; the
            model is in evaluation mode. check and diagnose never call it.
        step: `step(setup, batch)` does one training step and returns its loss, a tensor with one element, where
            zero_grad, loss, backward and step are not it.
        scheduler: Stepped after every training step; a `ReduceLROnPlateau` with the loss of that step.

    Raises:
        SetupError: An argument is not what it must be.
    """

    model: nn.Module
    optimizer: Optimizer | list[Optimizer]
    batches: Callable[[], Iterable[Any]]
    loss: Callable[[nn.Module, Any], Tensor]
    steps: int = 200
    evaluate: Callable[[nn.Module], float] | None = None
    step: Callable[["Setup", Any], Tensor] | None = None
    scheduler: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise SetupError(f"model must be a torch.nn.Module, but it is {_kind(self.model)}")
        for optimizer in self.optimizers:
            if not isinstance(optimizer, Optimizer):
                raise SetupError(
                    f"optimizer must be a torch.optim.Optimizer or a list of them, but it holds {_kind(optimizer)}"
                )
        if not self.optimizers:
            raise SetupError("optimizer must hold at least one optimizer, but it is an empty list")
        if not callable(self.batches):
            raise SetupError(
                f"batches must be a function that gives a fresh pass over the batches, but it is {_kind(self.batches)}; "
                "write batches=lambda: loader"
            )
        for name in ("loss", "evaluate", "step"):
            value = getattr(self, name)
            if not callable(value) and not (value is None and name != "loss"):
                raise SetupError(f"{name} must be a function, but it is {_kind(value)}")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise SetupError(f"steps must be a whole number of at least 1, but it is {self.steps!r}")
        self._check_scheduler()

    def _check_scheduler(self) -> None:
        if self.scheduler is None or isinstance(self.scheduler, ReduceLROnPlateau):
            return
        step = getattr(self.scheduler, "step", None)
        if not callable(step):
            raise SetupError(f"scheduler must have a step method, but {_kind(self.scheduler)} has none")
        try:
            takes = inspect.signature(step)
        except ValueError:  # compiled: it does not say what it takes
            return
        try:
            takes.bind()
        except TypeError as error:
            raise SetupError(
                f"scheduler must have a step method without arguments, but that of {_kind(self.scheduler)} wants more: "
                f"{error}; call it in a step of your own"
            ) from error

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizers, also where there is only one."""
        if isinstance(self.optimizer, (list, tuple)):
            return tuple(self.optimizer)
        return (self.optimizer,)

    def stream(self, on_pass: Callable[[Iterable[Any]], None] | None = None) -> Iterator[Any]:
        """Batches without end: pass after pass.

        Args:
            on_pass: Told what `batches` has given, before anything is drawn from it.

        Yields:
            The batches.

        Raises:
            SetupError: A pass is empty, or `batches` gives nothing to iterate over or always the same one-shot iterator.
        """
        passes = self._passes()
        for batches in passes:
            if on_pass is not None:
                on_pass(batches)
            empty = True
            for batch in batches:
                empty = False
                yield batch
            if empty:
                raise SetupError("batches must give at least one batch a pass, but it gave an empty one")

    def _passes(self) -> Iterator[Iterable[Any]]:
        """What `batches` gives, call by call; a one-shot iterator is refused before anything is drawn from it."""
        first = self._one_pass()
        # An iterator that is given is its own pass. Whether each call gives a new one, only a second call can tell, whose
        # result is the second pass. A DataLoader is no iterator, and is not asked for one: that would draw a random number.
        second = self._one_pass() if isinstance(first, Iterator) and iter(first) is first else None
        if second is not None and second is first:
            raise SetupError(
                "batches must give a fresh pass each call, but it gave the same one-shot iterator twice; "
                "return the DataLoader or a new generator instead"
            )
        yield first
        if second is not None:
            yield second
        while True:
            yield self._one_pass()

    def _one_pass(self) -> Iterable[Any]:
        found = self.batches()
        if not isinstance(found, Iterable):
            raise SetupError(f"batches() must give an iterable of batches, but it gave {_kind(found)}")
        return found

    def train_step(self, batch: Any) -> Tensor:
        """One training step, through `step` where there is one.

        Args:
            batch: One batch.

        Returns:
            The loss.

        Raises:
            StepError: The loss is not a scalar tensor.
        """
        loss = self.plain_step(batch) if self.step is None else _scalar("step", self.step(self, batch))
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss.item())
        elif self.scheduler is not None:
            self.scheduler.step()
        return loss

    def plain_step(self, batch: Any) -> Tensor:
        """Clear the gradients, backward, step: what is done where there is no `step`.

        Args:
            batch: One batch.

        Returns:
            The loss.

        Raises:
            StepError: The loss is not a scalar tensor.
        """
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.compute_loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def compute_loss(self, batch: Any) -> Tensor:
        """The loss of one batch.

        Args:
            batch: One batch.

        Returns:
            The scalar loss.

        Raises:
            StepError: It is not a scalar tensor, or no gradient can flow from it.
        """
        loss = _scalar("loss", self.loss(self.model, batch))
        if not loss.requires_grad:
            raise StepError(
                "loss does not depend on any parameter of the model: it was computed under no_grad, or from detach(), .item() or numpy"
            )
        return loss

    def train(self, steps: int | None = None, on_batch: Callable[[Any], None] | None = None) -> Iterator[Tensor]:
        """Train in place, step by step, with the model in training mode at the start.

        Args:
            steps: Number of steps; None for the setup's own.
            on_batch: Told each batch before its step.

        Yields:
            The loss of each step.
        """
        self.model.train()
        stream = self.stream()
        for _ in range(self.steps if steps is None else steps):
            batch = next(stream)
            if on_batch is not None:
                on_batch(batch)
            yield self.train_step(batch)


def _scalar(name: str, loss: Any) -> Tensor:
    """The loss that a function of the user's has given, if it is one."""
    if not isinstance(loss, Tensor):
        raise StepError(f"{name} must give a scalar tensor, but it gave {_kind(loss)}")
    if loss.numel() != 1:
        raise StepError(
            f"{name} must give a scalar tensor, but it gave one of shape {tuple(loss.shape)}; reduce it with .mean()"
        )
    return loss


def _kind(value: object) -> str:
    return f"a {type(value).__name__}" if value is not None else "None"
