"""Quadrature over one or two of the values that batch normalisation makes of a batch.

Normalised, a Gaussian batch of B is uniform on the sphere of radius sqrt(B) in the B - 1 directions off the mean. One value
is sqrt(B - 1) t with t a coordinate of the unit sphere there, of density (1 - t^2)^((B - 4)/2); two values are
sqrt(B - 1) times a point of the unit disc of density (1 - R^2)^((B - 5)/2), seen along two axes at an angle of cosine
-1/(B - 1).
"""

from collections.abc import Sequence

import numpy as np

from trimtab.propagation._activation import Array

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
RINGS = np.array([s * 4.0**k for s in (-1.0, 1.0) for k in range(-2, 5)])
REACH = 12.0


def single_nodes(batch: int, kinks: Sequence[float], feature: float) -> tuple[Array, Array]:
    """Values y_1 of a normalised batch, and weights.

    Args:
        batch: B, four or more.
        kinks: Values where the integrand is not smooth.
        feature: Width of the features of the integrand around the kinks.

    Returns:
        Nodes and weights, one-dimensional, the weights summing to 1.
    """
    scale, reach = np.sqrt(batch - 1.0), min(0.5 * np.pi, REACH / np.sqrt(batch))
    levels = _levels(kinks, feature)
    inside = levels[np.abs(levels) < scale * np.sin(reach)]
    edges = np.unique(np.concatenate([np.linspace(-reach, reach, 49), np.arcsin(inside / scale)]))
    angle, weight = _panels(edges)
    weight *= np.cos(angle) ** (batch - 3.0)
    return scale * np.sin(angle), weight / weight.sum()


def pair_nodes(batch: int, kinks: Sequence[float], feature: float) -> tuple[Array, Array, Array]:
    """Two different values y_1, y_2 of a normalised batch, and weights.

    Args:
        batch: B, four or more.
        kinks: Values where the integrand is not smooth, in either.
        feature: Width of the features of the integrand around the kinks.

    Returns:
        y_1, y_2 and weights, one-dimensional, the weights summing to 1.
    """
    scale, reach = np.sqrt(batch - 1.0), min(0.5 * np.pi, REACH / np.sqrt(batch))
    tangent = np.abs([
        k / scale for k in kinks if 0.0 < abs(k) < scale
    ])  # circles that touch a kink: a root begins there
    onsets = [
        np.arcsin(np.clip(t + s * 4.0**-j, 0.0, 1.0)) for t in tangent for s in (-1.0, 0.0, 1.0) for j in range(12)
    ]
    edges = np.unique(np.clip(np.concatenate([np.linspace(0.0, reach, 25), onsets]), 0.0, reach))
    polar, radial = _panels(edges)
    radial *= np.sin(polar) * np.cos(polar) ** (batch - 4.0)
    radius, apart = scale * np.sin(polar), np.arccos(-1.0 / (batch - 1.0))
    met = np.arccos(np.clip(_levels(kinks, feature) / radius[:, None], -1.0, 1.0))
    turns = np.concatenate([met, -met, apart + met, apart - met], axis=1)
    turns = (turns + np.pi) % (2.0 * np.pi) - np.pi
    even = np.broadcast_to(np.linspace(-np.pi, np.pi, 17), (len(radius), 17))
    angle, weight = _panels(np.sort(np.concatenate([even, turns], axis=1), axis=1))
    weight *= radial[:, None]
    y_1, y_2 = radius[:, None] * np.cos(angle), radius[:, None] * np.cos(angle - apart)
    return y_1.ravel(), y_2.ravel(), weight.ravel() / weight.sum()


def _levels(kinks: Sequence[float], feature: float) -> Array:
    return np.unique(np.add.outer(np.array(kinks), np.append(feature * RINGS, 0.0)))


def _panels(edges: Array) -> tuple[Array, Array]:
    half = 0.5 * np.diff(edges)[..., None]
    at = edges[..., :-1, None] + half * (1.0 + NODES)
    return at.reshape(*edges.shape[:-1], -1), (half * WEIGHTS).reshape(*edges.shape[:-1], -1)
