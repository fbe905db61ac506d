"""Initializers that look at the net they stand in; users reach them as `trimtab.propagation.critical_` and `lsuv_`."""

from trimtab.initialization.critical import critical_
from trimtab.initialization.lsuv import lsuv_
from trimtab.initialization.report import Change, Initialized

__all__ = ["Change", "Initialized", "critical_", "lsuv_"]
