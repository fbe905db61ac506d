"""Initializers that look at the net they stand in."""

from trimtab.propagation.initialization._measured import LayerMoments
from trimtab.propagation.initialization.critical import critical_
from trimtab.propagation.initialization.lsuv import lsuv_
from trimtab.propagation.initialization.report import Change, Initialized

__all__ = ["Change", "Initialized", "LayerMoments", "critical_", "lsuv_"]
