"""MLflow: the series as metrics, root causes as a tag, the diagnosis and the figure as artifacts.

::

    from trimtab.integrations import mlflow as trimtab_mlflow

    sink = trimtab_mlflow.Sink()     # of the active run
    with trimtab.watch(model, optimizer) as watch:
        for batch in loader:
            ...                      # as ever
            sink.update(watch)
    sink.finish(watch)
"""

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trimtab.errors import UsageError
from trimtab.integrations import _sink
from trimtab.integrations.series import PREFIX
from trimtab.report import Diagnosis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 1000
"""Metrics that MLflow takes at once."""

FORBIDDEN = re.compile(r"[^\w/.\- :]")
"""What MLflow does not allow in a name."""


class Sink(_sink.Sink):
    """Logs to a run of MLflow, which stays the user's to end. A sign that MLflow forbids in a name is an underscore.

    Args:
        run_id: The run; None for the active one.
        client: The `MlflowClient` that knows it; None for one at the current tracking URI.
        layers: As for every sink.
        first_step: As for every sink.

    Raises:
        UsageError: No run is given, and none is active.
    """

    def __init__(
        self,
        run_id: str | None = None,
        *,
        client: Any = None,
        layers: Sequence[str] | None = None,
        first_step: int = 0,
    ) -> None:
        import mlflow

        super().__init__(layers=layers, first_step=first_step)
        if run_id is None:
            active = mlflow.active_run()
            if active is None:
                raise UsageError(
                    "no run of MLflow is active: call mlflow.start_run first, or give its id, Sink(run_id)"
                )
            run_id = active.info.run_id
        self._run_id = run_id
        self._client = mlflow.MlflowClient() if client is None else client

    def _write(self, step: int, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(FORBIDDEN.sub("_", name), value, now, step) for name, value in values.items()]
        for first in range(0, len(metrics), MOST):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + MOST])

    def _conclude(self, diagnosis: Diagnosis, step: int) -> None:
        self._client.set_tag(self._run_id, f"{PREFIX}.root_cause", _sink.summary(diagnosis))
        self._client.log_text(self._run_id, str(diagnosis), f"{_sink.DIAGNOSIS}.txt")
        self._client.log_text(self._run_id, diagnosis.to_json(), f"{_sink.DIAGNOSIS}.json")

    def _draw(self, figure: "Figure", step: int) -> None:
        self._client.log_figure(self._run_id, figure, f"{_sink.FLOW}.png")
