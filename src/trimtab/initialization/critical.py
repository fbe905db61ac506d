"""Weights at the edge of chaos of the net they stand in."""

import math
from collections import Counter
from typing import Any

import torch
from torch import nn

from trimtab.initialization._between import before, joins
from trimtab.initialization._branches import deepnorm_gains, last_layers, residual_gain
from trimtab.initialization._order import Step, in_module_order
from trimtab.initialization._setting import Setting, start
from trimtab.initialization._starting import starting_q
from trimtab.initialization._watching import LinearMap, watch
from trimtab.initialization._weights import shape_in_use
from trimtab.initialization.report import Initialized
from trimtab.norms._arguments import require_at_least, require_flag, require_number, require_positive
from trimtab.propagation._activation import Activation
from trimtab.propagation._checks import PropagationError
from trimtab.propagation.gains import second_moment
from trimtab.propagation.initial_gains import backward_gain

INPUTS = ("input", "embedding")


def critical_(
    model: nn.Module,
    batch: Any = None,
    *,
    orthogonal: bool = True,
    bias_var: float = 0.0,
    start_q: float | None = None,
    scale_residual: bool = True,
    last_layer: float | None = 1.0,
    generator: torch.Generator | None = None,
) -> Initialized:
    """Set a net's weights so that the gradient keeps its size from layer to layer.

    At the edge of chaos chi_1 = sigma_w^2 E phi'(sqrt(q) z)^2 = 1 (Schoenholz et al. 2017, arXiv:1611.01232), with
    sigma_w^2 = fan_in E W^2 and phi the activation before the layer. The condition is met in each layer at the q that
    it has, instead of at a fixed point, which GELU and SiLU do not have (no stable one of moderate q): q then goes its
    way by q' = E phi^2 / E phi'^2 + bias_var. ReLU: gain sqrt(2), q stays. tanh, GELU, SiLU, SELU without bias: q falls
    like a power of the depth, gain towards 1/|phi'(0)|. With `bias_var` it comes to the fixed point of the
    phase diagram (tanh, 0.05: sigma_w^2 = 1.76). The first layer brings the input to q = 1, or to less where the
    length map is not stable (GELU, SiLU, Mish; 30 layers of GELU: 1/256), where the net starts out nearly linear.

    With a batch, one forward pass shows which activation each weight's input has passed, a module, a function or several
    operations on single units (`x * torch.sigmoid(x)`), and q is measured, layer after layer, while the weights are being
    set. Without one, the order of the modules is taken for the order in which they run, and q is computed from an input
    of mean square 1.

    Each residual branch (x + F(x), unnormalized or normalized before F) has its last weight multiplied by
    1/sqrt(number of branches), so that the stream grows by a factor below e (De and Smith 2020, arXiv:2002.10444).
    Branches that `norms.Residual` or the model scales, that end in a norm, and streams that are normalized after each
    block keep gain 1; DeepNorm's get beta (arXiv:2203.00555).

    Left alone, and named with the reason: frozen weights, weights that several modules share, embeddings, norms,
    recurrent layers, parametrized weights, what the batch does not reach. Biases beside a weight that is set are drawn
    from N(0, bias_var). A module that runs several times is set at its first run. Modes, buffers and gradients stay as
    they are.

    Args:
        model: The net, changed in place; if anything fails, it is as before.
        batch: A tensor (N, ...); a tuple or list whose first element is the input; or a mapping of keyword arguments.
        orthogonal: Orthonormal rows or columns of each weight (Saxe et al. 2014, arXiv:1312.6120), else Gaussian. Of
            the same mean square; orthogonal ones scatter less over depth.
        bias_var: Variance of the biases.
        start_q: Second moment of the first layer's outputs; None for the largest of 1, 1/4, 1/16 ... from which
            differences in length do not outgrow the net's depth.
        scale_residual: Whether residual branches are scaled.
        last_layer: Factor on the weights of the last layer, such as 0 to start from equal logits; None leaves it alone.
        generator: Of all draws, on the CPU; None draws one number from PyTorch's global generator to seed one.

    Returns:
        What was changed, and the prediction for the batch before and after, beside what is measured.

    Raises:
        PropagationError: If the batch is empty or not finite, a layer's input is zero or not finite, or an
            activation passes no gradient.
    """
    require_flag(orthogonal=orthogonal, scale_residual=scale_residual)
    require_at_least(0.0, bias_var=bias_var)
    if last_layer is not None:
        require_number(last_layer=last_layer)
    if start_q is not None:
        require_positive(start_q=start_q)
    setting = start(model, batch, generator)
    options = _Options(bool(orthogonal), float(bias_var), start_q, last_layer)
    gains = deepnorm_gains(setting.work) if scale_residual else {}
    if batch is None:
        _by_modules(setting, options, gains, bool(scale_residual))
    else:
        _by_batch(setting, batch, options, gains, bool(scale_residual))
    kind = "orthogonal" if orthogonal else "Gaussian"
    return setting.hand_over(f"critical_: {kind} weights, chi_1 = 1 in each layer", batch)


