"""accelerate: `trimtab.watch` for what `Accelerator.prepare` gave, and a sink that writes to the accelerator's trackers.

::

    from trimtab.integrations import accelerate as trimtab_accelerate

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with trimtab_accelerate.watch(accelerator, model, optimizer) as watch:
        ...                          # the loop as ever

A `watch` and not a tracker: a tracker of accelerate is told numbers that somebody else has measured, and knows neither model nor optimizer.
The accelerator's own trackers are where the series go: `Sink(accelerator)`.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from trimtab.integrations import _sink
from trimtab.integrations.series import Run
from trimtab.report import Diagnosis
from trimtab.runner import Watch
from trimtab.runner import watch as plain_watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def watch(
    accelerator: Any,
    model: nn.Module | Iterable[nn.Module],
    optimizer: Optimizer | Iterable[Optimizer],
    **options: Any,
) -> Watch:
    """Watch models and optimizers that an accelerator has prepared; call it after `prepare`, on every process.

    Args:
        accelerator: The `Accelerator`.
        model: What `prepare` gave for the model, or several.
        optimizer: What `prepare` gave for the optimizer, or several.
        **options: As for `trimtab.watch`: `every`, `store`, `name` and so on.

    Returns:
        The same as `trimtab.watch`.

    Raises:
        TypeError: `accelerator` is something else, and where `trimtab.watch` raises it.
    """
    if not hasattr(accelerator, "unwrap_model"):
        raise TypeError(f"accelerator must be an accelerate.Accelerator, not {type(accelerator).__name__}")
    models = [model] if isinstance(model, nn.Module) else list(model)
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    inner = [accelerator.unwrap_model(one) if isinstance(one, nn.Module) else one for one in models]
    return plain_watch(inner, [real_optimizer(one) for one in optimizers], **options)


def real_optimizer(optimizer: Any) -> Any:
    """The optimizer whose `step` runs: what accelerate has wrapped, or the optimizer itself."""
    while type(optimizer).__module__.startswith("accelerate.") and isinstance(
        getattr(optimizer, "optimizer", None), Optimizer
    ):
        optimizer = optimizer.optimizer
    return optimizer


class Sink(_sink.Sink):
    """Writes to every tracker of an accelerator; on other processes than the main one, nowhere.

    Args:
        accelerator: The `Accelerator`, after `init_trackers`.
        layers: Patterns ("encoder.*") of the layers to tell; None for every module with parameters of its own.
        first_step: What to add to the run's step numbers, which begin at 0.

    Raises:
        TypeError: `accelerator` is something else.
    """

    def __init__(self, accelerator: Any, *, layers: Sequence[str] | None = None, first_step: int = 0) -> None:
        if not hasattr(accelerator, "trackers"):
            raise TypeError(f"accelerator must be an accelerate.Accelerator, not {type(accelerator).__name__}")
        super().__init__(layers=layers, first_step=first_step)
        trackers = accelerator.trackers if accelerator.is_main_process else []
        self._sinks = [_sink_of(tracker, layers, first_step) for tracker in trackers]

    def update(self, run: Run) -> int:
        """As for every sink.

        Args:
            run: A watch, a record, or the path of a record's file.

        Returns:
            How many steps were written.
        """
        steps = 0
        for sink in self._sinks:
            sink.first_step = self.first_step
            steps = sink.update(run)
        return steps

    def _conclude(self, diagnosis: Diagnosis, step: int) -> None:
        for sink in self._sinks:
            sink._conclude(diagnosis, step)

    def _draw(self, figure: "Figure", step: int) -> None:
        for sink in self._sinks:
            sink._draw(figure, step)


def _sink_of(tracker: Any, layers: Sequence[str] | None, first_step: int) -> _sink.Sink:
    """The sink that suits one of accelerate's trackers; one that nobody knows gets the numbers only."""
    if tracker.name == "tensorboard":
        from trimtab.integrations import tensorboard

        return tensorboard.Sink(tracker.tracker, layers=layers, first_step=first_step)
    if tracker.name == "wandb":
        from trimtab.integrations import wandb

        return wandb.Sink(tracker.tracker, layers=layers, first_step=first_step)
    if tracker.name == "mlflow":
        from trimtab.integrations import mlflow

        return mlflow.Sink(tracker.tracker.info.run_id, layers=layers, first_step=first_step)
    return _sink.FunctionSink(lambda values, step: tracker.log(values, step=step), layers=layers, first_step=first_step)
