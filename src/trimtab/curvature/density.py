"""The spectral density by stochastic Lanczos quadrature, with error bars.

For a random vector v of unit length, m Lanczos steps give nodes theta_i and weights w_i (squares of the first components of the
eigenvectors of T) with sum_i w_i f(theta_i) = v'f(H)v for polynomials f of degree up to 2m - 1, and E v'f(H)v = tr f(H) / n
(Golub and Welsch 1969; Ubaru, Chen and Saad 2017; Ghorbani et al. 2019, arXiv 1901.10159).
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.curvature._checks import CurvatureError, require_count, require_seed
from trimtab.curvature.krylov import Array, Krylov
from trimtab.curvature.operator import Operator, random_vector, require_operator
from trimtab.curvature.result import Certificate, certified


@dataclass(frozen=True, kw_only=True)
class Density(Certificate):
    """The distribution of the eigenvalues.

    Attributes:
        nodes: Of each random vector, (draws, steps), ascending.
        weights: The share of the eigenvalues that each node stands for, (draws, steps); each row sums to one.
        size: Number of eigenvalues.
    """

    nodes: Array
    weights: Array
    size: int

    def expectation(self, values: Array) -> tuple[float, float]:
        """The mean of a function of the eigenvalues, with its standard error over the random vectors.

        Args:
            values: The function at the nodes.

        Returns:
            Mean and standard error; the error is NaN for one vector.
        """
        each = (self.weights * values).sum(1)
        return float(each.mean()), _standard_error(each[:, None])[0]

    def share_below(self, value: float) -> tuple[float, float, float]:
        """Bounds of the share of eigenvalues up to a value.

        Nodes are not eigenvalues: the node next to zero stands for all that lie around it. But the distribution function at a node
        lies between the sums of the weights before it and up to it (Chebyshev, Markov and Stieltjes; Szego, Orthogonal Polynomials,
        1939, section 3.41), and so it is bounded everywhere.

        Args:
            value: The upper end, included.

        Returns:
            Lower bound, upper bound, and the standard error of either over the random vectors.
        """
        low, high = self._bounds(value)
        return (
            float(low.mean()),
            float(high.mean()),
            max(_standard_error(low[:, None])[0], _standard_error(high[:, None])[0]),
        )

    def share_near_zero(self, value: float) -> tuple[float, float, float]:
        """Bounds of the share of eigenvalues of a magnitude up to a value.

        Args:
            value: The largest magnitude.

        Returns:
            Lower bound, upper bound, and the standard error of either over the random vectors.
        """
        (low, high), (below, above) = self._bounds(value), self._bounds(np.nextafter(-value, -np.inf))
        low, high = np.maximum(low - above, 0), np.minimum(high - below, 1)
        return (
            float(low.mean()),
            float(high.mean()),
            max(_standard_error(low[:, None])[0], _standard_error(high[:, None])[0]),
        )

    def _bounds(self, value: float) -> tuple[Array, Array]:
        """Of the distribution function, one a random vector."""
        reached = np.pad(np.cumsum(self.weights, axis=1), ((0, 0), (1, 0)))
        count = (self.nodes <= value).sum(1)
        last = self.nodes.shape[1]
        rows = np.arange(len(self.nodes))
        low = reached[rows, np.maximum(count - 1, 0)]
        high = np.where(count == last, 1.0, reached[rows, np.minimum(count + 1, last)])
        # Beyond its outermost nodes nothing is known but by the steps: the extreme Ritz values lie inside the spectrum.
        return low, np.minimum(high, 1.0)

    def curve(self, points: int = 400, width: float | None = None) -> tuple[Array, Array, Array]:
        """The density as a function, each node being a Gaussian.

        Args:
            points: Of the grid.
            width: Standard deviation of the Gaussians; None for 1 % of the range.

        Returns:
            Grid, density (its integral is one) and standard error.
        """
        low, high = float(self.nodes.min()), float(self.nodes.max())
        width = width or (high - low) / 100 or max(abs(high), 1.0) / 100
        grid = np.linspace(low - 5 * width, high + 5 * width, points)
        bells = np.exp(-0.5 * ((grid - self.nodes[..., None]) / width) ** 2) / (width * np.sqrt(2 * np.pi))
        each = (self.weights[..., None] * bells).sum(1)
        return grid, each.mean(0), _standard_error(each)

    @property
    def mean(self) -> float:
        """The mean eigenvalue, tr(H) / n."""
        return self.expectation(self.nodes)[0]

    @property
    def error(self) -> float:
        """Standard error of the mean eigenvalue."""
        return self.expectation(self.nodes)[1]

    def magnitude_quantile(self, share: float) -> tuple[float, float]:
        """Bounds of a quantile of the eigenvalues' magnitudes.

        Args:
            share: Between 0 and 1.

        Returns:
            The quantile lies between these, as far as the random vectors stand for all; 0 as lower bound where nothing is resolved.
        """
        marks = np.unique(np.abs(self.nodes))
        marks = np.concatenate([[0.0], marks])
        inside = [self.share_near_zero(float(mark)) for mark in marks]
        lower = max((m for m, (_, high, _) in zip(marks, inside, strict=True) if high < share), default=0.0)
        upper = min((m for m, (low, _, _) in zip(marks, inside, strict=True) if low >= share), default=float(marks[-1]))
        return float(lower), float(upper)

    def __str__(self) -> str:
        mean, error = self.expectation(self.nodes)
        # Of nothing but zeros none lies below zero, though the mark is zero itself.
        low, high, _ = self.share_below(-1e-3 * float(np.abs(self.nodes).max()) or -np.finfo(float).tiny)
        return (
            f"spectral density of {self.size:,} eigenvalues from {len(self.nodes)} draws of {self.nodes.shape[1]} steps: "
            f"from {self.nodes.min():.4g} to {self.nodes.max():.4g}, mean {mean:.4g} ± {error:.1g}, "
            f"{low:.0%} to {high:.0%} below -1/1000 of the largest\n"
            f"  of the {self.operator}\n  {self.certificate()}"
        )


def density(operator: Operator, steps: int = 60, draws: int = 4, *, seed: int = 0) -> Density:
    """The distribution of all eigenvalues, by stochastic Lanczos quadrature.

    Args:
        operator: Of `hessian`, `ggn` or `fisher`.
        steps: Lanczos steps a random vector; the resolution is about the range over the square of it.
        draws: Random vectors; the standard error needs two at least.
        seed: Of the vectors.

    Returns:
        Nodes, weights, error bars and certificate.

    Raises:
        CurvatureError: There is no step or draw.
    """
    require_operator(operator)
    require_count("steps", steps)
    require_count("draws", draws)
    require_seed("seed", seed)
    if not operator.shape[0]:
        raise CurvatureError("an operator without rows has no spectrum")
    begun, before = time.perf_counter(), operator.products
    steps = min(steps, operator.shape[0])
    nodes, weights, symmetry = [], [], 0.0
    for draw in range(draws):
        krylov = Krylov(operator, random_vector(operator, seed + draw), steps)
        while len(krylov) < steps:
            krylov.step()
        theta, s = krylov.ritz()
        nodes.append(theta)
        weights.append(s[0] ** 2)
        symmetry = max(symmetry, krylov.symmetry)
    more: dict[str, Any] = certified(operator, symmetry, operator.products - before, time.perf_counter() - begun)
    return Density(nodes=np.stack(nodes), weights=np.stack(weights), size=operator.shape[0], **more)


def _standard_error(each: Array) -> Array:
    """Of the mean over the first axis."""
    count = len(each)
    if count == 1:
        return np.full(each.shape[1:], np.nan)
    result: Array = each.std(0, ddof=1) / np.sqrt(count)
    return result