class _Options:
    """How weights are to be drawn."""

    def __init__(self, orthogonal: bool, bias_var: float, start_q: float | None, last_layer: float | None) -> None:
        self.orthogonal, self.bias_var, self.last_layer = orthogonal, bias_var, last_layer
        self.start_q = 1.0 if start_q is None else start_q
        self.choose = start_q is None

    def choose_start(self, activations: list[Activation | None]) -> None:
        """Find where the signal is to start, from what stands before each layer that no norm feeds."""
        named = {activation.name: activation for activation in activations if activation is not None}
        counts = Counter(activation.name for activation in activations if activation is not None)
        if self.choose and named:
            self.start_q = min(starting_q(named[name], count, self.bias_var) for name, count in counts.items())

    def factor(self, name: str, last: bool, gains: dict[str, tuple[float, str]]) -> tuple[float, str]:
        """What a weight is multiplied with beside the critical gain, and why."""
        factor, note = gains.get(name, (1.0, ""))
        if last and self.last_layer is not None and self.last_layer != 1.0:
            factor, note = factor * self.last_layer, "; ".join(filter(None, [note, f"last layer, {self.last_layer:g}"]))
        return factor, note


def _by_batch(
    setting: Setting, batch: Any, options: _Options, gains: dict[str, tuple[float, str]], scale_residual: bool
) -> None:
    nodes = watch(setting.work, batch)
    if scale_residual:
        gains = residual_gain(joins(nodes)) | gains
    maps = [node for node in nodes if node.kind == "linear"]
    inner = 0
    for node in maps:
        inner |= node.ancestors
    last = {node.parameter for node in maps if not inner >> node.index & 1}
    if options.last_layer is None:
        setting.left |= {name: "the last layer" for name in last if name is not None and name not in setting.left}
    sources = [before(node.fed) for node in maps if node.fed is not None]
    options.choose_start([activation for source, activation in sources if source.kind not in {"norm", *INPUTS}])
    normed = {
        n.parameter
        for n in maps
        if (users := [o for o in nodes if n in o.parents]) and all(o.kind == "norm" for o in users)
    }

    def act(linear: LinearMap) -> Any:
        name = linear.node.parameter
        if name is not None and setting.may(name):
            source, activation = before(linear.fed)
            shape = shape_in_use(linear, setting.parameters[name])
            gain = _gain(name, source.kind, source.second_moment, activation, linear, options)
            factor, note = options.factor(name, name in last, gains)
            if source.kind == "other" and activation is None:
                note = "; ".join(filter(None, [note, f"fed by {source.name}, taken as it is"]))
            if name in normed:
                note = "; ".join(filter(None, [note, "a norm follows, its size has no effect"]))
            setting.draw(name, shape, gain * factor, options.orthogonal)
            setting.set_bias(name, linear.bias, options.bias_var)
            setting.note(name, shape, "" if activation is None else activation.name, note)
        return linear.execute()

    watch(setting.work, batch, act)


def _gain(name: str, kind: str, q: float, activation: Activation | None, linear: LinearMap, options: _Options) -> float:
    if kind in INPUTS:
        return _first_gain(name, float(linear.given.double().square().mean()), options)
    if not math.isfinite(q):
        raise PropagationError(
            f"what {name} is fed with is not finite on this batch; look at the data and at the layers before"
        )
    return _critical_gain(name, q, activation)


def _first_gain(name: str, square: float, options: _Options) -> float:
    if not (math.isfinite(square) and square > 0.0):
        raise PropagationError(
            f"the input of {name} has mean square {square} on this batch; a positive, finite one is needed"
        )
    if options.bias_var >= options.start_q:
        raise PropagationError(
            f"bias_var is {options.bias_var}; below {options.start_q:.3g} is needed, the second moment at which the first "
            f"layer's outputs start: give a larger start_q"
        )
    return math.sqrt((options.start_q - options.bias_var) / square)


def _critical_gain(name: str, q: float, activation: Activation | None) -> float:
    if activation is None:
        return 1.0
    try:
        return backward_gain(activation, q)
    except PropagationError as error:
        raise PropagationError(f"no weights of {name} are critical: before it, {error}") from error


def _by_modules(setting: Setting, options: _Options, gains: dict[str, tuple[float, str]], scale_residual: bool) -> None:
    steps, notes = in_module_order(setting.work)
    setting.notes += notes
    if scale_residual:
        gains = last_layers(setting.work) | gains
    names = [step.parameter for step in steps]
    if options.last_layer is None and names:
        setting.left.setdefault(names[-1], "the last layer")
    options.choose_start([step.activation for step in steps if not (step.normed or step.first)])
    q = options.start_q
    for step in steps:
        gain, q = _expected(step, q, options)
        if setting.may(step.parameter):
            factor, note = options.factor(step.parameter, step.parameter == names[-1], gains)
            setting.draw(step.parameter, step.shape, gain * factor, options.orthogonal)
            setting.set_bias(step.parameter, None, options.bias_var)
            setting.note(step.parameter, step.shape, "" if step.activation is None else step.activation.name, note)


def _expected(step: Step, q: float, options: _Options) -> tuple[float, float]:
    """The gain of one layer, and the second moment of its outputs."""
    if step.first:
        return _first_gain(step.parameter, 1.0, options), options.start_q
    q = 1.0 if step.normed else q
    gain = _critical_gain(step.parameter, q, step.activation)
    square = q if step.activation is None else second_moment(step.activation, q)
    return gain, gain**2 * square + options.bias_var
