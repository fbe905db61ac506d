"""What neural-tangents says of its own networks; run as a script it writes tests/reference/neural_tangents.json.

It needs neural-tangents 0.6.5 with jax 0.4.30 (later ones have moved what it imports), in an environment of its own:

    pip install neural-tangents==0.6.5 jax==0.4.30 jaxlib==0.4.30 tf2jax==0.3.6 'numpy<2' 'scipy<1.14'
    JAX_ENABLE_X64=1 python tests/propagation/neural_tangents_peer.py

The nets are those of its README: fully connected with Dense(512), and convolutional with Conv, Flatten and Dense.
"""

import json
from pathlib import Path

import numpy as np

ACTIVATIONS = ("relu", "erf", "gelu")
DEPTHS = (2, 10)
SCALES = ((1.0, 0.0), (1.5, 0.1))
IMAGE, KERNEL, CONVOLUTIONS = (2, 5, 5, 3), 3, 3


def inputs():
    """Three vectors and two images, the same on every machine."""
    flat = np.cos(np.arange(60.0) ** 1.5).reshape(3, 20) * np.array([[0.5], [1.0], [2.0]])
    return flat, 1.3 * np.sin(np.arange(np.prod(IMAGE)) ** 1.3 + 0.5).reshape(IMAGE)


def compute():
    """NNGP kernels by neural-tangents, in float64."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import neural_tangents
    from neural_tangents import stax

    phi = {
        "relu": stax.Relu(),
        "erf": stax.Erf(),
        "gelu": stax.Gelu(),
    }
    flat, image = inputs()
    dense, convolutional = [], []
    for name in ACTIVATIONS:
        for weight_std, bias_std in SCALES:
            kinds = {"W_std": weight_std, "b_std": bias_std}
            for depth in DEPTHS:
                layers = [stax.Dense(512, **kinds), phi[name]] * depth
                kernel = stax.serial(*layers, stax.Dense(1, **kinds))[2](flat, None, "nngp")
                dense.append({"act": name, "depth": depth, **kinds, "nngp": np.asarray(kernel).tolist()})
            layers = [stax.Conv(64, (KERNEL, KERNEL), padding="CIRCULAR", **kinds), phi[name]] * CONVOLUTIONS
            kernel = stax.serial(*layers, stax.Flatten(), stax.Dense(1, **kinds))[2](image, None, "nngp")
            convolutional.append({"act": name, "depth": CONVOLUTIONS, **kinds, "nngp": np.asarray(kernel).tolist()})
    return {
        "source": f"neural-tangents {neural_tangents.__version__}, jax {jax.__version__}, float64",
        "how_checked": "written by tests/propagation/neural_tangents_peer.py, which says how; inputs are its inputs()",
        "dense": dense,
        "convolutional": convolutional,
    }


if __name__ == "__main__":
    target = Path(__file__).parents[1] / "reference" / "neural_tangents.json"
    target.write_text(json.dumps(compute(), indent=1) + "\n")
