"""How many products a linear or convolutional layer sums, forward and backward."""

import math
from collections.abc import Sequence

import numpy as np

from trimtab.propagation._checks import PropagationError, require_sequence, require_whole


def fans(
    weight_shape: Sequence[int], stride: int | Sequence[int] = 1, groups: int = 1, transposed: bool = False
) -> tuple[float, float]:
    """Fan-in and fan-out of a layer, of which a convolution's fan-out depends on its stride and groups.

    An output of a convolution sums in_channels/groups times kernel positions; an input feeds out_channels/groups times
    kernel positions over stride positions, on average over the inputs. A transposed convolution swaps the two, and so
    does the layout of its weight. He et al. 2015 (arXiv:1502.01852, sec. 2.2) count so at stride 1;
    torch.nn.init's fans know neither stride nor groups in the fan-out. Edges are left out: see `padded_fans`.

    Args:
        weight_shape: Shape of the weight as PyTorch stores it: (out, in/groups, *kernel), transposed (in, out/groups,
            *kernel); without kernel for a linear layer.
        stride: Stride, one for all dimensions of the kernel or one for each.
        groups: Groups of channels.
        transposed: Whether the convolution is a transposed one.

    Returns:
        fan_in and fan_out, whole numbers or not.

    Raises:
        PropagationError: If the shape, stride and groups cannot belong to one layer.
    """
    weight_shape = _sizes("weight_shape", weight_shape)
    kernel = weight_shape[2:]
    strides = _per_dimension("stride", stride, len(kernel))
    first, second = _channels(weight_shape, groups)
    taps = math.prod(kernel)
    many, few = second * taps, first * taps / math.prod(strides)
    return (few, many) if transposed else (float(many), few)


def padded_fans(
    weight_shape: Sequence[int],
    input_size: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> tuple[float, float]:
    """Fan-in and fan-out of a convolution, without the products that meet the zeros of its padding.

    Means over the output and input positions; on small images a zero-padded layer sums visibly less than `fans` says
    (a 3x3 kernel on 8x8 pixels: 84 %).

    Args:
        weight_shape: Shape of the weight, (out, in/groups, *kernel).
        input_size: Size of the input, one for each dimension of the kernel.
        stride: Stride, one for all dimensions of the kernel or one for each.
        padding: Zeros on both sides, one for all dimensions or one for each.
        dilation: Distance of kernel positions, one for all dimensions or one for each.
        groups: Groups of channels.

    Returns:
        fan_in and fan_out.

    Raises:
        PropagationError: If the numbers cannot belong to one layer, or the kernel does not fit on the padded input.
    """
    weight_shape = _sizes("weight_shape", weight_shape)
    kernel = weight_shape[2:]
    sizes = _per_dimension("input_size", _sizes("input_size", input_size), len(kernel))
    strides = _per_dimension("stride", stride, len(kernel))
    paddings = _per_dimension("padding", padding, len(kernel), least=0)
    dilations = _per_dimension("dilation", dilation, len(kernel))
    first, second = _channels(weight_shape, groups)
    products, outputs = 1, 1
    for size, width, step, pad, apart in zip(sizes, kernel, strides, paddings, dilations, strict=True):
        places = (size + 2 * pad - apart * (width - 1) - 1) // step + 1
        if places < 1:
            raise PropagationError(f"a kernel of {width} at dilation {apart} does not fit on {size} + 2 * {pad} places")
        met = np.arange(places)[:, None] * step - pad + np.arange(width) * apart
        products *= int(np.count_nonzero((met >= 0) & (met < size)))
        outputs *= places
    return second * products / outputs, first * products / math.prod(sizes)


def _channels(weight_shape: tuple[int, ...], groups: int) -> tuple[float, int]:
    """Return the channels of the first axis in one group, and the channels of the second axis.

    Raises:
        PropagationError: If the shape has no fans or the groups do not divide it.
    """
    if len(weight_shape) < 2:
        raise PropagationError(f"a weight of shape {weight_shape} has no fans; two axes or more are needed")
    require_whole("groups", groups)
    if weight_shape[0] % groups:
        raise PropagationError(f"{groups} groups do not divide {weight_shape[0]} channels")
    return weight_shape[0] / groups, weight_shape[1]


def _per_dimension(name: str, value: int | Sequence[int], dimensions: int, least: int = 1) -> tuple[int, ...]:
    if isinstance(value, int):
        require_whole(name, value, least)
        return (value,) * dimensions
    values = _sizes(name, value, least)
    if len(values) != dimensions:
        raise PropagationError(f"{name} {values} has {len(values)} numbers; the kernel has {dimensions} dimensions")
    return values


def _sizes(name: str, value: Sequence[int], least: int = 1) -> tuple[int, ...]:
    sizes = require_sequence(name, value, "whole numbers")
    for size in sizes:
        require_whole(f"a number of {name}", size, least)
    return sizes
