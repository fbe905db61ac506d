"""What every result carries beside its value: its certificate."""

from dataclasses import dataclass

import torch

from trimtab.curvature.operator import Operator

ROUNDING = 2e4
"""A matrix counts as symmetric up to so many times the machine precision: 2e-3 in float32 and 4e-12 in float64."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """How a number was come by.

    Attributes:
        symmetry: Largest difference of u'Hv and v'Hu among the vectors that were used anyway, relative to the largest value.
        products: Products with a vector that it took.
        seconds: Wall time, setting up of kept graphs included.
        mode: "train" or "eval".
        operator: What was measured, in words.
        precision: Of the computation, in words.
        symmetric: Whether `symmetry` is of the size of rounding; else the operator is wrong, and so is the value.
    """

    symmetry: float
    products: int
    seconds: float
    mode: str
    operator: str
    precision: str
    symmetric: bool

    def certificate(self) -> str:
        """One line."""
        asymmetric = "" if self.symmetric else ", NOT SYMMETRIC: do not trust the values"
        mode = {"train": "training", "eval": "evaluation"}[self.mode]
        return (
            f"{mode} mode, {self.products} products, {self.seconds:.3g} s, {self.precision}, "
            f"symmetry {self.symmetry:.1e}{asymmetric}"
        )


def certified(operator: Operator, symmetry: float, products: int, seconds: float) -> dict[str, object]:
    """The arguments of a certificate.

    Args:
        operator: What was measured.
        symmetry: The largest relative difference found.
        products: Products taken.
        seconds: Wall time.

    Returns:
        By name.
    """
    return {
        "symmetry": symmetry,
        "products": products,
        "seconds": seconds,
        "mode": operator.problem.mode,
        "operator": operator.describe(),
        "precision": str(operator.dtype).removeprefix("torch."),
        "symmetric": symmetry <= ROUNDING * torch.finfo(operator.dtype).eps,
    }
