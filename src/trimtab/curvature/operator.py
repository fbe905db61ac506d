"""What every curvature operator has: products, blocks of layers, a dense form, SciPy's view, a test of its symmetry."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trimtab.curvature._checks import CurvatureError, kind
from trimtab.curvature.problem import Layer, Problem
from trimtab.curvature.retention import Retention
from trimtab.curvature.shadow import differentiating

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

DENSE_LIMIT = 10_000
"""Up to so many parameters the dense matrix is made: 800 MB in float64."""


class Operator(ABC):
    """A symmetric matrix that is known by its products with vectors.

    Attributes:
        problem: The loss, its parameters and batches.
        retention: Whether graphs are kept between products, and what that needs.
        which: Places of the parameters among those of the problem.
        products: Number of products with a vector so far.
    """

    title = "operator"

    def __init__(self, problem: Problem, retention: Retention, which: tuple[int, ...] | None = None) -> None:
        self.problem = problem
        self.retention = retention
        self.products = 0
        self.which = tuple(range(len(problem.names))) if which is None else which
        self._sizes = [problem.origin[i].numel() for i in self.which]

    @abstractmethod
    def _product(self, pieces: Sequence[Tensor]) -> Sequence[Tensor]:
        """The product with what this rank's batches contribute, in pieces of the shapes of the parameters."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the order of rows and columns."""
        return tuple(self.problem.names[i] for i in self.which)

    @property
    def unused(self) -> tuple[str, ...]:
        """Parameters that the loss does not depend on, whose rows and columns are zero."""
        return tuple(name for name in self.names if name in self.problem.unused)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        size = sum(self._sizes)
        return size, size

    @property
    def dtype(self) -> torch.dtype:
        """Of products."""
        return self.problem.dtype

    @property
    def device(self) -> torch.device:
        """Of products."""
        return self.problem.device

    def __matmul__(self, other: Tensor) -> Tensor:
        if (
            not isinstance(other, Tensor)
            or other.ndim not in {1, 2}
            or other.shape[0] != self.shape[0]
            or other.is_complex()
        ):
            raise CurvatureError(
                f"a real vector ({self.shape[0]},) or a matrix ({self.shape[0]}, k) is needed, but it is {kind(other)}"
            )
        if other.ndim == 2:
            columns = [self @ column for column in other.unbind(1)]
            return torch.stack(columns, 1) if columns else other.to(self.device, self.dtype)
        parts = other.detach().to(self.device, self.dtype).split(self._sizes)  # type: ignore[no-untyped-call]
        pieces = [part.view(self.problem.origin[i].shape) for part, i in zip(parts, self.which, strict=True)]
        with differentiating():
            result = self._product(pieces)
        self.products += 1
        return self.problem.reduced(torch.cat([piece.detach().reshape(-1) for piece in result]))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The modules that hold the parameters, and their rows."""
        return self.problem.layers_of(self.which)

    def block(self, name: str) -> "Operator":
        """The diagonal block of one module's parameters, or of one parameter.

        Args:
            name: A module, whose submodules count too, or a parameter.

        Returns:
            An operator, which shares kept graphs with this one.

        Raises:
            CurvatureError: There is no such module or parameter among the chosen ones.
        """
        names = self.problem.names
        inside = [i for i in self.which if not name or names[i] == name or names[i].startswith(f"{name}.")]
        if not inside:
            raise CurvatureError(
                f"{name!r} is neither a chosen parameter nor a module that holds any; there are {', '.join(self.names[:6])}"
            )
        return self.restricted(inside)

    def blocks(self) -> dict[str, "Operator"]:
        """The diagonal blocks of the modules that hold parameters themselves, by name."""
        index = {name: i for i, name in enumerate(self.problem.names)}
        return {layer.name: self.restricted([index[n] for n in layer.names]) for layer in self.layers}

    def restricted(self, which: Sequence[int]) -> "Operator":
        """The diagonal block of some parameters.

        Args:
            which: Their places in `problem.names`.

        Returns:
            An operator, which shares kept graphs with this one.
        """
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        Operator.__init__(part, self.problem, self.retention, tuple(which))
        return part

    def dense(self) -> Tensor:
        """The matrix itself, column by column.

        Returns:
            (n, n).

        Raises:
            CurvatureError: There are more than 10,000 parameters.
        """
        if self.shape[0] > DENSE_LIMIT:
            raise CurvatureError(
                f"a dense matrix of {self.shape[0]} rows is too large; take eigenvalues, density or trace"
            )
        return self @ torch.eye(self.shape[0], dtype=self.dtype, device=self.device)

    def symmetry(self, seed: int = 0) -> float:
        """How far two products are from those of a symmetric matrix; costs two products.

        Args:
            seed: Of the two random vectors u and v.

        Returns:
            |u'Hv - v'Hu| / (|u| |Hv| + |v| |Hu|), of the size of rounding where everything is right.
        """
        u, v = (random_vector(self, seed + i) for i in range(2))
        hu, hv = (self @ u).double(), (self @ v).double()
        u, v = u.double(), v.double()
        scale = float(u.norm() * hv.norm() + v.norm() * hu.norm())
        return abs(float(u @ hv - v @ hu)) / scale if scale else 0.0

    def linear_operator(self) -> "LinearOperator":
        """SciPy's view, for `eigsh` and the like.

        Returns:
            A `scipy.sparse.linalg.LinearOperator` on the host.
        """
        import numpy as np
        from scipy.sparse.linalg import LinearOperator

        def matvec(vector: Any) -> Any:
            return (self @ torch.from_numpy(np.ascontiguousarray(vector).reshape(-1))).cpu().numpy()

        return LinearOperator(
            self.shape, matvec=matvec, rmatvec=matvec, dtype=np.dtype(str(self.dtype).removeprefix("torch."))
        )

    def describe(self) -> str:
        """One line: what it is of, in which mode, and what memory it takes."""
        p = self.problem
        size = f"{len(p.batches)} batch{'es' if len(p.batches) > 1 else ''}"
        size += f" of {p.samples} samples" if p.samples is not None else ""
        mode = {"train": "training mode", "eval": "evaluation mode"}[p.mode]
        seed = f", random numbers frozen by seed {p.seed}" if p.seed is not None else ""
        unused = f"; unused: {', '.join(self.unused)}" if self.unused else ""
        dtype = str(p.dtype).removeprefix("torch.")
        return f"{self.title}, {self.shape[0]:,} parameters, {mode}, {size}, {dtype}{seed}; {self.retention}{unused}"

    def __repr__(self) -> str:
        return f"<{self.describe()}>"


def require_operator(given: Any) -> None:
    """Let only operators pass.

    Args:
        given: What was given.

    Raises:
        CurvatureError: It is none.
    """
    if not isinstance(given, Operator):
        raise CurvatureError(
            f"operator must be one of hessian(...), ggn(...) or fisher(...), but it is {kind(given)}; "
            "make one of it first, as in eigenvalues(hessian(setup))"
        )


def random_vector(operator: Operator, seed: int) -> Tensor:
    """A Gaussian vector of unit length, the same on every rank and device.

    Args:
        operator: Whose columns it is to be multiplied with.
        seed: Of the vector.

    Returns:
        (n,), in the operator's dtype.
    """
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(operator.shape[0], generator=generator, dtype=torch.float64)
    vector /= vector.norm()
    return vector.to(operator.device, operator.dtype)
