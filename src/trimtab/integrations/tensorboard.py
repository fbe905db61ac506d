"""TensorBoard: the series as scalars, the diagnosis as text, signal and gradient by depth as an image.

::

    from trimtab.integrations import tensorboard

    sink = tensorboard.Sink(writer)  # a SummaryWriter of yours
    with trimtab.watch(model, optimizer) as watch:
        for batch in loader:
            ...                      # as ever
            sink.update(watch)
    sink.finish(watch)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from trimtab.integrations import _sink
from trimtab.integrations.series import PREFIX, Run
from trimtab.report import Diagnosis

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Sink(_sink.Sink):
    """Writes to a `SummaryWriter` (torch.utils.tensorboard or tensorboardX), which stays the user's to close.

    Args:
        writer: The writer.
        histograms: A model whose parameters are written as histograms, `trimtab/weights/NAME`, at every `update` that finds a
            new recorded step: the values as they are at that moment, since a record keeps no raw values. None writes none.
        layers: As for every sink.
        first_step: As for every sink.

    Raises:
        TypeError: `writer` has no `add_scalar`, or `histograms` is no module.
    """

    def __init__(
        self,
        writer: Any,
        *,
        histograms: nn.Module | None = None,
        layers: Sequence[str] | None = None,
        first_step: int = 0,
    ) -> None:
        if not hasattr(writer, "add_scalar"):
            raise TypeError(f"writer must be a SummaryWriter, which has add_scalar, not {type(writer).__name__}")
        if histograms is not None and not isinstance(histograms, nn.Module):
            raise TypeError(
                f"histograms must be a model, whose parameters are drawn, or None, not {type(histograms).__name__}"
            )
        super().__init__(layers=layers, first_step=first_step)
        self._writer = writer
        self._model = histograms
        self._step = first_step

    def _write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._step = step

    def _written(self, run: Run | None) -> None:
        if run is None or self._model is None:
            return
        for name, parameter in self._model.named_parameters():
            values = parameter.detach()
            sharded = hasattr(values, "to_local")  # to gather a DTensor all ranks must meet, but this one alone is here
            if not sharded and values.numel() and bool(values.isfinite().all()):
                self._writer.add_histogram(f"{PREFIX}/weights/{name}", values, self._step)

    def _conclude(self, diagnosis: Diagnosis, step: int) -> None:
        lines = "\n".join(
            f"    {line}" for line in str(diagnosis).splitlines()
        )  # four spaces: Markdown shows it as it is
        self._writer.add_text(_sink.DIAGNOSIS, lines, step)

    def _draw(self, figure: "Figure", step: int) -> None:
        self._writer.add_figure(_sink.FLOW, figure, step, close=False)  # pyplot, which would close it, does not know it
        self._writer.flush()
