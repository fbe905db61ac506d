"""The activations that trimtab knows, by name."""

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from trimtab.errors import TrimtabError
from trimtab.propagation import _piecewise, _smooth
from trimtab.propagation._activation import Activation


class UnknownActivationError(TrimtabError, ValueError):
    """No activation has this name, or it does not take these parameters."""


_BUILDERS = MappingProxyType[str, Callable[..., Activation]]({
    builder.__name__: builder
    for builder in (
        _piecewise.identity,
        _piecewise.relu,
        _piecewise.leaky_relu,
        _piecewise.prelu,
        _piecewise.elu,
        _piecewise.selu,
        _piecewise.hard_tanh,
        _piecewise.hard_sigmoid,
        _piecewise.hard_swish,
        _piecewise.relu6,
        _piecewise.softsign,
        _piecewise.softshrink,
        _piecewise.hardshrink,
        _smooth.gelu,
        _smooth.silu,
        _smooth.mish,
        _smooth.tanh,
        _smooth.sigmoid,
        _smooth.erf,
        _smooth.softplus,
        _smooth.log_sigmoid,
        _smooth.tanhshrink,
        _smooth.sin,
    )
})

ACTIVATION_NAMES = tuple(sorted(_BUILDERS))


def activation(name: str, **parameters: Any) -> Activation:
    """Look an activation up.

    The parameters and their defaults are those of PyTorch's modules: negative_slope of leaky_relu and prelu (where
    PyTorch calls it init), alpha of elu, beta of softplus, approximate ("none", "tanh") of gelu, lambd of softshrink
    and hardshrink, min_val and max_val of hard_tanh (torch.nn, "Non-linear Activations").

    Args:
        name: One of `ACTIVATION_NAMES`.
        **parameters: What shapes this activation.

    Returns:
        The activation.

    Raises:
        UnknownActivationError: If the name is not known, or the activation does not take the parameters.
    """
    builder = _BUILDERS.get(name) if isinstance(name, str) else None
    if builder is None:
        raise UnknownActivationError(f"no activation is called {name!r}; known are {', '.join(ACTIVATION_NAMES)}")
    for parameter, value in parameters.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UnknownActivationError(f"{name} cannot be made with {parameter} = {value}; a finite number is needed")
    try:
        return builder(**parameters)
    except (TypeError, ValueError) as error:
        raise UnknownActivationError(f"{name} cannot be made with {parameters}: {error}") from error
