"""The trace of the Gauss-Newton matrix, layer by layer: exact from as many backward passes as the loss has outputs a sample.

    tr(J' M J) = sum_n sum_c sign_c |J_n' s_nc|^2,      M_n = d2l/dz_n2 = sum_c sign_c s_nc s_nc'

For a loss whose samples do not see each other, one backward pass with s_nc at all n at once gives every sample's own gradient at
the outputs of every layer, and its norm follows there (`gram.py`). For nets that are linear piece by piece (ReLU), with batch
normalization in evaluation mode, tr(GGN) is tr(H).

Samples that do see each other (batch normalization in training mode, attention over rows of the output) have no gradient of their
own. Then tr(J' M J) = E |J' sum_nc e_nc s_nc|^2 over random signs e, again for all layers at once, with a standard error. So is it for
parameters that no layer with one input and one call holds alone.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _distributed
from trimtab._setup import Setup
from trimtab.curvature._checks import CurvatureError, require_count
from trimtab.curvature.gram import Norms, gradient_norms
from trimtab.curvature.heard import LayerCall, hearing
from trimtab.curvature.hessian import as_problem
from trimtab.curvature.outputs import Outputs, cut_at_outputs, require_curved
from trimtab.curvature.problem import Loss, Problem
from trimtab.curvature.shadow import differentiating

WIDEST = 512
"""Entries of a sample's output up to which the loss's second derivative there is factored: C x C numbers a sample."""


@dataclass(frozen=True, kw_only=True)
class GaussNewtonTrace:
    """The trace of the Gauss-Newton matrix.

    Attributes:
        value: Of all chosen parameters.
        error: Its standard error; 0 where every layer is exact.
        layers: Trace and standard error of each parameter, by name.
        exact: Names of the parameters whose part is exact.
        passes: Backward passes that it took.
        products: Products with a vector: none.
        symmetry: Largest relative asymmetry of the loss's second derivative at the outputs.
        mode: "train" or "eval".
        seconds: Wall time.
        reason: Why parts are estimates; "" where none is.
    """

    value: float
    error: float
    layers: dict[str, tuple[float, float]]
    exact: tuple[str, ...]
    passes: int
    products: int
    symmetry: float
    mode: str
    seconds: float
    reason: str

    def __str__(self) -> str:
        mode = {"train": "training", "eval": "evaluation"}[self.mode]
        how = "exact" if not self.reason else f"± {self.error:.2g}, since {self.reason}"
        rows = [
            f"  {name or '(model)'}: {v:.5g}" + (f" ± {e:.1g}" if e else "") for name, (v, e) in self.layers.items()
        ]
        head = f"trace of the Gauss-Newton matrix {self.value:.6g} ({how})"
        return "\n".join([
            head,
            *rows,
            f"  {mode} mode, {self.passes} backward passes, {self.seconds:.3g} s, symmetry {self.symmetry:.1e}",
        ])


def ggn_trace(
    setup_or_model: Setup | nn.Module | Problem,
    loss: Loss | None = None,
    batches: Any = None,
    *,
    draws: int = 16,
    **options: Any,
) -> GaussNewtonTrace:
    """The trace of the Gauss-Newton matrix of every parameter.

    Args:
        setup_or_model: A setup; a model together with `loss` and `batches`; or a problem.
        loss: `loss(model, batch)` calls the model and gives a scalar tensor.
        batches: As for `problem`.
        draws: Random signs for what cannot be exact.
        **options: Of `problem`: mode, parameters, seed, dtype, weights, reduction.

    Returns:
        The trace, by parameter.

    Raises:
        CurvatureError: The samples' outputs have more than 512 entries, or lie along no common axis.
    """
    require_count("draws", draws, 2)
    begun = time.perf_counter()
    made = as_problem(setup_or_model, loss, batches, **options)
    tally = _Tally(made, draws)
    with differentiating():
        for index in range(len(made.batches)):
            tally.add(index)
    layers = tally.layers()
    return GaussNewtonTrace(
        value=math.fsum(v for v, _ in layers.values()),
        error=math.sqrt(tally.variance()),
        layers=layers,
        exact=tuple(name for name in made.names if name not in tally.estimated),
        passes=tally.passes,
        products=0,
        symmetry=tally.symmetry,
        mode=made.mode,
        seconds=time.perf_counter() - begun,
        reason=tally.reason,
    )


class _Tally:
    """The sums over batches, parameter by parameter."""

    def __init__(self, problem: Problem, draws: int) -> None:
        self.problem = problem
        self.draws = draws
        self.point = problem.variables()
        self.passes = 0
        self.symmetry = 0.0
        self.reason = ""
        self.estimated: set[str] = set()
        self._sums = [0.0] * len(problem.names)
        self._variances = [0.0] * len(problem.names)
        self._variance = 0.0

    def add(self, index: int) -> None:
        """One batch."""
        with hearing(self.problem, self.point) as heard:
            cut = cut_at_outputs(self.problem, index, self.point)
        require_curved(cut)
        z = _one_output(cut)
        factors, asymmetry = _factors(cut)
        self.symmetry = max(self.symmetry, asymmetry)
        rules = self._rules(z, heard.clear(), factors)
        self._exactly(z, rules, factors, cut.share)
        done = {place for call, _ in rules for place, _, _ in call.parameters}
        rest = [i for i, name in enumerate(self.problem.names) if i not in done and name not in self.problem.unused]
        if rest:
            self._by_signs(z, rest, factors, cut.share, index)

    def _rules(self, z: Tensor, calls: list[LayerCall], factors: "_Factors") -> list[tuple[LayerCall, Norms]]:
        """Layers at whose output every sample has a gradient of its own, each with what gives its norm."""
        count = len(z)
        calls = [c for c in calls if c.output.ndim and c.given.ndim and len(c.output) == len(c.given) == count]
        if not calls:
            self.reason = self.reason or "no layer is called once with one row a sample"
            return []
        cotangent = torch.zeros_like(z)
        for _, column in factors.columns(z.dtype):
            cotangent[::2] += column[::2]
        arrived = torch.autograd.grad(
            z, [c.output for c in calls], cotangent, retain_graph=True, materialize_grads=True
        )
        self.passes += 1
        found = []
        for call, d in zip(calls, arrived, strict=True):
            if count > 1 and float(d[1::2].abs().max()) > 1e-6 * float(d.abs().max()):
                self.reason = "samples of a batch see each other, as through batch statistics"
                continue
            parameters = {name: value for _, name, value in call.parameters}
            norms = gradient_norms(call.module, call.given, call.output, parameters)
            if norms is None:
                self.reason = self.reason or "some layers cannot be run on one sample alone"
            else:
                found.append((call, norms))
        return found

    def _exactly(self, z: Tensor, rules: list[tuple[LayerCall, Norms]], factors: "_Factors", share: float) -> None:
        if not rules:
            return
        outputs = [call.output for call, _ in rules]
        for sign, column in factors.columns(z.dtype):
            arrived = torch.autograd.grad(z, outputs, column, retain_graph=True, materialize_grads=True)
            self.passes += 1
            for (call, norms), d in zip(rules, arrived, strict=True):
                squares = norms(d)
                for place, name, _ in call.parameters:
                    self._sums[place] += share * sign * squares[name]

    def _by_signs(self, z: Tensor, rest: list[int], factors: "_Factors", share: float, index: int) -> None:
        self.reason = self.reason or "some parameters belong to no layer that is called once with one tensor"
        self.estimated |= {self.problem.names[i] for i in rest}
        leaves = [self.point[i] for i in rest]
        generator = torch.Generator().manual_seed(index + 1_000_003 * _distributed.rank())
        drawn = torch.zeros(self.draws, len(rest), dtype=torch.float64)
        for draw in range(self.draws):
            for sign, cotangent in factors.drawn(generator, z.dtype):
                pulled = torch.autograd.grad(z, leaves, cotangent, retain_graph=True, allow_unused=True)
                self.passes += 1
                for j, g in enumerate(pulled):
                    drawn[draw, j] += 0.0 if g is None else share * sign * float(g.double().square().sum())
        for j, place in enumerate(rest):
            self._sums[place] += float(drawn[:, j].mean())
            self._variances[place] += float(drawn[:, j].var()) / self.draws
        self._variance += float(drawn.sum(1).var()) / self.draws

    def layers(self) -> dict[str, tuple[float, float]]:
        """Trace and standard error by parameter, over all ranks."""
        sums, variances = (self._over_ranks(numbers) for numbers in (self._sums, self._variances))
        return {name: (s, math.sqrt(v)) for name, s, v in zip(self.problem.names, sums, variances, strict=True)}

    def variance(self) -> float:
        """Of the sum over all parameters and ranks."""
        return self._over_ranks([self._variance])[0]

    def _over_ranks(self, numbers: list[float]) -> list[float]:
        total = self.problem.reduced(torch.tensor(numbers, dtype=torch.float64, device=self.problem.device))
        return [float(number) for number in total]


class _Factors:
    """s_nc with M_n = sum_c sign_nc s_nc s_nc'.

    Args:
        blocks: M_n, (N, C, C), symmetric, in float64.
        shape: Of the outputs.
        rounding: Of the entries, relative to the largest of all.
    """

    def __init__(self, blocks: Tensor, shape: torch.Size, rounding: float) -> None:
        floors = (rounding * blocks.abs().max()).expand(len(blocks))
        self._parts = _cholesky(blocks, floors) or _eigen(blocks, floors)
        self._shape = shape

    def columns(self, dtype: torch.dtype) -> list[tuple[float, Tensor]]:
        """Sign, and one s_nc of every sample at once."""
        return [(sign, s[:, :, c].to(dtype).view(self._shape)) for sign, s in self._parts for c in range(s.shape[2])]

    def drawn(self, generator: torch.Generator, dtype: torch.dtype) -> list[tuple[float, Tensor]]:
        """Sign, and the sum of all s_nc with random signs."""
        found = []
        for sign, s in self._parts:
            random = torch.randint(2, (s.shape[0], s.shape[2]), generator=generator).to(s) * 2 - 1
            found.append((sign, torch.einsum("nac,nc->na", s, random).to(dtype).view(self._shape)))
        return found


def _cholesky(blocks: Tensor, floors: Tensor) -> list[tuple[float, Tensor]] | None:
    """The columns of the Cholesky factors of many small matrices that may be singular; None where one is indefinite."""
    rest = blocks.clone()
    columns = []
    for c in range(blocks.shape[1]):
        pivot = rest[:, c, c]
        if bool((pivot < -floors).any()):
            return None
        column = rest[:, :, c] * torch.where(pivot > floors, pivot, torch.inf).rsqrt()[:, None]
        rest -= column[:, :, None] * column[:, None, :]
        if bool(column.any()):
            columns.append(column)
    if bool((rest.abs().amax((1, 2)) > 10 * floors).any()):  # a zero on the diagonal beside something else: indefinite
        return None
    return [(1.0, torch.stack(columns, 2))] if columns else []


def _eigen(blocks: Tensor, floors: Tensor) -> list[tuple[float, Tensor]]:
    """Eigenvectors times the roots of positive eigenvalues, and of negative ones."""
    values, vectors = torch.linalg.eigh(blocks)
    found = []
    for sign in (1.0, -1.0):
        roots = (sign * values).where(sign * values > floors[:, None], 0).sqrt()
        some = (roots > 0).any(0)
        if bool(some.any()):
            found.append((sign, (vectors * roots[:, None, :])[:, :, some]))
    return found


def _one_output(cut: Outputs) -> Tensor:
    if len(cut.outputs) != 1 or not cut.outputs[0].ndim:
        raise CurvatureError(
            f"the model must return one tensor with its samples along the first axis, but the loss uses {len(cut.outputs)}; "
            "take trace(ggn(...)), which estimates"
        )
    return cut.outputs[0]


def _factors(cut: Outputs) -> tuple[_Factors, float]:
    """The loss's second derivative at each sample's output, factored; and its relative asymmetry.

    Args:
        cut: One batch.

    Returns:
        Both.

    Raises:
        CurvatureError: Outputs are too wide, or the loss ties samples together.
    """
    z = cut.outputs[0]
    count, width = len(z), z[0].numel()
    if width > WIDEST:
        raise CurvatureError(
            f"the outputs of one sample have {width} entries, more than {WIDEST}, too many to factor; take trace(ggn(...)), which estimates"
        )
    blocks = torch.empty(count, width, width, dtype=torch.float64, device=z.device)
    for c in range(width):
        unit = torch.zeros(count, width, dtype=z.dtype, device=z.device)
        unit[:, c] = 1
        blocks[:, :, c] = cut.curved([unit.view(z.shape)])[0].reshape(count, width)
    scale = float(blocks.abs().max())
    if count > 1:  # what moves in one half of the samples must not change the slopes of the other
        half = torch.ones_like(z)
        half[1::2] = 0
        if float(cut.curved([half * _ramp(z)])[0][1::2].abs().max()) > 1e-5 * scale:
            raise CurvatureError(
                "loss ties the samples of a batch together, as a contrastive loss does, so that no sample has a curvature of its "
                "own at its output; take trace(ggn(...)), which estimates"
            )
    asymmetry = float((blocks - blocks.mT).abs().max()) / scale if scale else 0.0
    return _Factors((blocks + blocks.mT) / 2, z.shape, 20 * torch.finfo(z.dtype).eps), asymmetry


def _ramp(z: Tensor) -> Tensor:
    """Numbers in the shape of the outputs of which no two are the same, so that nothing cancels."""
    return torch.linspace(0.5, 1.5, z.numel(), dtype=z.dtype, device=z.device).view(z.shape)
