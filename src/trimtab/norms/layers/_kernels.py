"""Whether numba serves a call: its kernels are loaded when the first tensor comes that is worth it."""

import importlib
import os
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from trimtab.stats._backend import NO_NUMBA


@cache
def _load(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"trimtab.norms.layers.{name}")  # optional, and half a second to import
    except Exception:  # not installed, or cannot compile here: neither may take the user's run with it
        return None


def compiled_kernel(name: str, x: Tensor) -> ModuleType | None:
    """The numba kernel for a tensor.

    Args:
        name: Module of this package that has it.
        x: The tensor that is read.

    Returns:
        The module, or None where the tensor is not float32, torch uses more than one thread (the kernels do not), numba is
        missing or does not work, or `TRIMTAB_NO_NUMBA` is set to anything but 0.
    """
    if x.dtype != torch.float32 or torch.get_num_threads() > 1 or os.environ.get(NO_NUMBA, "0") not in {"", "0"}:
        return None
    return _load(name)


def address(tensor: Tensor | None) -> int:
    """Where a tensor's values are.

    Args:
        tensor: A tensor in the CPU's memory, or None.

    Returns:
        The address; 0 for None.
    """
    return 0 if tensor is None else tensor.data_ptr()
