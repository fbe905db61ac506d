"""The loss cut in two where the model returns: outputs z(theta) on one side, the loss l(z) on the other."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.problem import Problem


@dataclass
class Outputs:
    """One batch, cut.

    Attributes:
        share: Of the batch in the loss of all.
        point: The parameters, leaves.
        outputs: What the model returned, with its graph back to the parameters.
        cut: The same values as leaves, which the loss was computed from.
        slopes: dl/dz at them, with its graph.
        probes: Leaves u of the shapes of the outputs, None before `pulled` is asked for.
    """

    share: float
    point: tuple[Tensor, ...]
    outputs: list[Tensor]
    cut: list[Tensor]
    slopes: tuple[Tensor, ...]
    probes: list[Tensor] | None = None
    pulled: tuple[Tensor | None, ...] = ()

    def pushed(self, which: tuple[int, ...], pieces: Any) -> list[Tensor]:
        """J v: how the outputs move with the parameters.

        By double backward, d/du (J'u)'v, which every operation has that has a Hessian; forward mode lacks recurrent layers.

        Args:
            which: Of the parameters.
            pieces: v, one tensor a parameter.

        Returns:
            One tensor an output.
        """
        if self.probes is None:
            self.probes = [torch.zeros_like(z).requires_grad_() for z in self.outputs]
            self.pulled = torch.autograd.grad(
                self.outputs, self.point, self.probes, create_graph=True, allow_unused=True
            )
        rows = [
            (p, v) for i, v in zip(which, pieces, strict=True) if (p := self.pulled[i]) is not None and p.requires_grad
        ]
        if not rows:
            return [torch.zeros_like(z) for z in self.outputs]
        return list(
            torch.autograd.grad(
                [p for p, _ in rows],
                self.probes,
                [v for _, v in rows],
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        )

    def curved(self, moved: list[Tensor]) -> list[Tensor]:
        """(d2l/dz2) u at the outputs, by double backward.

        Args:
            moved: u, one tensor an output.

        Returns:
            One tensor an output.
        """
        rows = [(s, m) for s, m in zip(self.slopes, moved, strict=True) if s.requires_grad]
        return list(
            torch.autograd.grad(
                [s for s, _ in rows],
                self.cut,
                [m for _, m in rows],
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        )

    def pulled_back(self, which: tuple[int, ...], cotangents: list[Tensor]) -> list[Tensor]:
        """J'u: the gradient with respect to the parameters of outputs weighted by u.

        Args:
            which: Of the parameters.
            cotangents: u, one tensor an output.

        Returns:
            One tensor a parameter.
        """
        return list(
            torch.autograd.grad(
                self.outputs,
                [self.point[i] for i in which],
                cotangents,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        )


def cut_at_outputs(problem: Problem, index: int, point: tuple[Tensor, ...]) -> Outputs:
    """Compute one batch's loss, cut where the model returns.

    Args:
        problem: The problem.
        index: Which batch.
        point: The parameters, leaves.

    Returns:
        Both sides.

    Raises:
        CurvatureError: The loss cannot be cut there: it does not call the model, uses parameters itself, feeds the model
            with its own outputs, or is linear in them.
    """
    outputs: list[Tensor] = []
    cut: list[Tensor] = []

    def sever(module: nn.Module, inputs: Any, output: Any) -> Any:
        def replaced(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or not leaf.requires_grad:
                return leaf
            outputs.append(leaf)
            cut.append(leaf.detach().requires_grad_())
            return cut[-1]

        return pytree.tree_map(replaced, output)

    handle = problem.shadow.model.register_forward_hook(sever)
    try:
        loss = problem.batch_loss(index, point)
    finally:
        handle.remove()
    if not outputs:
        raise CurvatureError(
            "loss does not call the model, or the model returns no tensor that depends on its parameters; "
            "the Gauss-Newton matrix and the Fisher matrix are defined by the outputs of model(...)"
        )
    if not loss.requires_grad:
        raise CurvatureError("loss does not depend on the outputs of the model")
    slopes = torch.autograd.grad(loss, [*cut, *point], create_graph=True, allow_unused=True)
    if any(slope is not None for slope in slopes[len(cut) :]):
        raise CurvatureError(
            "loss uses parameters of the model beside the outputs of model(...), as a weight penalty or a call of a submodule does; "
            "the Gauss-Newton matrix and the Fisher matrix are not defined then: leave that part out of the loss, or take the Hessian"
        )
    if len(cut) > 1 and _feeds_itself(outputs, cut):
        raise CurvatureError(
            "loss feeds the model with its own outputs, so that there is no one place to cut it; take the Hessian"
        )
    kept = [(z, c, s) for z, c, s in zip(outputs, cut, slopes[: len(cut)], strict=True) if s is not None]
    return Outputs(
        problem.shares[index], point, [z for z, _, _ in kept], [c for _, c, _ in kept], tuple(s for _, _, s in kept)
    )


def require_curved(cut: Outputs) -> None:
    """Let only losses pass whose Hessian with respect to the outputs is not zero everywhere by construction.

    Args:
        cut: One batch.

    Raises:
        CurvatureError: The loss is linear in the outputs.
    """
    if not any(slope.requires_grad for slope in cut.slopes):
        raise CurvatureError(
            "loss is linear in the outputs of the model, so the Gauss-Newton matrix is zero; if the model computes its loss itself, "
            "let it return what the loss is computed from, and compute the loss in loss(model, batch)"
        )


def _feeds_itself(outputs: list[Tensor], cut: list[Tensor]) -> bool:
    """Whether an output depends on another one's cut."""
    found = torch.autograd.grad([z.sum() for z in outputs], cut, retain_graph=True, allow_unused=True)
    return any(part is not None for part in found)
