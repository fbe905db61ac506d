"""The Jacobians of a network, layer by layer and from end to end, by products with vectors only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from trimtab.norms._arguments import require_module, require_names, require_whole
from trimtab.propagation._checks import PropagationError
from trimtab.propagation._jacobian_products import (
    chain_of,
    correlations,
    gradient_correlations,
    growth,
    spectrum,
)
from trimtab.propagation._probe import copy_to_measure, layer_names, measuring, require_batch


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Singular values of one Jacobian, over all examples of the batch.

    Attributes:
        mean_squared: Sum of the squared singular values over their number, min(rows, columns).
        mean_squared_error: Standard error of it over the probes.
        largest: The largest; from below where it has not converged.
        smallest: The smallest of min(rows, columns); from above where it has not converged.
        largest_error: A singular value lies this close to `largest`.
        smallest_error: The same for `smallest`.
        rows: Outputs, over the batch.
        columns: Inputs, over the batch.
    """

    mean_squared: float
    mean_squared_error: float
    largest: float
    smallest: float
    largest_error: float
    smallest_error: float
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class LayerJacobian:
    """What stands between the output of one layer and that of the layer before it.

    Attributes:
        name: The layer.
        spectrum: Singular values of its output by the output of the layer before (of the first: by the input);
            None where no path leads from the one to the other.
        growth: Log of what the layer does to the root mean square of a random change of the input.
        correlation: Mean cosine of the outputs of two examples.
        gradient_correlation: Mean cosine of the gradients at the outputs for two examples.
    """

    name: str
    spectrum: Spectrum | None
    growth: float
    correlation: float
    gradient_correlation: float


@dataclass(frozen=True, slots=True)
class NetworkJacobian:
    """The Jacobians of a network; prints as a table.

    Attributes:
        layers: One for each layer, first layer first.
        end_to_end: Singular values of the last output by the input.
        lyapunov: Mean log growth per layer, after the first.
        lyapunov_error: Its standard error over the layers; nan for fewer than two.
        input_correlation: Mean cosine of two inputs.
        output_correlation: Mean cosine of their outputs: near 1, the net cannot tell them apart.
        gradient_correlation: Mean cosine of two examples' gradients at the input: near 0 where gradients are shattered.
        gradient_correlation_error: Its standard error over the probes.
    """

    layers: tuple[LayerJacobian, ...]
    end_to_end: Spectrum
    lyapunov: float
    lyapunov_error: float
    input_correlation: float
    output_correlation: float
    gradient_correlation: float
    gradient_correlation_error: float

    def __getitem__(self, name: str) -> LayerJacobian:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(name)

    def __str__(self) -> str:
        width = max(10, *(len(layer.name) for layer in self.layers))
        head = f"{'layer':<{width}}  {'mean s^2':>19}  {'smallest':>10}  {'largest':>10}  {'growth':>7}  {'corr':>6}  {'grad corr':>9}"
        rows = [
            f"{layer.name:<{width}}  {_values(layer.spectrum)}  {layer.growth:>7.3f}  {layer.correlation:>6.3f}  "
            f"{layer.gradient_correlation:>9.3f}"
            for layer in self.layers
        ]
        total = (
            f"{'end to end':<{width}}  {_values(self.end_to_end)}  {'':>7}  {self.output_correlation:>6.3f}  "
            f"{self.gradient_correlation:>9.3f}"
        )
        exponent = f"Lyapunov growth per layer {self.lyapunov:.4f} +- {self.lyapunov_error:.4f} (natural log)"
        alike = (
            f"correlation of two inputs {self.input_correlation:.3f}, of their outputs {self.output_correlation:.3f}"
        )
        return "\n".join([head, *rows, total, exponent, alike])


