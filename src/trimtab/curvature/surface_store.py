"""A file of the points of a slice that are done, so that one that was interrupted goes on where it was.

The first line says of what it is; each other line is a point and its loss, written when it was computed and never changed. A line that
was cut off by a kill is dropped. NaN and infinity are values like any other.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.problem import Problem

KIND = "trimtab surface 1"


class Store:
    """The file of one slice.

    Args:
        path: Where it is; it is made if it is not there.
        identity: Of what it holds the points, by `identity`.

    Raises:
        CurvatureError: It is no such file, or one of another slice.
    """

    def __init__(self, path: str | Path, identity: dict[str, Any]) -> None:
        self.path = Path(path)
        self.done: dict[int, float] = {}
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        head, newline, rest = text.partition("\n")
        if newline:
            self._check(head, identity)
            self._read(rest)
        elif text and not json.dumps({"kind": KIND}).startswith(text[:20]):
            raise CurvatureError(f"store {self.path} is no file of a surface; give another path")
        self._file: IO[str] = self._opened(identity, new=not newline)

    def _check(self, head: str, identity: dict[str, Any]) -> None:
        try:
            found = json.loads(head)
            kind = found.pop("kind")
        except (ValueError, AttributeError, KeyError, TypeError):  # no JSON, or none of ours
            kind = None
        if kind != KIND:
            raise CurvatureError(f"store {self.path} is no file of a surface; give another path")
        other = [name for name in identity if found.get(name) != identity[name]]
        if other:
            raise CurvatureError(
                f"store {self.path} is of another surface: {', '.join(other)} differ; give another path, or delete the file"
            )

    def _read(self, lines: str) -> None:
        for line in lines.split("\n")[:-1]:  # what follows the last newline was cut off
            with contextlib.suppress(ValueError):
                place, value = line.split()
                self.done[int(place)] = float.fromhex(value)

    def _opened(self, identity: dict[str, Any], new: bool) -> IO[str]:
        if new:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("w", encoding="utf-8")
            file.write(json.dumps({"kind": KIND, **identity}) + "\n")
            file.flush()
            return file
        with self.path.open("rb+") as torn:
            content = torn.read()
            torn.truncate(content.rfind(b"\n") + 1)
        return self.path.open("a", encoding="utf-8")

    def add(self, place: int, value: float) -> None:
        """Keep one point.

        Args:
            place: Its number.
            value: Its loss.
        """
        self._file.write(f"{place} {float(value).hex()}\n")
        self._file.flush()
        self.done[place] = value

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()


def identity(problem: Problem, vectors: Sequence[Tensor], axes: Sequence[np.ndarray], loss: float) -> dict[str, Any]:
    """What tells the points of one slice from those of another.

    Args:
        problem: The loss; a function has no fingerprint, so that its value at the snapshot stands for it.
        vectors: The directions.
        axes: The grid.
        loss: At the snapshot.

    Returns:
        Names and fingerprints, as JSON has them.
    """
    batches = [leaf for batch in problem.batches for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
    named = [value for name, value in problem.shadow.model.state_dict().items() if name not in problem.names]
    return {
        "parameters": [list(problem.names), _print(problem.origin)],
        "batches": [_print(batches), list(problem.shares)],
        "other state": _print([value for value in named if isinstance(value, Tensor)]),
        "directions": _print(vectors),
        "grid": [[float(x).hex() for x in axis] for axis in axes],
        "mode": [problem.mode, problem.seed, str(problem.dtype)],
        "loss": float(loss).hex(),
    }


def _print(tensors: Sequence[Tensor]) -> str:
    """A fingerprint of values, dtypes and shapes."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        own = tensor.detach().cpu().contiguous().reshape(-1)
        found.update(own.view(torch.uint8).numpy().tobytes() if own.numel() else b"")
    return found.hexdigest()
