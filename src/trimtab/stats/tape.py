"""The statistics of one recorded step, written down as they are measured and read once at its end."""

import threading
from collections.abc import Set
from itertools import count
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.stats._backend import compiled_kernel
from trimtab.stats._chan import FIELDS
from trimtab.stats._device_kernel import device_raw, rows_from_raw
from trimtab.stats._layout import (
    BLOCK,
    LOWEST_ADDRESS,
    UNREADABLE,
    block_step,
    flat_difference,
    flatten,
    is_dense,
    storage_order,
)
from trimtab.stats._torch_kernel import cpu_row, small_rows

# Rows live in chunks that never move, because kernels write to them by address.
_CHUNK_BITS = 9
_CHUNK = 1 << _CHUNK_BITS
_ROW_BYTES = len(FIELDS) * 8
# Subclasses may answer for memory that is not theirs; they take the careful way.
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_MEASURED = frozenset((torch.float32, torch.float64, torch.bfloat16))
# Without numba the calls on a tensor this small cost more than a copy that waits for its neighbours.
_WAITS = 1024


class Tape:
    """Rows of moments of one recorded step.

    `measure` may be called from several threads: drawing a row number is one atomic step of a counter. `clear` and
    `rows` belong to the thread that owns the step, when nobody measures.
    """

    def __init__(self) -> None:
        kernel = compiled_kernel()
        self._kernels: dict[torch.dtype, Any] = _kernels(kernel, "")
        self._differences: dict[torch.dtype, Any] = _kernels(kernel, "_difference")
        self._lock = threading.Lock()
        self._chunks: list[NDArray[np.float64]] = []
        self._addresses: list[int] = []
        self.clear()

    def __len__(self) -> int:
        # "count(3)": the repr is the only way to look at a counter without drawing from it.
        return int(repr(self._counter)[6:-1])

    def clear(self) -> None:
        """Forget all rows; the memory is kept for the next step."""
        self._counter = count()
        self._draw = self._counter.__next__
        self._sampled: set[int] = set()
        self._pending: dict[torch.device, list[tuple[int, int, Tensor]]] = {}
        self._small: list[tuple[int, Tensor]] = []

    def measure(self, tensor: Tensor) -> int:
        """Take all seven statistics of a tensor.

        Args:
            tensor: Any tensor; it is only read.

        Returns:
            The index of its row, or -1 when there is nothing to measure.
        """
        if type(tensor) in _PLAIN:
            try:
                dtype = tensor.dtype
                if dtype in _MEASURED and tensor.is_cpu and (tensor.is_contiguous() or is_dense(tensor)):
                    address = tensor.data_ptr()
                    # A single element may carry a pending negation and still count as contiguous.
                    if address > LOWEST_ADDRESS and (n := tensor.numel()) > 1:
                        kernel = self._kernels.get(dtype)
                        if kernel is None:
                            return self._measure_flat(storage_order(tensor.detach()))
                        index = self._draw()
                        try:
                            out = self._addresses[index >> _CHUNK_BITS]
                        except IndexError:
                            out = self._grow(index)
                        kernel(address, n, BLOCK, out + (index & (_CHUNK - 1)) * _ROW_BYTES)
                        return index
            except RuntimeError:  # no storage, or a layout without strides
                pass
        values = flatten(tensor)
        return -1 if values is None else self._measure_flat(values)

    def measure_difference(self, after: Tensor, before: Tensor) -> int:
        """Take all seven statistics of `after - before`, such as the update of a parameter.

        Args:
            after: Any tensor; it is only read.
            before: A tensor of the same shape.

        Returns:
            The index of the row, or -1 when there is nothing to measure.

        Raises:
            ValueError: If the two shapes differ.
        """
        try:
            same = after.shape == before.shape
        except UNREADABLE:
            return -1
        if not same:
            raise ValueError(
                f"The difference of {tuple(after.shape)} and {tuple(before.shape)} was asked for: "
                "both tensors need one shape. Take the second as a clone of the first."
            )
        kernel = self._differences.get(after.dtype)
        if kernel is not None and before.dtype is after.dtype and type(after) in _PLAIN and type(before) in _PLAIN:
            try:
                if after.is_cpu and before.is_cpu:
                    steps = _steps(after, before)
                    x, y = after.data_ptr(), before.data_ptr()
                    if steps and x > LOWEST_ADDRESS and y > LOWEST_ADDRESS and (n := after.numel()) > 1:
                        index = self._draw()
                        kernel(x, y, n, *steps, self._address(index))
                        return index
            except RuntimeError:
                pass
        values = flat_difference(after, before)
        return -1 if values is None else self._measure_flat(values)

    def rows(self) -> NDArray[np.float64]:
        """All rows so far; this is the one moment when devices are waited for.

        Returns:
            Moment rows of shape (len, 7), in the order of `FIELDS`.
        """
        size = len(self)
        for device, pending in self._pending.items():
            # Rows may come from other streams (a hook in the backward pass) than the one that reads them.
            torch.accelerator.synchronize(device)
            raw = torch.stack([row for _, _, row in pending]).cpu().numpy()
            sizes = np.array([n for _, n, _ in pending], np.float64)
            for (index, _, _), row in zip(pending, rows_from_raw(raw, sizes), strict=True):
                self._write(index, row)
        self._pending = {}
        if self._small:
            for (index, _), row in zip(self._small, small_rows([values for _, values in self._small]), strict=True):
                self._write(index, row)
            self._small = []
        used = [chunk[: size - start] for chunk, start in zip(self._chunks, range(0, size, _CHUNK), strict=False)]
        return np.concatenate(used) if used else np.empty((0, len(FIELDS)))

    def sampled(self, index: int) -> bool:
        """Whether `abs_mean` and `zeros` of a row come from a sample of the tensor.

        Args:
            index: What `measure` returned.

        Returns:
            True for a large tensor on the path without numba.
        """
        return index in self._sampled

    def samples(self) -> Set[int]:
        """The rows whose `abs_mean` and `zeros` come from a sample of their tensors."""
        return self._sampled

    def _measure_flat(self, values: Tensor) -> int:
        index = self._draw()
        n = values.numel()
        kernel = self._kernels.get(values.dtype)
        if values.device.type == "mps":  # has no float64
            values = values.cpu()
        if not values.is_cpu:
            self._pending.setdefault(values.device, []).append((index, n, device_raw(values)))
        elif kernel is not None:
            kernel(values.data_ptr(), n, block_step(values) or BLOCK, self._address(index))
        elif 0 < n <= _WAITS:
            self._small.append((index, values.clone().view(-1)))
        else:
            row, sampled = cpu_row(values)
            self._write(index, row)
            if sampled:
                self._sampled.add(index)
        return index

    def _write(self, index: int, row: NDArray[np.float64]) -> None:
        self._address(index)
        self._chunks[index >> _CHUNK_BITS][index & (_CHUNK - 1)] = row

    def _address(self, index: int) -> int:
        chunk = index >> _CHUNK_BITS
        start = self._addresses[chunk] if chunk < len(self._addresses) else self._grow(index)
        return start + (index & (_CHUNK - 1)) * _ROW_BYTES

    def _grow(self, index: int) -> int:
        """Returns the address of a chunk that was made for a row; an address is public only once its chunk is."""
        with self._lock:
            while len(self._addresses) <= index >> _CHUNK_BITS:
                self._chunks.append(np.zeros((_CHUNK, len(FIELDS))))
                self._addresses.append(self._chunks[-1].ctypes.data)
        return self._addresses[index >> _CHUNK_BITS]


def _kernels(kernel: ModuleType | None, suffix: str) -> dict[torch.dtype, Any]:
    names = ("float32", "float64", "bfloat16")
    found = {name: getattr(kernel, name + suffix, None) for name in names}
    return {getattr(torch, name): function for name, function in found.items() if function is not None}


def _steps(after: Tensor, before: Tensor) -> tuple[int, int] | None:
    """Returns the block steps of two tensors that can be read side by side in storage order."""
    steps = [BLOCK if tensor.is_contiguous() else block_step(tensor) for tensor in (after, before)]
    if all(steps):
        return steps[0], steps[1]
    return (BLOCK, BLOCK) if after.stride() == before.stride() and is_dense(after) else None