def jacobian(
    model: nn.Module,
    batch: Any,
    *,
    layers: Sequence[str] | None = None,
    probes: int = 16,
    steps: int = 64,
    seed: int = 0,
) -> NetworkJacobian:
    """Singular values of a network's input-output Jacobian and of each layer's share in it.

    No Jacobian is formed. With J from one layer's output to the next one's:

    - the mean of s_i^2, ||J||_F^2 / min(m, n), is Hutchinson's estimate E ||J^T z||^2 / min(m, n) over `probes` random
      signs z (Hutchinson 1990), with its standard error: chi_1 of the mean-field theory (Schoenholz et al. 2017,
      arXiv:1611.01232), 1 at the edge of chaos;
    - largest and smallest singular value come from Golub and Kahan's bidiagonalization (1965) with full
      reorthogonalization, of our own: all equal to 1 is dynamical isometry (Pennington et al. 2017, arXiv:1711.04735).
      After `steps` products with J and J^T the ends are bounds from inside, and the residual says how good; with
      min(m, n) steps they are exact;
    - the Lyapunov growth is the mean over layers of log(rms(J_l v) / rms(v)), v a random change carried along from the
      input: the typical rate, below the log of the mean square (a Gaussian linear net of width n: -1/(2n));
    - correlations are cosines between examples: of the signal (collapse: Poole et al. 2016, arXiv:1606.05340), and of
      the gradient for one and the same cotangent (shattering: Balduzzi et al. 2017, arXiv:1702.08591).

    It measures on a copy without dropout; batch normalizations stay in the mode they are in. Model and random states are
    left alone. One forward pass is kept with its graph; a product with J^T costs a backward pass through the segment,
    one with J two.

    Args:
        model: The network, with a floating tensor in its output.
        batch: A tensor (N, ...); a tuple or list whose first element is the input; or a mapping of keyword arguments.
            Without one floating input (token numbers) the first layer's output takes its place. The singular values are
            those of all N examples together: take few, two or more for the correlations.
        layers: Names of modules whose outputs cut the net, in the order in which they run; by default every linear
            and convolutional layer. For a residual net, name its blocks: between layers inside a branch the skip is
            not counted.
        probes: Random vectors of each estimate, two or more.
        steps: At most so many steps of bidiagonalization.
        seed: Of all random vectors.

    Returns:
        The table.

    Raises:
        PropagationError: If the batch is empty, the model has no such layer, the batch does not reach one, or a value is not
            finite.
    """
    require_module("model", model)
    require_whole(2, probes=probes)
    require_whole(1, steps=steps)
    require_whole(0, seed=seed)
    require_batch(batch)
    copy = copy_to_measure(model)
    names = layer_names(copy) if layers is None else require_names("layers", layers, "modules")
    known = dict(copy.named_modules())
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise PropagationError(
            f"layers is {list(names)}; "
            + (
                f"the model has no module {unknown[0]!r}"
                if unknown
                else "the model has no linear or convolutional layer"
            )
            + ", name modules of model.named_modules()"
        )
    for parameter in copy.parameters():
        parameter.requires_grad_(False)
    with measuring(copy):
        chain = chain_of(copy, batch, names)
        spectra = [spectrum(chain, k, probes, steps, seed) for k in range(len(chain.names))]
        whole = spectrum(chain, None, probes, steps, seed)
        if whole is None:
            raise PropagationError(
                "no path leads from the input to the output of the model; is it detached, or piecewise constant?"
            )
        grown = growth(chain, probes, seed)
        gradients, gradient_error = gradient_correlations(chain, probes, seed)
        alike = correlations(chain)
    table = tuple(
        LayerJacobian(name, None if found is None else Spectrum(*found), step, like, gradient)
        for name, found, step, like, gradient in zip(
            chain.names, spectra, grown, alike[1:-1], gradients[1:-1], strict=True
        )
    )
    mean, error = _mean_and_error(grown[1:])
    return NetworkJacobian(table, Spectrum(*whole), mean, error, alike[0], alike[-1], gradients[0], gradient_error)


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    count = len(values)
    mean = sum(values) / count if count else float("nan")
    if count < 2:
        return mean, float("nan")
    return mean, (sum((v - mean) ** 2 for v in values) / (count - 1) / count) ** 0.5


def _values(found: Spectrum | None) -> str:
    if found is None:
        return f"{'no path':>19}  {'':>10}  {'':>10}"
    low = "<" if found.smallest_error > 0.01 * found.smallest else " "
    high = ">" if found.largest_error > 0.01 * found.largest else " "
    return (
        f"{found.mean_squared:>9.4g} +- {found.mean_squared_error:<6.2g}"
        f"  {low}{found.smallest:>9.4g}  {high}{found.largest:>9.4g}"
    )
