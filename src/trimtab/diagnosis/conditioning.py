"""Along which directions of the inputs a trained setup still has something to learn that a linear map could tell.

With A = [X 1], the inputs of the first linear layer and a column of ones, a linear model under squared error has the Hessian
H = A^T A / N, and each step of gradient descent multiplies the error along eigendirection i by (1 - eta lambda_i)
(`trimtab.norms.standardizer.spectrum`). So what is left after a run lies along the directions of small lambda_i. The gradient of any
loss at the outputs takes the place of the residual: at the best linear map it is orthogonal to every column of A.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.diagnosis.view import ADAPTIVE

SAMPLES = 2048
"""Samples that are looked at, of one pass."""

WIDEST = 256
"""Inputs of a layer: beyond, the decomposition takes longer than a diagnosis may."""

PER_FEATURE = 4
"""Samples for each input, below which any residual looks linear."""


@dataclass(frozen=True, slots=True)
class Modes:
    """The eigendirections of what the first linear layer is given, and what of the residual lies along each.

    Attributes:
        layer: The layer.
        samples: N.
        eigenvalues: Of A^T A / N, falling.
        left: Share of the squared residual along each.
        condition: Largest over smallest eigenvalue of the inputs as they are.
        standardized: The same once every column has mean 0 and variance 1: what no scaling mends.
    """

    layer: str
    samples: int
    eigenvalues: tuple[float, ...]
    left: tuple[float, ...]
    condition: float
    standardized: float

    def share(self, low: float, high: float = np.inf) -> float:
        """Share of the squared residual along the directions with low < lambda / lambda_max <= high, less what chance puts there.

        Args:
            low: Lower end.
            high: Upper end.

        Returns:
            At most 1; around 0 where the residual is noise.
        """
        values = np.array(self.eigenvalues) / self.eigenvalues[0]
        inside = (values > low) & (values <= high)
        chance = inside.sum() / self.samples
        return float((np.array(self.left)[inside].sum() - chance) / (1 - chance))


def modes(setup: Setup) -> dict[str, Any] | None:
    """The directions of the inputs and the residual along them; everything is as it was afterwards.

    Args:
        setup: A setup that has been trained. Where its optimizer takes the scale off each weight's gradient (Adam), the directions are
            those of the standardized inputs.

    Returns:
        The fields of `Modes`; None where the first layer with a weight is no linear one that is given a table, where the model's own
        output is not what the loss is made of, or where there are too few samples.
    """
    model = setup.model
    with unchanged(model, *model.parameters(), *model.buffers(), used_by=(setup.loss, setup.batches)) as kept:
        try:
            model.train()
            found = _gather(setup, kept.add_data)
        except Exception:  # a loss that cannot be had once more: then nobody knows
            return None
    adaptive = all(ADAPTIVE & {cls.__name__ for cls in type(o).__mro__} for o in setup.optimizers)
    return None if found is None else _decompose(*found, adaptive)


def _gather(setup: Setup, on_pass: Any) -> tuple[str, np.ndarray, np.ndarray] | None:
    """The layer, its inputs and the gradient of the loss at the model's outputs, sample by sample."""
    layer = None
    inputs, residuals = [], []
    seen = 0
    for batch in _one_pass(setup, on_pass):
        one = _look(setup, batch)
        if one is None or (layer is not None and one[0] != layer):
            return None
        layer, given, residual = one
        inputs.append(given)
        residuals.append(residual)
        seen += len(given)
        if seen >= SAMPLES:
            break
    if layer is None or seen < PER_FEATURE * (inputs[0].shape[1] + 1):
        return None
    return layer, np.concatenate(inputs), np.concatenate(residuals)


def _one_pass(setup: Setup, on_pass: Any) -> Iterator[Any]:
    passes = 0

    def begun(batches: Iterable[Any]) -> None:
        nonlocal passes
        passes += 1
        on_pass(batches)

    for batch in setup.stream(on_pass=begun):
        if passes > 1:
            return
        yield batch


def _look(setup: Setup, batch: Any) -> tuple[str, np.ndarray, np.ndarray] | None:
    """One batch: the name of the first layer with a weight, its input, and the loss's gradient at the model's output."""
    calls: list[tuple[str, nn.Module, Tensor]] = []
    outputs: list[Any] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, given, name=name: calls.append((name, module, given[0])))
        for name, module in setup.model.named_modules()
        if any(p.ndim > 1 for p in module.parameters(recurse=False))
    ]
    hooks.append(setup.model.register_forward_hook(lambda module, given, output: outputs.append(output)))
    try:
        loss = setup.compute_loss(batch)
    finally:
        for hook in hooks:
            hook.remove()
    if len(outputs) != 1 or not calls or not isinstance(outputs[0], Tensor):
        return None
    (name, module, given), output = calls[0], outputs[0]
    fits = isinstance(module, nn.Linear) and given.ndim == 2 and given.shape[1] <= WIDEST
    if not fits or output.ndim not in (1, 2) or len(output) != len(given):
        return None
    (gradient,) = torch.autograd.grad(loss, output)
    # The mean over the batch is undone, so that batches of any size count alike.
    residual = gradient.detach().double().reshape(len(output), -1) * len(output)
    return name, given.detach().double().cpu().numpy(), residual.cpu().numpy()


def _decompose(layer: str, x: np.ndarray, residual: np.ndarray, standardize: bool) -> dict[str, Any] | None:
    total = float(np.square(residual).sum())
    if not (np.isfinite(x).all() and np.isfinite(total) and total > 0):
        return None
    centred = x - x.mean(0)
    spread = centred.std(0)
    used = spread > 1e-6 * np.maximum(np.abs(x).max(0), 1e-30)  # constant columns say nothing
    if not used.any():
        return None
    scaled = centred[:, used] / spread[used]
    of_scaled = _eigen(scaled)
    as_it_is = _eigen(x[:, used])
    values, directions = of_scaled if standardize else as_it_is
    along = np.square(directions.T @ residual).sum(1) / total
    return {
        "layer": layer,
        "samples": len(x),
        "eigenvalues": values.tolist(),
        "left": along.tolist(),
        "condition": float(as_it_is[0][0] / as_it_is[0][-1]),
        "standardized": float(of_scaled[0][0] / of_scaled[0][-1]),
    }


def _eigen(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of [x 1]^T [x 1] / N, and the directions in the space of samples."""
    u, s, _ = np.linalg.svd(np.column_stack([x, np.ones(len(x))]), full_matrices=False)
    kept = s > np.finfo(np.float32).eps * s[0]  # float32 inputs know no smaller ones
    return np.square(s[kept]) / len(x), u[:, kept]
