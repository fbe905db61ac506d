"""Activations as users have them: a name, a PyTorch module, or any function that PyTorch can differentiate."""

import copy
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._checks import PropagationError
from trimtab.propagation._kinks import find_kinks
from trimtab.propagation.activations import activation as by_name

ActivationLike = Activation | str | nn.Module | Callable[[Tensor], Tensor]
"""What stands for an activation: one of this package's, its name, a module, or an elementwise function of tensors."""

FAR = 1e6
_GRID = np.concatenate([np.linspace(-20.0, 20.0, 8001), np.geomspace(20.0, FAR, 200), -np.geomspace(20.0, FAR, 200)])

_MODULES: Mapping[type[nn.Module], Callable[[Any], Activation]] = MappingProxyType({
    nn.Identity: lambda m: by_name("identity"),
    nn.ReLU: lambda m: by_name("relu"),
    nn.LeakyReLU: lambda m: by_name("leaky_relu", negative_slope=m.negative_slope),
    nn.ELU: lambda m: by_name("elu", alpha=m.alpha),
    nn.SELU: lambda m: by_name("selu"),
    nn.Hardtanh: lambda m: by_name("hard_tanh", min_val=m.min_val, max_val=m.max_val),
    nn.Hardsigmoid: lambda m: by_name("hard_sigmoid"),
    nn.Hardswish: lambda m: by_name("hard_swish"),
    nn.ReLU6: lambda m: by_name("relu6"),
    nn.Softsign: lambda m: by_name("softsign"),
    nn.Softshrink: lambda m: by_name("softshrink", lambd=m.lambd),
    nn.Hardshrink: lambda m: by_name("hardshrink", lambd=m.lambd),
    nn.GELU: lambda m: by_name("gelu", approximate=m.approximate),
    nn.SiLU: lambda m: by_name("silu"),
    nn.Mish: lambda m: by_name("mish"),
    nn.Tanh: lambda m: by_name("tanh"),
    nn.Sigmoid: lambda m: by_name("sigmoid"),
    nn.Softplus: lambda m: by_name("softplus", beta=m.beta),
    nn.LogSigmoid: lambda m: by_name("log_sigmoid"),
    nn.Tanhshrink: lambda m: by_name("tanhshrink"),
})

_FUNCTIONS: Mapping[Any, str] = MappingProxyType({
    torch.relu: "relu",
    functional.relu: "relu",
    functional.leaky_relu: "leaky_relu",
    functional.elu: "elu",
    functional.selu: "selu",
    torch.selu: "selu",
    functional.hardtanh: "hard_tanh",
    functional.hardsigmoid: "hard_sigmoid",
    functional.hardswish: "hard_swish",
    functional.relu6: "relu6",
    functional.softsign: "softsign",
    functional.softshrink: "softshrink",
    functional.hardshrink: "hardshrink",
    functional.gelu: "gelu",
    functional.silu: "silu",
    functional.mish: "mish",
    torch.tanh: "tanh",
    functional.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    functional.sigmoid: "sigmoid",
    torch.erf: "erf",
    torch.special.erf: "erf",
    functional.softplus: "softplus",
    functional.logsigmoid: "log_sigmoid",
    functional.tanhshrink: "tanhshrink",
    torch.sin: "sin",
})


def as_activation(activation: ActivationLike) -> Activation:
    """Return what the formulas need to know of an activation.

    The activations of `ACTIVATION_NAMES` are recognised as modules and functions too and keep their closed forms and
    exact kinks. Any other function is evaluated in float64 and differentiated by autograd; its kinks are searched for
    within 64 units of 0 (`find_kinks`), its bounds sampled. A module is copied and never changed. A function that is
    used many times is best converted once.

    Args:
        activation: A name, a module, or a function that maps a tensor elementwise; or an `Activation`, returned as it is.

    Returns:
        The activation.

    Raises:
        PropagationError: If it is no activation, changes the shape, mixes elements (softmax, GLU, normalizations), is
            random, is not finite, or autograd cannot differentiate it.
        UnknownActivationError: If it is a name that is not known.
    """
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        return _named(activation)
    known = _known(activation)
    if known is not None:
        return known
    if not callable(activation):
        raise PropagationError(
            f"activation is {activation!r} ({type(activation).__name__}); "
            "a name, a torch.nn.Module or a function of a tensor is needed"
        )
    return _sampled(activation)


@functools.lru_cache(maxsize=64)
def _named(name: str) -> Activation:
    return by_name(name)


