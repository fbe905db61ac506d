"""Lightning: a callback that watches `Trainer.fit`.

::

    from trimtab.integrations.lightning import TrimtabCallback

    trainer = lightning.Trainer(callbacks=[TrimtabCallback()])

It serves both namespaces, `lightning.pytorch` and `pytorch_lightning`: the one that is imported already, or else the one that is there.
"""

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trimtab.integrations import _watching
from trimtab.integrations._sink import FunctionSink, Sink

NAMESPACES = ("lightning.pytorch", "pytorch_lightning")


def _bases() -> tuple[type, ...]:
    """The base class of callbacks of each namespace that is in use."""
    used = [name for name in NAMESPACES if name in sys.modules]
    for name in () if used else NAMESPACES:
        if find_spec(name.partition(".")[0]) is not None:
            used = [name]
            break
    if not used:
        raise ImportError("trimtab.integrations.lightning needs Lightning: pip install lightning")
    return tuple(import_module(name).Callback for name in used)


if TYPE_CHECKING:

    class _Callback:
        """What both namespaces agree on."""

else:
    _Callback = type("_Callback", _bases(), {})


class TrimtabCallback(_watching.Watching, _Callback):
    """Watches `fit`, and tells at its end what keeps the network from training.

    Automatic and manual optimization, several optimizers, accumulation and resumed runs are watched alike, since the watch listens to the
    optimizers themselves. Each `fit` is a run of its own. An exception ends the watch, and its diagnosis comes before the traceback.

    Args:
        log: Whether to write the series to the trainer's loggers as well.
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

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The optimizers are there, and a checkpoint has been loaded."""
        main = bool(trainer.is_global_zero)
        loggers = [_sink_of(logger, self._layers) for logger in trainer.loggers] if self._log and main else []
        self._begin(pl_module, trainer.optimizers, main=main, first_step=int(trainer.global_step), loggers=loggers)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch is done, and often a step."""
        self._step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training has come to its end."""
        self.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Something has ended the training."""
        self.close(f"{type(exception).__name__}: {exception}")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Whatever ended it."""
        self.close()


def _sink_of(logger: Any, layers: Sequence[str] | None) -> Sink:
    """The sink that suits one of Lightning's loggers; one that nobody knows gets the numbers only."""
    kinds = {cls.__name__ for cls in type(logger).__mro__}
    if "TensorBoardLogger" in kinds:
        from trimtab.integrations import tensorboard

        return tensorboard.Sink(logger.experiment, layers=layers)
    if "WandbLogger" in kinds:
        from trimtab.integrations import wandb

        return wandb.Sink(logger.experiment, layers=layers)
    if "MLFlowLogger" in kinds:
        from trimtab.integrations import mlflow

        return mlflow.Sink(logger.run_id, client=logger.experiment, layers=layers)
    return FunctionSink(lambda values, step: logger.log_metrics(values, step=step), layers=layers)
