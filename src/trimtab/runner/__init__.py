"""The public watch, and the running of unmodified scripts under it."""

from trimtab.runner.watch import Watch, watch

__all__ = ["Watch", "watch"]
