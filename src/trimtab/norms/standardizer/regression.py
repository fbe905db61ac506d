"""How standardization conditions linear regression: Hessian, condition number, largest stable step, iterations.

Centring makes the block of the Hessian between w and b zero, scaling makes its diagonal 1, so that its condition number becomes that of
the correlation matrix. `torch.nn.functional.mse_loss` has no 1/2: its gradient and Hessian are twice those of `spectrum`, its largest
step half.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import refuse, require_positive, require_word
from trimtab.norms.standardizer._inputs import require_dense
from trimtab.norms.standardizer.columns import Floats
from trimtab.norms.standardizer.spectrum import Spectrum, spectrum

_TOLERANCES = (1e-1, 1e-2, 1e-3)


@dataclass(frozen=True, slots=True, eq=False)
class Conditioning:
    """Linear regression on the same data, raw, centred, and standardized.

    Attributes:
        raw: On X as it is.
        centred: On X less its mean.
        standardized: On (X - mean) / std.
        samples: N.
        tolerances: Of the table that `print` shows.
    """

    raw: Spectrum
    centred: Spectrum
    standardized: Spectrum
    samples: int
    tolerances: tuple[float, ...] = field(default=_TOLERANCES)

    @property
    def gain(self) -> float:
        """How many times standardization lowers the condition number."""
        return self.raw.condition / self.standardized.condition

    def __str__(self) -> str:
        """A table.

        Returns:
            One column a parametrization.
        """
        kinds = {"raw": self.raw, "centred": self.centred, "standardized": self.standardized}
        rows = [
            ("condition number", [f"{one.condition:.4g}" for one in kinds.values()]),
            ("largest eigenvalue", [f"{one.eigenvalues[0]:.4g}" for one in kinds.values()]),
            ("largest stable step", [f"{one.largest_step:.4g}" for one in kinds.values()]),
        ]
        if self.raw.shares.size:
            for tolerance in self.tolerances:
                counts = [one.iterations(tolerance) for one in kinds.values()]
                rows.append((f"steps to {tolerance:g} of the excess", [f"{count:.12g}" for count in counts]))
            splits = [one.gradient_split for one in kinds.values()]
            rows.append(("gradient at 0, |w| and |b|", [f"{w:.3g}, {b:.3g}" for w, b in splits]))
        head = f"linear regression, {self.samples} samples, {len(self.raw.eigenvalues) - 1} features, gradient descent at 1 / lambda_max"
        lines = [head, f"{'':30}" + "".join(f"{name:>20}" for name in kinds)]
        lines += [f"{name:30}" + "".join(f"{cell:>20}" for cell in cells) for name, cells in rows]
        return "\n".join(lines)


def conditioning(
    X: Any,
    y: Any = None,
    *,
    standardizer: Any = None,
    start: Literal["mean", "zero"] = "mean",
    tolerances: Sequence[float] = _TOLERANCES,
) -> Conditioning:
    """What standardization does to linear regression on this data.

    Args:
        X: Features, shape (n, d), array or tensor, finite.
        y: Targets, shape (n,) or (n, targets); without them only what does not depend on them is known.
        standardizer: A fitted `Standardizer` whose mean and scale are used; those of X if None.
        start: Where gradient descent begins, with w = 0: at the best constant, b = mean of y ("mean", the same as centred targets),
            or at b = 0 ("zero").
        tolerances: For the printed table.

    Returns:
        The three spectra.

    Raises:
        NormalizationError: If shapes do not match, values are not finite, or `start` is another word.
    """
    require_word("start", start, ("mean", "zero"))
    require_positive(**{f"tolerances[{place}]": one for place, one in enumerate(_listed(tolerances))})
    x = _matrix(X, "X")
    target = None if y is None else _matrix(y, "y")
    if x.ndim != 2 or 0 in x.shape:
        raise NormalizationError(f"X has shape {x.shape}; (samples, features), at least one of each, is expected")
    if target is not None:
        if 0 in target.shape or not target.shape:
            refuse("y", y, "one target or more for each sample of X is needed")
        target = target.reshape(len(target), -1)
        if len(target) != len(x):
            raise NormalizationError(f"y has {len(target)} samples, X has {len(x)}; the same number is expected")
    if standardizer is None:
        mean = x.mean(0)
        spread = x.std(0)
        scale = np.where(spread > np.finfo(np.float64).eps * np.abs(mean), spread, 1.0)
    else:
        if not hasattr(standardizer, "partial_fit"):
            refuse("standardizer", standardizer, "a fitted Standardizer, or None, is needed")
        mean, scale = standardizer.mean_, standardizer.scale_
        scale = np.ones_like(mean) if scale is None else scale
        if len(mean) != x.shape[1]:
            raise NormalizationError(f"X has {x.shape[1]} features, the standardizer was fitted on {len(mean)}")
    centred = x - mean
    bias = target.mean(0) if target is not None and start == "mean" else None
    raw, middle, unit = (spectrum(one, target, bias) for one in (x, centred, centred / scale))
    return Conditioning(raw, middle, unit, len(x), tuple(tolerances))


def _listed(tolerances: Any) -> list[Any]:
    if isinstance(tolerances, str) or not isinstance(tolerances, Iterable):
        refuse("tolerances", tolerances, "a list of numbers above 0 is needed")
    return list(tolerances)


def _matrix(values: Any, name: str) -> Floats:
    """Returns float64 numbers, or refuses them."""
    if isinstance(values, Tensor):
        require_dense(name, values)
        values = values.detach().double().cpu().numpy()
    try:
        matrix = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        refuse(name, values, "an array or tensor of numbers is needed")
    if not np.isfinite(matrix).all():
        raise NormalizationError(f"{name} holds NaN or infinite values; linear regression needs finite numbers")
    return matrix
