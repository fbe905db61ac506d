"""The figure of a record's two signals by depth: at its first recorded step, beside theory, and at its last."""

from typing import TYPE_CHECKING

from trimtab.diagnosis.charting.depth import by_depth
from trimtab.diagnosis.view import View
from trimtab.recording import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def flow_figure(record: Record) -> "Figure | None":
    """Signal and gradient by depth of the first model's weight layers, in forward order.

    Args:
        record: A run's record.

    Returns:
        The signal above the gradient: what theory expects, the first recorded step and the last; None where no layer was seen.
    """
    from trimtab.report.figures import side_by_side

    charts, _ = by_depth(View(record))
    return side_by_side([charts[:2]]) if charts else None
