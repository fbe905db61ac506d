"""A peer: neural-tangents' NNGP kernels of its own networks, and of the same networks by the maps of this package.

The largest relative difference was 4e-12 (fully connected) and 9e-14 (convolutional).
"""

import math
import os

import numpy as np
import pytest
from neural_tangents_peer import IMAGE, KERNEL, compute, inputs

from trimtab.propagation import activation, covariance


def through(phi, kernel):
    """E phi phi of every pair, for a matrix of covariances."""
    q = np.diag(kernel)
    out = np.empty_like(kernel)
    for i in range(len(q)):
        for j in range(len(q)):
            c = kernel[i, j] / math.sqrt(q[i] * q[j])
            out[i, j] = covariance(phi, q[i], q[j], min(max(c, -1.0), 1.0)) if j >= i else out[j, i]
    return out


def dense(row):
    x, _ = inputs()
    phi, weight_var, bias_var = activation(row["act"]), row["W_std"] ** 2, row["b_std"] ** 2
    kernel = weight_var * x @ x.T / x.shape[1] + bias_var
    for _ in range(row["depth"]):
        kernel = weight_var * through(phi, kernel) + bias_var
    return kernel


def convolutional(row):
    """Each position of the image is a pair of units; a convolution means over its window, Flatten over the image."""
    _, x = inputs()
    phi, weight_var, bias_var = activation(row["act"]), row["W_std"] ** 2, row["b_std"] ** 2
    kernel = np.einsum("ihwc,jhwc->hwij", x, x) / IMAGE[-1]
    reach = KERNEL // 2
    shifts = [(a, b) for a in range(-reach, reach + 1) for b in range(-reach, reach + 1)]
    for _ in range(row["depth"]):
        kernel = weight_var * np.mean([np.roll(kernel, shift, (0, 1)) for shift in shifts], axis=0) + bias_var
        kernel = np.array([[through(phi, pair) for pair in line] for line in kernel])
    return weight_var * kernel.mean((0, 1)) + bias_var


def check(numbers):
    assert len(numbers["dense"]) == 12
    assert len(numbers["convolutional"]) == 6
    for kind, ours in (("dense", dense), ("convolutional", convolutional)):
        for row in numbers[kind]:
            theirs, mine = np.array(row["nngp"]), ours(row)
            np.testing.assert_allclose(mine, theirs, rtol=1e-9)
            scale = np.sqrt(np.diag(theirs))
            np.testing.assert_allclose(mine / np.outer(scale, scale), theirs / np.outer(scale, scale), atol=1e-9)


def test_kernels_are_those_of_neural_tangents(reference):
    numbers = reference("neural_tangents")
    assert "neural-tangents 0.6.5" in numbers["source"]
    check(numbers)


@pytest.mark.filterwarnings("ignore")  # those of jax and TensorFlow are their own
def test_kernels_of_neural_tangents_run_here():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    pytest.importorskip("jax", reason="jax is not installed: neural-tangents needs an environment of its own")
    pytest.importorskip("neural_tangents", reason="neural-tangents is not installed")
    check(compute())
