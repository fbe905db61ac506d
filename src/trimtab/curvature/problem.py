"""A loss as a function of the parameters, on fixed batches: what every measurement of this room starts from.

    L(theta) = sum_b w_b L_b(theta),    w_b the share of batch b in the samples of all batches

`problem(setup)` or `problem(model, loss, batches)` takes a snapshot: parameters, buffers and batches are copies, so the
user's model may go on training meanwhile, and nothing of it is touched. In training mode batch normalizations use the
statistics of their batch and keep none. Random numbers, such as dropout's masks, are refused or frozen by a seed.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import _distributed
from trimtab._setup import Setup
from trimtab.curvature._checks import CurvatureError, kind, require_choice, require_seed
from trimtab.curvature.batches import copied, drawn, drawn_from_setup, samples_in, shares
from trimtab.curvature.shadow import Shadow, differentiating, unwrapped
from trimtab.curvature.soundness import checked, chosen, dtype_of

Loss = Callable[[nn.Module, Any], Tensor]
MODES = ("train", "eval")


@dataclass(frozen=True)
class Layer:
    """The parameters that one module holds itself, as a stretch of the flat vector of all that were chosen.

    Attributes:
        name: The module's name; "" for the model itself.
        names: Full names of its parameters.
        where: Their place in the flat vector.
    """

    name: str
    names: tuple[str, ...]
    where: slice


class Problem:
    """A loss on fixed batches as a function of chosen parameters; made by `problem`.

    Attributes:
        names: Names of the chosen parameters, in the model's order.
        origin: Their values, copies; a point of the function.
        size: Number of entries of the flat vector of all of them.
        unused: Names of those that the loss does not depend on; their gradient is zero.
        saved_bytes: What a forward pass of the first batch keeps for its backward pass.
        mode: "train" or "eval".
        seed: Of the frozen random numbers; None where there are none.
        samples: Number of samples in the batches of this rank; None where it is not known.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: list[Any],
        *,
        mode: str,
        parameters: Sequence[str] | None,
        seed: int | None,
        dtype: torch.dtype | None,
        weights: Sequence[float] | None,
        reduction: str,
    ) -> None:
        require_choice("mode", mode, MODES)
        require_choice("reduction", reduction, ("mean", "sum"))
        if seed is not None:
            require_seed("seed", seed)
        if isinstance(loss, nn.modules.loss._Loss):
            raise CurvatureError(
                f"loss must be a function loss(model, batch) that gives a scalar, but it is {kind(loss)}, which compares "
                "outputs with targets; write lambda model, batch: criterion(model(batch[0]), batch[1])"
            )
        if not callable(loss):
            raise CurvatureError(
                f"loss must be a function loss(model, batch) that gives a scalar, but it is {kind(loss)}"
            )
        self.mode, self.seed, self.reduction = mode, seed, reduction
        self._group = _distributed.process_group(model)
        model = unwrapped(model)
        self.dtype = dtype_of(model, dtype)
        self.names = chosen(model, parameters)
        with torch.inference_mode(False):
            self.shadow = Shadow(model, loss, mode == "train", self.dtype)
            own = dict(self.shadow.model.named_parameters())
            self.origin = tuple(own[name].detach() for name in self.names)
            changed = self.dtype not in {p.dtype for p in model.parameters()}
            self.batches = [copied(batch, self.dtype if changed else None) for batch in batches]
        self.device = self.origin[0].device
        self.shares = shares(self.batches, weights, reduction, self._total)
        counts = [samples_in(batch) for batch in self.batches]
        self.samples = None if None in counts else sum(count for count in counts if count is not None)
        self._sizes = [p.numel() for p in self.origin]
        self.size = sum(self._sizes)
        self.unused, self.saved_bytes = checked(self)

    # ------------------------------------------------------------------------------------------------ vectors

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The modules that hold the chosen parameters, in the order of the flat vector."""
        return self.layers_of(range(len(self.names)))

    def layers_of(self, which: Iterable[int]) -> tuple[Layer, ...]:
        """The modules that hold some of the chosen parameters.

        Args:
            which: Places in `names`.

        Returns:
            The modules, with their places in the flat vector of these parameters alone.
        """
        found: list[Layer] = []
        start = 0
        for i in which:
            owner, end = self.names[i].rpartition(".")[0], start + self._sizes[i]
            if found and found[-1].name == owner:
                last = found.pop()
                found.append(Layer(owner, (*last.names, self.names[i]), slice(last.where.start, end)))
            else:
                found.append(Layer(owner, (self.names[i],), slice(start, end)))
            start = end
        return tuple(found)

    def vector(self, tensors: Iterable[Tensor] | None = None) -> Tensor:
        """One flat vector.

        Args:
            tensors: One a chosen parameter; None for the parameters themselves.

        Returns:
            A copy of their entries, (size,).
        """
        return torch.cat([t.reshape(-1) for t in (self.origin if tensors is None else tensors)])

    def pieces(self, vector: Tensor) -> tuple[Tensor, ...]:
        """The inverse of `vector`.

        Args:
            vector: (size,), of any floating dtype.

        Returns:
            Views in the shapes of the parameters, in the dtype of the problem.

        Raises:
            CurvatureError: It has another shape, or is complex.
        """
        if not isinstance(vector, Tensor) or vector.shape != (self.size,) or vector.is_complex():
            raise CurvatureError(f"a real vector of shape ({self.size},) is needed, but it is {kind(vector)}")
        parts = vector.to(self.device, self.dtype).split(self._sizes)  # type: ignore[no-untyped-call]
        return tuple(part.view(p.shape) for part, p in zip(parts, self.origin, strict=True))

    # ------------------------------------------------------------------------------------------------ values

    def value(self, vector: Tensor | None = None) -> float:
        """The loss of all batches, of all ranks.

        Args:
            vector: The parameters, flat; None for the snapshot's.

        Returns:
            The loss; NaN or infinite where it is.
        """
        point = self.origin if vector is None else self.pieces(vector)
        with torch.inference_mode(False), torch.no_grad():
            losses = [weight * float(loss) for weight, loss in self.losses(point)]
        try:
            total = math.fsum(losses)
        except (OverflowError, ValueError):  # beyond a float, or infinity less infinity
            total = sum(losses)
        return self._total(total)

    def gradient(self, vector: Tensor | None = None) -> tuple[float, Tensor]:
        """The loss and its gradient, of all batches and ranks.

        Args:
            vector: The parameters, flat; None for the snapshot's.

        Returns:
            The loss, and the gradient (size,); parameters without influence have zeros there.
        """
        point = self.variables(vector)
        value, gradient = 0.0, torch.zeros(self.size, dtype=self.dtype, device=self.device)
        with differentiating():
            for weight, loss in self.losses(point):
                value += weight * float(loss.detach())
                pieces = torch.autograd.grad(loss, point, allow_unused=True, materialize_grads=True)
                gradient += weight * self.vector(pieces)
        return self._total(value), self.reduced(gradient)

    def variables(self, vector: Tensor | None = None) -> tuple[Tensor, ...]:
        """Leaves for a graph of your own.

        Args:
            vector: The parameters, flat; None for the snapshot's.

        Returns:
            Tensors that ask for a gradient, one a chosen parameter.
        """
        with torch.inference_mode(False):
            point = self.origin if vector is None else self.pieces(vector.detach())
            return tuple(p.detach().requires_grad_() for p in point)

    def losses(self, point: Sequence[Tensor]) -> Iterator[tuple[float, Tensor]]:
        """The loss batch by batch, with its graph where gradients are enabled.

        Args:
            point: One tensor a chosen parameter.

        Yields:
            The batch's share, and its loss.
        """
        for index, weight in enumerate(self.shares):
            yield weight, self.batch_loss(index, point)

    def batch_loss(self, index: int, point: Sequence[Tensor], seed: int | None = None) -> Tensor:
        """The loss of one batch, with its graph where gradients are enabled.

        Args:
            index: Which batch.
            point: One tensor a chosen parameter.
            seed: Of random numbers; None for the problem's own.

        Returns:
            The loss, a tensor without axes.

        Raises:
            CurvatureError: It is none.
            ValueError: As the model or the loss raises it; so does every other error of theirs pass.
        """
        named = dict(zip(self.names, point, strict=True))
        if seed is None:
            seed = self.seed or 0
        # One mask a batch: the same one for all would tie them together.
        seed += 1_000_003 * index
        try:
            loss = self.shadow.loss(named, copied(self.batches[index]), seed)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise CurvatureError(
                f"a batch normalization in training mode got one value per channel in batch {index}, whose variance is 0; "
                'give batches of at least two samples, or mode="eval"'
            ) from error
        if not isinstance(loss, Tensor):
            raise CurvatureError(f"loss must give a scalar tensor, but it gave {kind(loss)}")
        if loss.numel() != 1:
            raise CurvatureError(f"loss must give a scalar tensor, but it gave {kind(loss)}; reduce it with .mean()")
        if not loss.is_floating_point():
            raise CurvatureError(f"loss must give a real number, but it gave one of {loss.dtype}")
        return loss.reshape(())

    # ------------------------------------------------------------------------------------------------ ranks

    @property
    def alone(self) -> bool:
        """Whether one rank holds all batches."""
        return self._group is None

    def reduced(self, tensor: Tensor) -> Tensor:
        """What the ranks of a distributed run have of a sum, added up; the tensor itself where there is one rank."""
        return tensor if self._group is None else _distributed.summed(tensor, self._group)

    def _total(self, number: float) -> float:
        if self._group is None:
            return number
        return float(self.reduced(torch.tensor(number, dtype=torch.float64, device=self.device)))


def problem(
    setup_or_model: Setup | nn.Module,
    loss: Loss | None = None,
    batches: Any = None,
    *,
    mode: str = "train",
    parameters: Sequence[str] | None = None,
    seed: int | None = None,
    dtype: torch.dtype | None = None,
    weights: Sequence[float] | None = None,
    reduction: str = "mean",
) -> Problem:
    """A loss as a function of the parameters, on fixed batches.

    Args:
        setup_or_model: A setup, or a model together with `loss` and `batches`.
        loss: `loss(model, batch)` gives a scalar tensor; None for the setup's.
        batches: A list of batches, a DataLoader, a function that gives a fresh pass; or for a setup how many of its
            batches, one being the default.
        mode: "train", where batch normalizations use their batch's statistics, or "eval"; of every module.
        parameters: Names of parameters, or of modules whose parameters are meant; None for all that ask for a gradient.
        seed: Freezes random numbers, such as dropout's masks, so that the loss is a function; None refuses them.
        dtype: Of the computation; None for the model's own, where half precisions become float32.
        weights: What each batch counts for, in proportion; None for its number of samples.
        reduction: "mean" where the loss of a batch is a mean over its samples, "sum" where it is a sum.

    Returns:
        The problem.

    Raises:
        CurvatureError: An argument is not what it must be; the loss is no finite, repeatable scalar that depends on the
            parameters; or a batch normalization gets one value per channel.
    """
    if isinstance(setup_or_model, Setup):
        setup = setup_or_model
        model, loss = setup.model, setup.loss if loss is None else loss
        if batches is None or isinstance(batches, int):
            found = drawn_from_setup(setup, 1 if batches is None else batches)
        else:
            found = drawn(batches)
    elif isinstance(setup_or_model, nn.Module):
        model = setup_or_model
        if loss is None or batches is None:
            raise CurvatureError(
                "a model needs its loss and batches: hessian(model, loss, batches); or give a trimtab.Setup"
            )
        found = drawn(batches)
    else:
        raise CurvatureError(f"a trimtab.Setup or a torch.nn.Module is needed, but it is {kind(setup_or_model)}")
    return Problem(
        model,
        loss,
        found,
        mode=mode,
        parameters=parameters,
        seed=seed,
        dtype=dtype,
        weights=weights,
        reduction=reduction,
    )
