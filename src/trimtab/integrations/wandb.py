"""Weights & Biases: the series over `trimtab/step`, root causes as tags, the diagnosis in the summary.

::

    from trimtab.integrations import wandb as trimtab_wandb

    sink = trimtab_wandb.Sink(run)   # what wandb.init gave
    with trimtab.watch(model, optimizer) as watch:
        for batch in loader:
            ...                      # as ever
            sink.update(watch)
    sink.finish(watch)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.errors import UsageError
from trimtab.integrations import _sink
from trimtab.integrations.series import PREFIX
from trimtab.report import Diagnosis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEP = f"{PREFIX}/step"
TAG_LENGTH = 64
"""Characters that a tag may have."""


class Sink(_sink.Sink):
    """Logs to a run of wandb, with `trimtab/step` as the axis of every series.

    Each recorded step is one row. No step is named to `run.log`, so that a row joins the one that is open, if any: a loop that names its
    own steps loses none as long as `update` is called once a step.

    Args:
        run: A run; None for the one that is active.
        layers: As for every sink.
        first_step: As for every sink.

    Raises:
        UsageError: No run is given, and none is active.
        TypeError: `run` is something else.
    """

    def __init__(self, run: Any = None, *, layers: Sequence[str] | None = None, first_step: int = 0) -> None:
        if run is None:
            import wandb

            run = wandb.run
            if run is None:
                raise UsageError("no run of wandb is active: call wandb.init first, or give its run, Sink(run)")
        if not hasattr(run, "define_metric"):
            raise TypeError(f"run must be a run of wandb, which has define_metric, not {type(run).__name__}")
        super().__init__(layers=layers, first_step=first_step)
        self._run = run
        run.define_metric(STEP, hidden=True)
        run.define_metric(f"{PREFIX}/*", step_metric=STEP)

    def _write(self, step: int, values: dict[str, float]) -> None:
        self._run.log({STEP: step, **values})

    def _conclude(self, diagnosis: Diagnosis, step: int) -> None:
        self._run.summary[_sink.DIAGNOSIS] = str(diagnosis)
        self._run.summary[f"{PREFIX}/root_cause"] = _sink.summary(diagnosis)
        tags = [f"{PREFIX}:{code}"[:TAG_LENGTH] for code in _sink.found_codes(diagnosis)]
        old = tuple(self._run.tags or ())
        self._run.tags = (*old, *(tag for tag in tags if tag not in old))

    def _draw(self, figure: "Figure", step: int) -> None:
        import wandb
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()  # pixels: of figures wandb takes those of pyplot only
        self._run.log({STEP: step, _sink.FLOW: wandb.Image(np.asarray(canvas.buffer_rgba()))})
