"""What a rule hands over: a finding, and the step from which its fault was there."""

from typing import NamedTuple

from trimtab.report import Finding


class Found(NamedTuple):
    """A finding and where in time its fault begins.

    Attributes:
        finding: The finding, its causes still open.
        begins: Step at which the fault was there for the first time; 0 for faults of the initialization, data and loop.
    """

    finding: Finding
    begins: int = 0
