"""Transformers: a callback that watches `Trainer.train`, and that of trainers built on it.

::

    from trimtab.integrations.transformers import TrimtabCallback

    trainer = Trainer(..., callbacks=[TrimtabCallback()])
"""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab._messages import say
from trimtab.integrations import _watching
from trimtab.integrations._sink import Sink
from trimtab.integrations.accelerate import real_optimizer

if TYPE_CHECKING:

    class TrainerCallback:
        """What the base class is to the type checker: a class."""

else:
    from transformers import TrainerCallback


class TrimtabCallback(_watching.Watching, TrainerCallback):
    """Watches `train`, and tells at its end what keeps the network from training.

    The watch sits on the model itself and on the optimizer inside accelerate's wrapper, so that accumulation, mixed precision and
    compiled models are seen as they are. Each `train` is a run of its own. The Trainer tells callbacks of no exception: after one, ask
    `callback.diagnosis`, which reads the record as it stands, or call `callback.close()`.

    Args:
        log: Whether to write the series to the reports of `report_to` as well: the run of wandb or MLflow that the Trainer has
            opened; for TensorBoard, `runs/trimtab` of its output folder.
        sinks: Sinks of `trimtab.integrations`, such as `tensorboard.Sink(writer)`, to write them to besides.
        layers: Patterns ("encoder.*") of the layers that `log` tells of; None for every module with parameters of its own.
        show: Whether to print the diagnosis on standard error; it stays in `diagnosis` in any case.
        **options: As for `trimtab.watch`: `every`, `store`, `name` and so on.

    Attributes:
        watch: The `trimtab.Watch` of the run that goes on, or of the last one; None before the first.
    """

    def __init__(
        self,
        *,
        log: bool = False,
        sinks: Sink | Iterable[Sink] = (),
        layers: Sequence[str] | None = None,
        show: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(log=log, sinks=sinks, layers=layers, show=show, **options)
        self._writer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_writer": None}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Model and optimizer are ready, and a checkpoint has been loaded."""
        self.close("superseded")  # an exception may have ended the run before
        main = bool(state.is_world_process_zero)
        loggers = self._loggers(args) if self._log and main else []
        optimizer = real_optimizer(kwargs["optimizer"])
        self._begin(kwargs["model"], [optimizer], main=main, first_step=int(state.global_step), loggers=loggers)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step is done."""
        self._step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training has come to its end."""
        self.close()

    def close(self, how: str = "ended") -> None:
        """End the watch, if one goes on, with all that comes at the end: sinks, diagnosis and report.

        Args:
            how: What ended the run, for the record's reader.
        """
        super().close(how)
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _loggers(self, args: Any) -> list[Sink]:
        """A sink for each report that the Trainer was asked for."""
        found: list[Sink] = []
        for name in args.report_to:
            if name == "tensorboard":
                from torch.utils.tensorboard import SummaryWriter

                from trimtab.integrations import tensorboard

                self._writer = SummaryWriter(str(Path(args.output_dir) / "runs" / "trimtab"))
                found.append(tensorboard.Sink(self._writer, layers=self._layers))
            elif name == "wandb":
                from trimtab.integrations import wandb

                found.append(wandb.Sink(layers=self._layers))
            elif name == "mlflow":
                from trimtab.integrations import mlflow

                found.append(mlflow.Sink(layers=self._layers))
            else:
                warnings.warn(
                    say("log=True does not reach {name}: give a sink of its own, sinks=", name=name),
                    RuntimeWarning,
                    stacklevel=2,
                )
        return found
