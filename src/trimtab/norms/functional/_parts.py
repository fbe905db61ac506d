"""What the explicit forward and backward passes return: every part under its own name."""

from dataclasses import dataclass, field

from torch import Tensor

from trimtab.norms.functional._layout import Layout


@dataclass(frozen=True)
class Normalized:
    """A normalization's forward pass, with its statistics.

    All but `output` is in the precision of the computation: float32 for half precision. `S` is the shape of the
    statistics: (C,) for batch normalization, (N, G) for group, (N, C) for instance, the leading axes of the input for
    layer and RMS normalization.

    Attributes:
        output: weight * normalized + bias, with dtype and shape of the input.
        normalized: (x - mean) / sqrt(variance + eps), zero where a mask is False; shape of the input.
        mean: Shape S; zero for RMS normalization, which takes none off.
        variance: Biased (divided by the count), shape S; for RMS normalization the mean square.
        inverse_std: 1 / sqrt(variance + eps), shape S.
        count: How many values share a statistic: a number, or with a mask a tensor of shape S.
        weight: gamma as it was given, or None for ones.
        bias: beta as it was given, or None for zeros.
        fixed: Whether the statistics were given (running statistics) and so pass no gradient.
        centred: Whether the mean was taken off.
        layout: Which axes share a statistic, which a parameter.
        mask: True where a value counted, or None for everywhere.
    """

    output: Tensor
    normalized: Tensor
    mean: Tensor
    variance: Tensor
    inverse_std: Tensor
    count: int | Tensor
    weight: Tensor | None
    bias: Tensor | None
    fixed: bool
    centred: bool
    layout: Layout = field(repr=False)
    mask: Tensor | None = field(repr=False)

    @property
    def gain(self) -> Tensor:
        """The effective gradient gain weight / sqrt(variance + eps): (C,), (N, C), or the shape of the input.

        What the layer multiplies a gradient with, beside projecting it. Its largest magnitude bounds the local Lipschitz
        constant, and is it where the weight is alike for all of a group of three values or more (two without centring).
        """
        inverse_std = self.layout.unpack(self.inverse_std)
        if self.weight is None:
            return self.layout.pack_product(inverse_std)
        return self.layout.pack_product(self.layout.spread(self.weight.to(inverse_std.dtype)) * inverse_std)


@dataclass(frozen=True)
class Gradients:
    """A normalization's backward pass, dx in its three paths; in the precision of the computation.

    Attributes:
        dx: Gradient at the input: the sum of the three paths.
        through_normalized: dy * weight * inverse_std, the path that holds mean and variance still.
        through_mean: The path through the mean: one number a statistic, spread over the values that share it. Its part
            through the variance is zero, since deviations from the mean add up to zero. Zero without centring.
        through_variance: The path through the variance (in RMS normalization the mean square).
        dgamma: Gradient at the weight, or what it would be at a weight of ones; shape of the parameters.
        dbeta: Gradient at the bias, likewise; of a bias of zeros in RMS normalization, which has none.
        projected: Share of the energy of dy * weight that the normalization takes out, in [0, 1], one a statistic:
            what lies along the constant and along the normalized values. (sum dx²) / inverse_std² is (1 - projected)
            of the energy. Zero where no gradient arrives, and with fixed statistics.
    """

    dx: Tensor
    through_normalized: Tensor
    through_mean: Tensor
    through_variance: Tensor
    dgamma: Tensor
    dbeta: Tensor
    projected: Tensor


@dataclass(frozen=True)
class WeightNormalized:
    """Weight normalization's forward pass; all but `weight` in the precision of the computation.

    Attributes:
        weight: g * direction, with dtype and shape of v.
        direction: v / |v|.
        norm: |v|, one for each index of the kept axis; shape of g.
        g: The lengths as they were given.
        axes: Those over which a norm is taken.
    """

    weight: Tensor
    direction: Tensor
    norm: Tensor
    g: Tensor
    axes: tuple[int, ...] = field(repr=False)

    @property
    def gain(self) -> Tensor:
        """The effective gradient gain g / |v|, shape of g: it falls as v grows."""
        return self.g.to(self.norm.dtype) / self.norm


@dataclass(frozen=True)
class WeightGradients:
    """Weight normalization's backward pass; in the precision of the computation.

    Attributes:
        dv: Gradient at v: gain * tangential, at right angles to v.
        dg: Gradient at g: the length of `radial`, with its sign.
        radial: The part of the incoming gradient along v, which only g can follow.
        tangential: The part across v, which only v can follow; the two add up to the incoming gradient.
        projected: Share of the energy of the incoming gradient that v does not see (that of `radial`), in [0, 1];
            shape of g.
    """

    dv: Tensor
    dg: Tensor
    radial: Tensor
    tangential: Tensor
    projected: Tensor


@dataclass(frozen=True)
class SpectralNormalized:
    """Spectral normalization's forward pass; all but `weight` in the precision of the computation.

    Attributes:
        weight: weight / sigma, with dtype and shape of the weight.
        sigma: u^T W v, a scalar: the spectral norm once the power iteration has converged, never more than it.
        u: Left vector after the iterations, the state to hand in at the next call.
        v: Right vector, likewise.
        original: The weight as it was given.
        dim: The axis whose entries are the rows of W.
    """

    weight: Tensor
    sigma: Tensor
    u: Tensor
    v: Tensor
    original: Tensor = field(repr=False)
    dim: int = field(repr=False)

    @property
    def gain(self) -> Tensor:
        """The effective gradient gain 1 / sigma, a scalar."""
        return self.sigma.reciprocal()


@dataclass(frozen=True)
class SpectralGradients:
    """Spectral normalization's backward pass; in the precision of the computation.

    Attributes:
        dweight: Gradient at the weight: the sum of the two paths; its inner product with the weight is zero.
        through_weight: dy / sigma, the path that holds sigma still.
        through_sigma: dsigma * u v^T, the path through sigma, which holds u and v still.
        dsigma: Gradient at sigma, -(sum dy * W) / sigma²: a scalar.
    """

    dweight: Tensor
    through_weight: Tensor
    through_sigma: Tensor
    dsigma: Tensor
