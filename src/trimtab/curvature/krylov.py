"""The Lanczos recurrence, with full reorthogonalization and alpha, beta in float64.

    H Q = Q T + beta_m q_{m+1} e_m',    T tridiagonal with alpha on the diagonal and beta beside it

Each product is orthogonalized against all vectors before, so that no eigenvalue is found again as a ghost (Parlett, The
Symmetric Eigenvalue Problem, 1980, section 13). Once alpha and beta are taken out, what is left along earlier vectors is
q_i'Hq_j - q_j'Hq_i: so every pair of vectors tests the symmetry of the operator, without a product more.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.operator import Operator

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Krylov:
    """A growing orthonormal basis and the operator in it.

    Args:
        operator: H.
        start: The first vector, of any length.
        room: Vectors to reserve memory for at first.

    Attributes:
        alpha: Diagonal of T.
        beta: Beside the diagonal; the last entry leads out of the basis.
        asymmetry: Largest |q_i'Hq_j - q_j'Hq_i| so far.
        renewed: Steps before the last invariant subspace was left; 0 if there was none.
    """

    def __init__(self, operator: Operator, start: Tensor, room: int = 32) -> None:
        self.operator = operator
        self.alpha: list[float] = []
        self.beta: list[float] = []
        self.asymmetry = 0.0
        self.renewed = 0
        self._size = operator.shape[0]
        self._basis = torch.empty(min(room, self._size) + 1, self._size, dtype=operator.dtype, device=operator.device)
        self._basis[0] = start / float(start.double().norm())
        self._seed = 0

    def __len__(self) -> int:
        return len(self.alpha)

    @property
    def basis(self) -> Tensor:
        """Q', one vector a row."""
        return self._basis[: len(self)]

    @property
    def complete(self) -> bool:
        """Whether the basis spans everything."""
        return len(self) == self._size

    def step(self) -> None:
        """One product more.

        Raises:
            CurvatureError: The product is not finite.
        """
        j = len(self)
        q = self._basis[j]
        w = self.operator @ q
        self.alpha.append(float(w.double() @ q.double()))
        if not np.isfinite(self.alpha[-1]):
            raise CurvatureError(
                "a product with the operator is not finite: some batch has a loss or gradient that is NaN or infinite"
            )
        # What is known of w goes first; then one pass over the whole basis takes out what is left, or two where that was much
        # (Kahan's "twice is enough", Parlett 1980, section 6.9).
        w = w - self.alpha[-1] * q
        if j and self.renewed != j:
            w = w - self.beta[-1] * self._basis[j - 1]
        known = self._basis[: j + 1]
        length, asymmetry = float(w.double().norm()), 0.0
        for _ in range(3):
            left = known @ w
            w = w - known.T @ left
            asymmetry = asymmetry or float(left[:j].abs().max()) if j else 0.0
            before, length = length, float(w.double().norm())
            if length >= 0.7 * before:
                break
        self.asymmetry = max(self.asymmetry, asymmetry)
        self.beta.append(length)
        if j + 1 < self._size:
            self._append(j + 1, w, length)

    def _append(self, j: int, w: Tensor, length: float) -> None:
        if j + 1 >= len(self._basis):
            grown = self._basis.new_empty(min(2 * len(self._basis), self._size + 1), self._size)
            grown[: len(self._basis)] = self._basis
            self._basis = grown
        scale = max(map(abs, (*self.alpha, *self.beta[:-1])), default=0.0)
        if length > 100 * torch.finfo(self._basis.dtype).eps * scale:
            self._basis[j] = w / length
            return
        # The space is invariant: the rest is looked for from a new vector outside it.
        self.beta[-1] = 0.0
        self.renewed = j
        generator = torch.Generator().manual_seed(1_000_003 + self._seed)
        self._seed += 1
        fresh = torch.randn(self._size, generator=generator, dtype=torch.float64).to(w.device, w.dtype)
        for _ in range(2):
            fresh = fresh - self._basis[:j].T @ (self._basis[:j] @ fresh)
        self._basis[j] = fresh / float(fresh.double().norm())

    def ritz(self) -> tuple[Array, Array]:
        """Eigenvalues and eigenvectors of T.

        Returns:
            The values, ascending, and one vector a column.
        """
        m = len(self)
        t = np.diag(self.alpha) + np.diag(self.beta[: m - 1], 1) + np.diag(self.beta[: m - 1], -1)
        values, vectors = np.linalg.eigh(t)
        return values, vectors

    @property
    def symmetry(self) -> float:
        """`asymmetry` relative to the largest Ritz value."""
        scale = max(map(abs, (*self.alpha, *self.beta)), default=0.0)
        return self.asymmetry / scale if scale else 0.0
