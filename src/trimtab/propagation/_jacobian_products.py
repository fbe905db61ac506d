"""Products with the Jacobians between the layers of one recorded forward pass."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.propagation._checks import PropagationError
from trimtab.propagation._golub_kahan import extremes
from trimtab.propagation._probe import heard, input_of, run


@dataclass(frozen=True, slots=True)
class Chain:
    """One forward pass with its graph.

    Attributes:
        names: The layers, in the order in which they ran.
        outputs: The start, every layer's output, then the model's.
        start: Where the pass begins, None for the input, else the layer whose output stands for it.
    """

    names: tuple[str, ...]
    outputs: tuple[Tensor, ...]
    start: str | None


def chain_of(model: nn.Module, batch: Any, names: tuple[str, ...]) -> Chain:
    """Run the model once with gradients and keep every layer's output.

    Args:
        model: The copy, its parameters without gradients.
        batch: As for `run`.
        names: The layers.

    Returns:
        The pass.

    Raises:
        PropagationError: If no layer runs, or an output is not finite.
    """
    found: list[tuple[str, Tensor]] = []
    given = input_of(batch)
    start = None if given is None else given.detach().clone().requires_grad_()

    def watch(name: str, output: Tensor) -> Tensor | None:
        if start is None and not found:
            output = output.detach().requires_grad_()
        found.append((name, output))
        return output

    with torch.enable_grad(), heard(model, names, watch):
        last = run(model, batch if start is None else _with_input(batch, start))
    if not found:
        raise PropagationError("no layer ran on the batch with a floating output; name other modules in layers")
    for name, output in (*found, ("the model", last)):
        if not bool(torch.isfinite(output).all()):
            raise PropagationError(
                f"the output of {name} is not finite on this batch; a Jacobian needs finite values: look at the data "
                f"and the weights up to there"
            )
    if start is None:
        (first, tensor), *rest = found
        return Chain(tuple(n for n, _ in rest), (tensor, *(t for _, t in rest), last), first)
    return Chain(tuple(n for n, _ in found), (start, *(t for _, t in found), last), None)


def spectrum(
    chain: Chain, segment: int | None, probes: int, steps: int, seed: int
) -> tuple[float, float, float, float, float, float, int, int] | None:
    """Mean square with its error, both ends with theirs, and the shape, of one Jacobian.

    Args:
        chain: The pass.
        segment: From which output to the next; None from the start to the end.
        probes: Random vectors for the mean square.
        steps: At most so many for the ends.
        seed: Of the random vectors.

    Returns:
        The numbers, in the order of `Spectrum`; None where no path leads from the one to the other.
    """
    source, target = (chain.outputs[0], chain.outputs[-1]) if segment is None else chain.outputs[segment : segment + 2]
    generator = torch.Generator().manual_seed(seed)
    cotangent = torch.zeros_like(target, requires_grad=True)
    with torch.enable_grad():
        if not target.requires_grad:
            return None
        pulls: tuple[Tensor | None, ...] = torch.autograd.grad(
            target, source, cotangent, retain_graph=True, create_graph=True, allow_unused=True
        )
    pulled = pulls[0]
    if pulled is None:
        return None

    def backward(u: Tensor) -> Tensor:
        like = u.to(target).view_as(target)
        return torch.autograd.grad(target, source, like, retain_graph=True)[0].flatten().detach()

    def forward(v: Tensor) -> Tensor:  # J^T u is linear in u, and its derivative by u along v is J v
        if not pulled.requires_grad:  # J is zero everywhere
            return torch.zeros(target.numel(), dtype=torch.float64)
        like = v.to(source).view_as(source)
        (product,) = torch.autograd.grad(pulled, cotangent, like, retain_graph=True, allow_unused=True)
        return torch.zeros_like(target).flatten() if product is None else product.flatten().detach()

    m, n = target.numel(), source.numel()
    size = min(m, n)
    squares = torch.stack([backward(_signs(m, generator)).double().square().sum() / size for _ in range(probes)])
    error = float(squares.std() / probes**0.5)
    ends = extremes(forward, backward, m, n, steps, generator)
    return (
        float(squares.mean()), error, ends.largest, ends.smallest, ends.largest_error, ends.smallest_error, m, n,
    )  # fmt: skip


def growth(chain: Chain, probes: int, seed: int) -> list[float]:
    """Log of what each layer does to the root mean square of a random change of the start.

    Args:
        chain: The pass.
        probes: How many random changes; their logs are averaged.
        seed: Of the changes.

    Returns:
        One number for each layer; nan where no path leads to it.
    """
    start, reached = chain.outputs[0], [output.requires_grad for output in chain.outputs[1:-1]]
    outputs = [output for output in chain.outputs[1:-1] if output.requires_grad]
    generator = torch.Generator().manual_seed(seed)
    cotangents = [torch.zeros_like(output, requires_grad=True) for output in outputs]
    with torch.enable_grad():
        (pulled,) = torch.autograd.grad(outputs, start, cotangents, create_graph=True)
    logs = torch.zeros(len(reached), dtype=torch.float64)
    for _ in range(probes):
        change = torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start)
        tangents = iter(torch.autograd.grad(pulled, cotangents, change, retain_graph=True, allow_unused=True))
        found = [next(tangents) if there else None for there in reached]
        sizes = [change, *(change.new_tensor(torch.nan) if tangent is None else tangent for tangent in found)]
        logs += torch.stack([size.double().square().mean().sqrt().cpu() for size in sizes]).log().diff() / probes
    return [float(value) for value in logs]


def correlations(chain: Chain) -> list[float]:
    """Mean cosine between examples of each output of the pass; nan for one example.

    Args:
        chain: The pass.

    Returns:
        One number for each of `chain.outputs`.
    """
    return [_mean_cosine(output.detach()) for output in chain.outputs]


def gradient_correlations(chain: Chain, probes: int, seed: int) -> tuple[list[float], float]:
    """Mean cosine between examples of the gradients at each output, for one and the same cotangent at the end.

    Args:
        chain: The pass.
        probes: Random cotangents.
        seed: Of the cotangents.

    Returns:
        One number for each of `chain.outputs`, and the standard error at the start.
    """
    last = chain.outputs[-1]
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(probes):
        one = _signs(last[0].numel(), generator).to(last).view_as(last[0]).expand_as(last)
        gradients = torch.autograd.grad(last, chain.outputs[:-1], one, retain_graph=True, allow_unused=True)
        found.append([float("nan") if g is None else _mean_cosine(g) for g in (*gradients, one)])
    table = torch.tensor(found, dtype=torch.float64)
    return table.mean(0).tolist(), float(table[:, 0].std() / probes**0.5)


def _mean_cosine(values: Tensor) -> float:
    """The mean over pairs of rows, of the first axis, from the norm of the sum of the unit rows."""
    rows = values.detach().double().flatten(1) if values.dim() > 1 else values.detach().double()[:, None]
    count = rows.shape[0]
    if count < 2:
        return float("nan")
    unit = nn.functional.normalize(rows, dim=1, eps=1e-300)
    return float((unit.sum(0).square().sum() - unit.square().sum()) / (count * (count - 1)))


def _signs(size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (size,), generator=generator).double() * 2.0 - 1.0


def _with_input(batch: Any, x: Tensor) -> Any:
    return (x, *batch[1:]) if isinstance(batch, (tuple, list)) else x
