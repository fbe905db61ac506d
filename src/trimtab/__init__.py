"""trimtab: learn why a network won't train."""

__version__ = "0.1.0"
