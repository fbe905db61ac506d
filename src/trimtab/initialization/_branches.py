"""What the weights of residual branches are multiplied with, by the laws that `norms.Residual` knows."""

from torch import nn

from trimtab.initialization._between import Join
from trimtab.norms.residual import Residual
from trimtab.propagation._probe import LAYERS

Gains = dict[str, tuple[float, str]]
UNSCALED = {
    "post": "the stream is normalized after each block",
    "sandwich": "its branch ends in a norm, whose weight sets the size",
    "rezero": "its block scales the branch",
    "scaled": "its block scales the branch",
}


def residual_gain(joins: list[Join]) -> Gains:
    """1/sqrt(branches) for the last weight of each branch that nothing else scales.

    A branch that returns what it gets multiplies the second moment of the stream by 1 + 1/branches, below e in all (De
    and Smith 2020, arXiv:2002.10444).

    Args:
        joins: The joins of one pass.

    Returns:
        Factor and reason, by weight.
    """
    count = sum(join.end is not None and not join.why_not for join in joins)
    return {
        join.end: _scaled(count) if not join.why_not else (1.0, join.why_not) for join in joins if join.end is not None
    }


def last_layers(model: nn.Module) -> Gains:
    """The same from the `norms.Residual` blocks of a model alone, the last layer registered being the branch's last.

    Args:
        model: The model.

    Returns:
        Factor and reason, by weight.
    """
    gains, ends = {}, []
    for name, block in model.named_modules():
        if isinstance(block, Residual) and block.placement != "deep":
            inner = [
                where
                for where, module in block.branch.named_modules(prefix=f"{name}.branch".lstrip("."))
                if isinstance(module, LAYERS)
            ]
            if inner and block.placement == "pre":
                ends.append(f"{inner[-1]}.weight")
            elif inner:
                gains[f"{inner[-1]}.weight"] = (1.0, UNSCALED[block.placement])
    return gains | {end: _scaled(len(ends)) for end in ends}


def deepnorm_gains(model: nn.Module) -> Gains:
    """DeepNorm's beta for every layer of a branch but the projections of queries and keys (arXiv:2203.00555).

    A stack alone has alpha = (2N)^(1/4) and beta = (8N)^(-1/4), so that beta = 1/(sqrt(2) alpha).

    Args:
        model: The model.

    Returns:
        Factor and reason, by weight.
    """
    gains = {}
    for name, block in model.named_modules():
        if isinstance(block, Residual) and block.placement == "deep" and block.skip_scale is not None:
            beta = 1.0 / (2.0**0.5 * block.skip_scale)
            for where, module in block.branch.named_modules(prefix=f"{name}.branch".lstrip(".")):
                if isinstance(module, LAYERS) and not where.endswith(("q_proj", "k_proj")):
                    gains[f"{where}.weight"] = (beta, f"DeepNorm's beta {beta:.3g}")
    return gains


def _scaled(count: int) -> tuple[float, str]:
    return count**-0.5, f"last of a residual branch, 1/sqrt({count})"
