"""Repairs: changes of a setup, tried on fresh copies beside doing nothing and beside random changes."""

from trimtab.repairs.repair import repair

__all__ = ["repair"]
