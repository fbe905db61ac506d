"""Fixtures that run a test on every path."""

import numpy as np
import pytest

from trimtab.stats import Tape
from trimtab.stats._backend import NO_NUMBA, compiled_kernel
from trimtab.stats._device_kernel import device_raw, rows_from_raw
from trimtab.stats._layout import flatten


@pytest.fixture(params=["numba", "torch"])
def tape(request, monkeypatch):
    """A tape of each path."""
    if request.param == "numba":
        pytest.importorskip("numba")
        monkeypatch.delenv(NO_NUMBA, raising=False)
        assert compiled_kernel() is not None
    else:
        monkeypatch.setenv(NO_NUMBA, "1")
    return Tape()


def _measured(tape):
    def one(tensor):
        index = tape.measure(tensor)
        assert index >= 0
        return tape.rows()[index]

    return one


def _on_device(tensor):
    values = flatten(tensor)
    raw = device_raw(values).numpy()[None]
    return rows_from_raw(raw, np.array([values.numel()], np.float64))[0]


@pytest.fixture(params=["numba", "torch", "device"])
def measure(request, monkeypatch):
    """A function from a tensor to its row, on each of the three paths (the device's runs on the CPU here)."""
    if request.param == "device":
        return _on_device
    if request.param == "numba":
        pytest.importorskip("numba")
        monkeypatch.delenv(NO_NUMBA, raising=False)
        assert compiled_kernel() is not None
    else:
        monkeypatch.setenv(NO_NUMBA, "1")
    return _measured(Tape())