def _known(activation: Any) -> Activation | None:
    if isinstance(activation, nn.Module):
        if any(nn.parameter.is_lazy(p) or p.is_meta for p in activation.parameters()):
            raise PropagationError(f"{type(activation).__name__} has parameters without values; give it some first")
        if type(activation) is nn.PReLU and activation.num_parameters == 1:
            return by_name("prelu", negative_slope=float(activation.weight.detach()))
        if type(activation) is nn.Softplus and activation.threshold < 20.0:  # a jump that counts
            return None
        build = _MODULES.get(type(activation))
        return None if build is None else build(activation)
    try:
        name = _FUNCTIONS.get(activation)
    except TypeError:  # not hashable
        return None
    return None if name is None else _named(name)


def _sampled(activation: Callable[[Tensor], Tensor]) -> Activation:
    name = getattr(activation, "__name__", type(activation).__name__)
    function = activation
    if isinstance(activation, nn.Module):
        function = copy.deepcopy(activation).to("cpu", torch.float64).forward  # past the hooks, which are the user's
    _require_elementwise(name, function)

    def value(u: Array) -> Array:
        with torch.no_grad():
            return np.asarray(function(_tensor(u)).numpy(), dtype=np.float64)

    def derivative(u: Array) -> Array:
        with torch.enable_grad():
            x = _tensor(u).requires_grad_(True)
            (slope,) = torch.autograd.grad(function(x.clone()).sum(), x)  # a clone: it may work in place
        return np.asarray(slope.numpy(), dtype=np.float64)

    y, slopes = value(_GRID), derivative(_GRID)
    if not (np.all(np.isfinite(y)) and np.all(np.isfinite(slopes))):
        bad = _GRID[~(np.isfinite(y) & np.isfinite(slopes))][0]
        raise PropagationError(f"{name} is not finite at u = {bad:g}; an activation of every real number is needed")
    low, high = _bounds(value, y)
    kinks = find_kinks(name, value, derivative)
    beside = derivative(np.add.outer(np.array(kinks), [-1e-9, 1e-9]).ravel())
    return Activation(name, value, derivative, kinks, low, high, float(np.abs(np.append(slopes, beside)).max()))


def _tensor(u: Array) -> Tensor:
    return torch.tensor(np.asarray(u), dtype=torch.float64, device="cpu")


def _require_elementwise(name: str, function: Callable[[Tensor], Tensor]) -> None:
    """Refuse what is no scalar function, by its values on the same numbers in three arrangements."""
    x = _tensor(3.0 * np.sin(np.arange(30.0) ** 2)).reshape(5, 6)  # irregular, since softmax does not see shifts
    order = _tensor(np.arange(30.0) * 7.0 % 30.0).long()
    state = torch.get_rng_state()
    try:
        y = _differentiable(name, function, x)
        again, fewer = function(x.clone()).detach(), function(x.reshape(-1)[:19].clone()).detach()
        moved = function(x.reshape(-1)[order].reshape(5, 6)).detach()
    except PropagationError:
        raise
    except Exception as error:
        raise PropagationError(f"{name} does not take tensors of shape (5, 6) and (19,): {error}; {_WANTED}") from error
    finally:
        torch.set_rng_state(state)
    if not torch.allclose(again, y, rtol=0.0, atol=0.0, equal_nan=True):
        raise PropagationError(f"{name} gives another value when called again: it is random; call .eval() on it first")
    same = moved.shape == x.shape and fewer.shape == (19,)
    for other, mine in ((moved, y.reshape(-1)[order].reshape(5, 6)), (fewer, y.reshape(-1)[:19])):
        if not (same and torch.allclose(other, mine, rtol=1e-12, atol=1e-14, equal_nan=True)):
            raise PropagationError(f"{name} mixes the elements of its input; {_WANTED}")


def _differentiable(name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.enable_grad():
        y = function(x.clone().requires_grad_(True).clone())
    if isinstance(y, Tensor) and y.is_complex():
        raise PropagationError(f"{name} gives complex numbers; {_WANTED}")
    if not (isinstance(y, Tensor) and y.shape == x.shape):
        shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise PropagationError(f"{name} turns a tensor of shape (5, 6) into {shape}; {_WANTED}")
    if not y.requires_grad:
        raise PropagationError(f"autograd cannot differentiate {name}; {_WANTED}")
    return y.detach()


_WANTED = "a scalar function, applied to every element alone, is needed (no softmax, GLU or normalization)"


def _bounds(value: Callable[[Array], Array], y: Array) -> tuple[float, float]:
    """Return the sampled bounds, infinite where the function still moves a thousandfold further out."""
    near, far = value(np.array([-1e-3, 1e-3]) * FAR), value(np.array([-FAR, FAR]))
    room = 0.01 * (1.0 + np.abs(near))
    low = -np.inf if np.any(far < near - room) else float(y.min())
    high = np.inf if np.any(far > near + room) else float(y.max())
    return low, high
