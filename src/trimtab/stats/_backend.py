"""Which path measures tensors on the CPU: compiled where numba is installed, plain torch otherwise."""

import os
from functools import cache
from types import ModuleType

NO_NUMBA = "TRIMTAB_NO_NUMBA"


def compiled_kernel() -> ModuleType | None:
    """The numba kernel, compiled or loaded from its cache at the first call.

    Returns:
        The module, or None where numba is missing, does not work, or `TRIMTAB_NO_NUMBA` is set to anything but 0.
    """
    return None if os.environ.get(NO_NUMBA, "0") not in {"", "0"} else _load()


@cache
def _load() -> ModuleType | None:
    try:
        from trimtab.stats import _numba_kernel  # optional, and half a second to import
    except Exception:  # not installed, or cannot compile here: neither may take the user's run with it
        return None
    return _numba_kernel


def warm_up() -> bool:
    """Compile or load everything now, so that no measurement pays for it.

    Returns:
        Whether the compiled path is in use.
    """
    return compiled_kernel() is not None
