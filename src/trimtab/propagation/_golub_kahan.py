"""Extreme singular values of an operator known by its products alone."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

BREAKDOWN = 1e-13  # relative to the largest entry: the Krylov space is complete to rounding


class Extremes(NamedTuple):
    """Outcome of the bidiagonalization.

    Attributes:
        largest: Largest singular value, a lower bound until it has converged.
        smallest: Smallest of min(m, n), an upper bound until it has converged.
        largest_error: Residual of its triplet: a singular value lies this close.
        smallest_error: The same for the smallest.
        steps: Products with the operator, and as many with its transpose.
        complete: Whether the Krylov space was exhausted, so that both values are exact to rounding.
    """

    largest: float
    smallest: float
    largest_error: float
    smallest_error: float
    steps: int
    complete: bool


def extremes(
    forward: Callable[[Tensor], Tensor],
    backward: Callable[[Tensor], Tensor],
    rows: int,
    columns: int,
    steps: int,
    generator: torch.Generator,
) -> Extremes:
    """Golub and Kahan's (1965) lower bidiagonalization, with full reorthogonalization of both bases, in float64.

    A V = U B and A^T U = V B^T + r: the singular values of the small bidiagonal B approach those of A from inside,
    the extreme ones first. It starts on the shorter side, so that the null space of a wide or tall A is not among
    the values.

    Args:
        forward: v of shape (columns,) to A v of shape (rows,).
        backward: u of shape (rows,) to A^T u.
        rows: m.
        columns: n.
        steps: How many at most.
        generator: Of the start vector, on the CPU.

    Returns:
        Both ends of the spectrum.
    """
    if rows < columns:
        forward, backward, rows, columns = backward, forward, columns, rows
    steps = min(steps, columns)
    v = torch.randn(columns, generator=generator, dtype=torch.float64)
    right, left = (v / v.norm())[None], torch.empty(0, rows, dtype=torch.float64)
    alphas: list[float] = []
    betas: list[float] = []
    while True:
        u = _off(forward(right[-1]).double().cpu(), left)
        alphas.append(float(u.norm()))
        largest = max(alphas + betas)
        if not np.isfinite(largest):
            return Extremes(largest, largest, largest, largest, len(alphas), False)
        if alphas[-1] <= BREAKDOWN * largest:  # a null vector of A: its value is 0, and nothing follows
            betas.append(0.0)
            break
        left = torch.cat([left, (u / alphas[-1])[None]])
        v = _off(backward(left[-1]).double().cpu(), right)
        betas.append(float(v.norm()))
        if betas[-1] <= BREAKDOWN * largest or len(alphas) == steps:
            break
        right = torch.cat([right, (v / betas[-1])[None]])
    complete = betas[-1] <= BREAKDOWN * max(alphas) or len(alphas) == columns
    bidiagonal = np.diag(alphas) + np.diag(betas[:-1], 1)
    vectors, values, _ = np.linalg.svd(bidiagonal)
    errors = np.zeros(len(alphas)) if complete else betas[-1] * np.abs(vectors[-1])
    return Extremes(
        float(values[0]), float(values[-1]), float(errors[0]), float(errors[-1]), len(alphas), bool(complete)
    )


def _off(vector: Tensor, basis: Tensor) -> Tensor:
    """A vector without its parts along an orthonormal basis; twice is enough (Giraud et al. 2005)."""
    for _ in range(2):
        vector = vector - basis.T @ (basis @ vector)
    return vector
