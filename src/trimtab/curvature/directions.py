"""Directions in the space of the parameters, along which a loss is looked at.

Raw random directions say nothing about two nets: one with a normalization does not care for the length of its weights, and a step of
unit length is small for large weights. Li et al. 2018 (arXiv:1712.09913) give each filter of a random direction the length of the
net's own filter: d_ij <- d_ij |theta_ij| / |d_ij|.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.curvature._checks import CurvatureError, kind, require_choice, require_count, require_finite, require_seed
from trimtab.curvature.problem import Problem

Checkpoint = Tensor | Mapping[str, Tensor] | nn.Module
SCALES = ("filter", "tensor", "none")


@dataclass(frozen=True)
class Directions:
    """One or two directions, each a flat vector of the chosen parameters.

    Attributes:
        vectors: The directions.
        names: What each is.
        path: Where checkpoints lie along them, (checkpoints, directions), the snapshot being the origin; None without any.
        captured: Share of the checkpoints' squared distance from the snapshot that lies in the plane; None without any.
    """

    vectors: tuple[Tensor, ...]
    names: tuple[str, ...]
    path: np.ndarray | None = None
    captured: float | None = None

    def __post_init__(self) -> None:
        if len(self.vectors) not in {1, 2}:
            raise CurvatureError(f"a slice has one direction or two, but there are {len(self.vectors)}")

    def __add__(self, other: "Directions") -> "Directions":
        """The plane that two lines span."""
        return Directions(self.vectors + other.vectors, self.names + other.names)


def random_directions(
    problem: Problem, count: int = 2, *, seed: int = 0, scale: str = "filter", vectors: bool = False
) -> Directions:
    """Gaussian directions, scaled to the net (Li et al. 2018, sec. 4).

    Args:
        problem: The problem.
        count: One or two.
        seed: Of the random numbers, which are the same on every device and rank.
        scale: "filter" gives each filter (what makes one output of a layer) the length of the net's, "tensor" each
            parameter; "none" leaves the numbers.
        vectors: Whether biases and the parameters of normalizations (tensors of one axis or none) move too, each as one
            filter; they stay in the paper.

    Returns:
        The directions.

    Raises:
        CurvatureError: Nothing would move, since every chosen parameter has one axis, or is zero.
    """
    _require_problem(problem)
    require_count("count", count)
    require_choice("scale", scale, SCALES)
    require_seed("seed", seed)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        pieces = []
        for name, own in zip(problem.names, problem.origin, strict=True):
            # Drawn even where it is dropped: a draw does not depend on what else moves.
            piece = torch.randn(own.shape, generator=generator, dtype=torch.float64).to(own.device, own.dtype)
            if own.ndim <= 1 and not vectors:
                piece = torch.zeros_like(piece)
            elif scale == "filter":
                piece = _by_filter(problem, name, piece, own)
            elif scale == "tensor":
                piece = scaled_as(piece, own)
            pieces.append(piece)
        found.append(problem.vector(pieces))
        if not bool(found[-1].any()):
            raise CurvatureError(
                "a random direction is zero everywhere: every chosen parameter has one axis and stays, or is zero and has no "
                'length to take; give vectors=True, or scale="none"'
            )
    return Directions(tuple(found), tuple(f"random {seed}.{i}" for i in range(count)))


def _require_problem(given: object) -> None:
    if not isinstance(given, Problem):
        raise CurvatureError(
            f"problem must be a curvature.problem, but it is {kind(given)}; write problem(setup) first"
        )


def gradient_direction(problem: Problem) -> Directions:
    """The way down: -g/|g|.

    Args:
        problem: The problem.

    Returns:
        The direction, of unit length.

    Raises:
        CurvatureError: The gradient is zero, or not finite.
    """
    _require_problem(problem)
    gradient = problem.gradient()[1]
    length = float(gradient.double().norm())
    if not 0 < length < float("inf"):
        raise CurvatureError(f"the gradient has length {length}, so it is no direction; take random_directions")
    return Directions((-gradient / length,), ("steepest descent",))


def given_directions(problem: Problem, vectors: Tensor | Sequence[Tensor], names: Sequence[str] = ()) -> Directions:
    """Directions of your own, as they are: eigenvectors, steps, differences.

    Args:
        problem: The problem.
        vectors: Flat vectors (size,): one, a list, or the columns of a matrix.
        names: What each is.

    Returns:
        The directions.

    Raises:
        CurvatureError: One has another size, is zero or not finite.
    """
    _require_problem(problem)
    if not isinstance(vectors, (Tensor, list, tuple)):
        raise CurvatureError(f"vectors must be a flat vector or a list of them, but it is {kind(vectors)}")
    if isinstance(vectors, Tensor):
        vectors = [vectors] if vectors.ndim == 1 else list(vectors.unbind(-1)) if vectors.ndim else []
    own = tuple(problem.vector(problem.pieces(v.detach())) if isinstance(v, Tensor) else v for v in vectors)
    for i, vector in enumerate(own):
        if not isinstance(vector, Tensor):
            raise CurvatureError(f"direction {i} must be a flat vector, but it is {kind(vector)}")
        require_finite(f"direction {i}", vector)
        if not bool(vector.any()):
            raise CurvatureError(f"direction {i} is zero everywhere")
    return Directions(own, tuple(names) or tuple(f"direction {i + 1}" for i in range(len(own))))


def between(problem: Problem, other: Checkpoint) -> Directions:
    """From the snapshot to another set of parameters, which lies at 1.

    Args:
        problem: The problem; its snapshot lies at 0.
        other: The other end: a module, a state_dict or a flat vector.

    Returns:
        The direction.

    Raises:
        CurvatureError: Both are the same.
    """
    _require_problem(problem)
    difference = as_vector(problem, other) - problem.vector()
    if not bool(difference.any()):
        raise CurvatureError("the other checkpoint equals the model, so no line leads from one to the other")
    return Directions((difference,), ("to the other checkpoint",), np.array([[1.0]]), 1.0)


def trajectory_directions(problem: Problem, checkpoints: Sequence[Checkpoint], count: int = 2) -> Directions:
    """The plane through the snapshot that comes closest to a run's checkpoints (Li et al. 2018, sec. 7.2).

    Principal components of M = [theta_0 - theta, ..., theta_k - theta], theta the snapshot: it is taken as the origin and not the
    mean of the rows, since it is the point that the plane is drawn through.

    Args:
        problem: The problem, at the end of the run.
        checkpoints: Modules, state_dicts or flat vectors, in the order of training.
        count: One or two.

    Returns:
        Orthonormal directions with the path along them.

    Raises:
        CurvatureError: There are too few different checkpoints.
    """
    _require_problem(problem)
    require_count("count", count)
    if isinstance(checkpoints, (Tensor, Mapping, nn.Module)):
        raise CurvatureError(f"checkpoints must be a list of them, but it is {kind(checkpoints)}; write [checkpoint]")
    origin = problem.vector()
    rows = [as_vector(problem, c).double() - origin.double() for c in checkpoints]
    steps = torch.stack(rows) if rows else torch.zeros(0, problem.size)
    # k checkpoints of n parameters: the k x k matrix of products is small, the n x n covariance is not.
    values, left = torch.linalg.eigh(steps @ steps.T) if rows else (torch.zeros(0), steps)
    values, left = values.flip(0).clamp(min=0), left.flip(1)
    total = float(values.sum())
    if len(rows) < count or not float(values[count - 1]) > 1e-14 * total:
        raise CurvatureError(
            f"checkpoints span fewer than {count} directions from the model: {count} different ones besides it are "
            f"needed, and there are {len(rows)}"
        )
    found = (steps.T @ left[:, :count]) / values[:count].sqrt()
    found, triangle = torch.linalg.qr(found)
    found = found * triangle.diagonal().sign()
    path = (steps @ found).cpu().numpy()
    captured = float((path**2).sum()) / total
    shares = [float(s) for s in (path**2).sum(0) / total]
    names = tuple(f"component {i + 1} ({share:.1%} of the run)" for i, share in enumerate(shares))
    return Directions(tuple(v.to(problem.dtype) for v in found.unbind(1)), names, path, captured)


def as_vector(problem: Problem, checkpoint: Checkpoint) -> Tensor:
    """A checkpoint as a flat vector of the chosen parameters.

    Args:
        problem: The problem.
        checkpoint: A module, a state_dict or a flat vector.

    Returns:
        (size,).

    Raises:
        CurvatureError: A parameter is not there, has another shape, or is not finite.
    """
    if isinstance(checkpoint, Tensor):
        flat = problem.vector(problem.pieces(checkpoint.detach()))
        require_finite("a checkpoint", flat)
        return flat
    named = dict(checkpoint.named_parameters()) if isinstance(checkpoint, nn.Module) else checkpoint
    if not isinstance(named, Mapping):
        raise CurvatureError(f"a checkpoint must be a module, a state_dict or a vector, but it is {kind(checkpoint)}")
    plain = {str(name).removeprefix("module.").removeprefix("_orig_mod."): value for name, value in named.items()}
    pieces = []
    for name, own in zip(problem.names, problem.origin, strict=True):
        value = named.get(name, plain.get(name))
        if not isinstance(value, Tensor) or value.shape != own.shape:
            raise CurvatureError(
                f"a checkpoint must hold {name} of shape {tuple(own.shape)}, but what it holds there is {kind(value)}"
            )
        require_finite(f"a checkpoint's {name}", value)
        pieces.append(value.detach().to(own.device, own.dtype))
    return problem.vector(pieces)


def scaled_as(direction: Tensor, own: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
    """A direction whose parts have the lengths of the net's own parts; a part that is zero in the net stays zero.

    Args:
        direction: Of one parameter.
        own: The parameter.
        parts: Axes that count the parts; none where the whole is one.

    Returns:
        The scaled direction.
    """
    inside = [axis for axis in range(own.ndim) if axis not in parts]

    def length(t: Tensor) -> Tensor:
        return t.double().square().sum(inside, keepdim=True).sqrt()

    size = length(direction)
    return direction * torch.where(size > 0, length(own) / size, torch.zeros_like(size)).to(own.dtype)


def _by_filter(problem: Problem, name: str, direction: Tensor, own: Tensor) -> Tensor:
    """Scaled filter by filter; a tensor of one axis is one filter."""
    if own.ndim <= 1:
        return scaled_as(direction, own)
    owner = problem.shadow.model.get_submodule(name.rpartition(".")[0])
    if not isinstance(owner, nn.modules.conv._ConvTransposeNd):
        return scaled_as(direction, own, (0,))
    # A transposed convolution keeps its outputs along the second axis, within each group of inputs along the first.
    grouped = (owner.groups, -1, *own.shape[1:])
    return scaled_as(direction.reshape(grouped), own.reshape(grouped), (0, 2)).reshape(own.shape)
