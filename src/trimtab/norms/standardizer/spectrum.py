"""Gradient descent on a quadratic, told from its spectrum.

The loss is the first note's, L = 1/(2N) sum (w.x + b - y)². With A = [X 1] its Hessian is H = A^T A / N, whatever y is. A step of size
eta multiplies the error along eigendirection i by (1 - eta lambda_i): it is stable for eta < 2 / lambda_max, and the excess loss after k
steps is f_k = 1/2 sum lambda_i (1 - eta lambda_i)^(2k) c_i², c being the error at the start.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.errors import NormalizationError
from trimtab.norms.standardizer.columns import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Spectrum:
    """The quadratic that gradient descent sees, in one parametrization.

    Attributes:
        hessian: H = [X 1]^T [X 1] / N over (w_1, ..., w_d, b), shape (d + 1, d + 1).
        eigenvalues: Of H, falling; from the singular values of [X 1], so that small ones keep their digits.
        shares: lambda_i c_i² of each eigendirection, over their sum: which part of the initial excess loss it holds. Empty without y.
        gradient_w: Gradient with respect to w where w and b are 0, shape (d, targets). Empty without y.
        gradient_b: Gradient with respect to b there, shape (targets,). Empty without y.
    """

    hessian: Floats
    eigenvalues: Floats
    shares: Floats
    gradient_w: Floats
    gradient_b: Floats

    @property
    def condition(self) -> float:
        """lambda_max / lambda_min over all of (w, b); infinite where features are linearly dependent."""
        smallest = float(self.eigenvalues[-1])
        return float(self.eigenvalues[0]) / smallest if smallest > 0 else math.inf

    @property
    def largest_step(self) -> float:
        """2 / lambda_max, above which gradient descent diverges; for a loss without the 1/2 (`mse_loss`) it is half of this."""
        return 2.0 / float(self.eigenvalues[0])

    @property
    def gradient_split(self) -> tuple[float, float]:
        """Norms of the gradients with respect to w and to b, where both are 0; nan without y."""
        if not self.gradient_b.size:
            return math.nan, math.nan
        return float(np.linalg.norm(self.gradient_w)), float(np.linalg.norm(self.gradient_b))

    def excess(self, steps: int, step: float | None = None) -> float:
        """Excess loss after some steps of gradient descent over that at the start.

        Args:
            steps: Number of steps.
            step: Step size; 1 / lambda_max if None.

        Returns:
            f_k / f_0; infinite where it overflows.

        Raises:
            NormalizationError: If there were no targets.
        """
        if not self.shares.size:
            raise NormalizationError("the excess loss depends on the targets; give y to conditioning(X, y)")
        factor = np.abs(1.0 - (1.0 / self.eigenvalues[0] if step is None else step) * self.eigenvalues)
        with np.errstate(over="ignore"):
            left = np.where(self.shares > 0, factor ** (2.0 * steps), 0.0)
        return float(np.sum(self.shares * left))

    def iterations(self, tolerance: float, step: float | None = None) -> float:
        """Fewest steps of gradient descent after which the excess loss is at most `tolerance` of that at the start.

        Args:
            tolerance: Above 0.
            step: Step size below `largest_step`; 1 / lambda_max if None.

        Returns:
            A whole number; infinite where the step is too large, or the number passes 1e15.

        Raises:
            NormalizationError: If the tolerance is not above 0, or there were no targets.
        """
        if not tolerance > 0:
            raise NormalizationError(
                f"tolerance is {tolerance}; a share of the initial excess loss above 0 is expected"
            )
        if step is not None and not 0 < step < self.largest_step:
            return math.inf
        low, high = -1, 0
        while self.excess(high, step) > tolerance:
            low, high = high, max(1, 2 * high)
            if high > 10**15:
                return math.inf
        while high - low > 1:  # the excess falls with every step
            middle = (low + high) // 2
            low, high = (middle, high) if self.excess(middle, step) > tolerance else (low, middle)
        return high


def gradient(x: Floats, target: Floats, w: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The gradient of 1/(2N) sum (x w + b - y)², the first note's: the one for w is scaled by x, the one for b is not.

    Args:
        x: Features, shape (n, d).
        target: Targets, shape (n, targets).
        w: Weights, shape (d, targets).
        b: Biases, shape (targets,).

    Returns:
        With respect to w and to b, of their shapes.
    """
    residual = x @ w + b - target
    return x.T @ residual / len(x), residual.mean(0)


def spectrum(x: Floats, target: Floats | None = None, start: Floats | None = None) -> Spectrum:
    """The quadratic of one parametrization.

    Args:
        x: Features, float64 of shape (n, d).
        target: Targets, shape (n, targets), or None.
        start: Biases that gradient descent starts from, shape (targets,), with w = 0; zeros if None.

    Returns:
        Hessian, eigenvalues, and what depends on the targets.
    """
    n, width = len(x), x.shape[1] + 1
    design = np.column_stack([x, np.ones(n)])
    # The singular values of the triangular factor are those of [X 1]: lambda = s² / n, small ones without squaring's loss.
    q, r = np.linalg.qr(design)
    u, s, _ = np.linalg.svd(r)
    eigenvalues = np.zeros(width)
    eigenvalues[: len(s)] = np.square(s) / n
    hessian = design.T @ design / n
    if target is None:
        return Spectrum(hessian, eigenvalues, *(np.zeros(0) for _ in range(3)))
    # The excess is |A (theta - theta*)|² / 2N, and A theta* is the part of y that A reaches: s_i c_i = u_i . q^T (y - b).
    reached = np.zeros((width, target.shape[1]))
    reached[: len(s)] = u.T @ (q.T @ (target if start is None else target - start))
    reached[: len(s)][s <= np.finfo(np.float64).eps * s[0] * max(design.shape)] = 0.0  # directions that no data has
    energy = np.square(reached).sum(1)
    total = energy.sum()
    zero = np.zeros((x.shape[1], target.shape[1]))
    return Spectrum(hessian, eigenvalues, energy / total if total > 0 else energy, *gradient(x, target, zero, zero[0]))
