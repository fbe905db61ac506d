"""What a batch normalization does to the gradient that passes it: Theorem 4.1 of Santurkar et al. 2018 (arXiv:1805.11604).

For each channel j, y_j its input over the m values of the batch, y^_j the normalized ones, z_j = gamma_j y^_j + beta_j its output,
s_j^2 = var_j + eps:

    |dL/dy_j|^2 = gamma_j^2 / s_j^2 ( |dL/dz_j|^2 - <1, dL/dz_j>^2 / m - (1 + eps / s_j^2) <dL/dz_j, y^_j>^2 / m )

which is exact; with eps = 0 it is the paper's. What is taken away is the gradient's mean and its part along y^_j. The paper's "<="
compares with another net, whose upper layers are the same and whose gradient there is dL/dz: no improvement where gamma_j > s_j.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.hessian import as_problem
from trimtab.curvature.problem import Loss, Problem

KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class BatchNormIdentity:
    """Both sides of the identity for one call of one batch normalization, channel by channel.

    Attributes:
        layer: The module.
        values: |dL/dy_j|^2, by autograd.
        predicted: The right side.
        error: Largest difference of the two over the largest of `values`.
        gain: gamma_j / s_j.
        removed: Share of |dL/dz_j|^2 that the mean and the part along y^_j make up.
    """

    layer: str
    values: np.ndarray
    predicted: np.ndarray
    error: float
    gain: np.ndarray
    removed: np.ndarray


def batchnorm_identity(
    setup_or_model: Setup | nn.Module | Problem, loss: Loss | None = None, batches: Any = None, **options: Any
) -> tuple[BatchNormIdentity, ...]:
    """Both sides of Theorem 4.1 at each batch normalization, on the first batch.

    Args:
        setup_or_model: A setup; a model together with `loss` and `batches`; or a problem.
        loss: `loss(model, batch)` gives a scalar tensor.
        batches: As for `problem`.
        **options: Of `problem`: parameters, seed, dtype, weights, reduction; mode is "train".

    Returns:
        One result a call, in the order of the forward pass.

    Raises:
        CurvatureError: There is no batch normalization in training mode.
    """
    problem = as_problem(setup_or_model, loss, batches, **options)
    with torch.inference_mode(False), torch.enable_grad(), _heard(problem) as calls:
        value = problem.batch_loss(0, problem.variables())
        ends = [tensor for _, _, y, z in calls for tensor in (y, z)]
        gradients = torch.autograd.grad(value, ends, allow_unused=True, materialize_grads=True) if ends else ()
    if not calls:
        raise CurvatureError('the model ran through no batch normalization that uses its batch; mode must be "train"')
    pairs = zip(gradients[::2], gradients[1::2], strict=True)
    return tuple(_both(name, module, y, *pair) for (name, module, y, _), pair in zip(calls, pairs, strict=True))


Call = tuple[str, nn.Module, Tensor, Tensor]


@contextmanager
def _heard(problem: Problem) -> Iterator[list[Call]]:
    """Input and output of each batch normalization; copies go on, so that nothing done in place or beside it is counted."""
    calls: list[Call] = []
    handles = []
    opened: list[Tensor] = []

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        y = inputs[0].clone()
        opened.append(y if y.requires_grad else y.requires_grad_())
        return (opened[-1], *inputs[1:])

    def after(name: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            calls.append((name, module, opened.pop(), output))
            return output.clone()

        return hook

    for name, module in problem.shadow.model.named_modules():
        if type(module) in KINDS and (module.training or module.running_mean is None):
            handles.append(module.register_forward_pre_hook(before))
            handles.append(module.register_forward_hook(after(name)))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _both(name: str, module: Any, y: Tensor, dy: Tensor, dz: Tensor) -> BatchNormIdentity:
    def by_channel(t: Tensor) -> Tensor:
        return t.detach().double().transpose(0, 1).flatten(1)

    y, dy, dz = by_channel(y), by_channel(dy), by_channel(dz)
    m = y.shape[1]
    s2 = y.var(1, correction=0) + module.eps
    normal = (y - y.mean(1, keepdim=True)) / s2.sqrt()[:, None]
    gamma = torch.ones_like(s2) if module.weight is None else module.weight.detach().double()
    whole = dz.square().sum(1)
    mean = dz.sum(1).square() / m
    along = (1 + module.eps / s2) * (dz * normal).sum(1).square() / m
    left, right = dy.square().sum(1), gamma.square() / s2 * (whole - mean - along)
    scale = float(left.max())
    error = float((left - right).abs().max()) / scale if scale else float((left - right).abs().max())
    removed = torch.where(whole > 0, (mean + along) / whole, torch.zeros_like(whole))
    gain = gamma / s2.sqrt()
    return BatchNormIdentity(
        name, left.cpu().numpy(), right.cpu().numpy(), error, gain.cpu().numpy(), removed.cpu().numpy()
    )
