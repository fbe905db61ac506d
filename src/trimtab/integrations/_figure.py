"""The figure of a record's two signals by depth: at its first recorded step, beside theory, and at its last."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from trimtab.diagnosis.expected import predictions
from trimtab.diagnosis.layers import Layer, layers
from trimtab.recording import Record, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trimtab.report.figures import Profile


def flow_figure(record: Record) -> "Figure | None":
    """Signal and gradient by depth of the first model's weight layers, in forward order.

    Args:
        record: A run's record.

    Returns:
        One column for the first recorded step, with what theory expects of it, and one for the last; None where no layer was seen.
    """
    from trimtab.report.figures import signal_figure

    found = layers(record)
    found = [layer for layer in found if layer.model == found[0].model and len(layer.output)]
    if not found:
        return None
    steps = sorted({int(found[0].output.steps[0]), int(found[0].output.steps[-1])})
    return signal_figure([_profile(record, found, step, foretold=i == 0) for i, step in enumerate(steps)])


def _profile(record: Record, found: list[Layer], step: int, foretold: bool) -> "Profile":
    from trimtab.report.figures import Profile

    prediction = predictions(record).get(found[0].model, ()) if foretold else ()
    expected = {site.name: site for site in prediction}
    sites = [expected.get(layer.name) for layer in found]
    nothing = float("nan")
    return Profile(
        title=f"step {step}",
        layers=tuple(record.label(layer.model, layer.name) or layer.cls for layer in found),
        signal_measured=_at(step, found, lambda layer: layer.output),
        signal_predicted=[nothing if site is None else site.forward for site in sites],
        gradient_measured=_at(step, found, lambda layer: layer.gradient),
        gradient_predicted=[nothing if site is None else site.backward for site in sites],
        signal_low=[nothing if site is None else 1 / site.forward_tolerance for site in sites],
        signal_high=[nothing if site is None else site.forward_tolerance for site in sites],
        gradient_low=[nothing if site is None else 1 / site.backward_tolerance for site in sites],
        gradient_high=[nothing if site is None else site.backward_tolerance for site in sites],
    )


def _at(step: int, found: list[Layer], which: Callable[[Layer], Series]) -> list[float]:
    """Second moment of each layer's series at a step, NaN where it was not seen then."""
    values = []
    for layer in found:
        series = which(layer)
        place = np.flatnonzero(series.steps == step)
        values.append(float(series.second_moment[place[0]]) if len(place) else float("nan"))
    return values
