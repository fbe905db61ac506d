"""How large the logits of attention are: the factor on queries, and norms of queries and keys."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from trimtab._messages import say
from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.lot import some_number, some_of
from trimtab.repairs.named import listed, module_at
from trimtab.repairs.patient import Patient
from trimtab.repairs.qk_norm import FUSED, KEY, QUERY, HeadNorm, NormedAttention, TimesFirst, is_fused
from trimtab.repairs.surgery import adopt, replace_module, slow_path
from trimtab.report import Finding, Repair


def scale_queries(setup: Setup, *, layers: Sequence[str], factor: float) -> None:
    """Multiply queries, and with them the logits, by a factor.

    Raises:
        RepairError: A layer makes no queries that could be told from the rest.
    """
    for name in layers:
        module = module_at(setup.model, name, (nn.Linear, nn.MultiheadAttention))
        if isinstance(module, nn.Linear):
            count = module.out_features // FUSED if is_fused(module) else module.out_features
            module.register_forward_hook(TimesFirst(factor, count))
            continue
        with torch.no_grad():
            for weight in (module.in_proj_weight, module.in_proj_bias):
                if weight is not None:
                    weight[: module.embed_dim] *= factor
            if module.q_proj_weight is not None:
                module.q_proj_weight *= factor
    slow_path(setup)


def _tell_scale(*, layers: Sequence[str], factor: float) -> Repair:
    return Repair(
        f"multiply the queries of {listed(layers)} by {factor:.3g} before they meet the keys",
        f"q = q * {factor:.6g}   # or scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5",
    )


def norm_heads(setup: Setup, *, layers: Sequence[str], dimension: int | None = None) -> None:
    """Normalize queries and keys head by head, by a root mean square with a learnt gain.

    Raises:
        RepairError: The heads' width is not known, or does not divide a layer's.
    """
    for name in layers:
        module = module_at(setup.model, name, (nn.Linear, nn.MultiheadAttention))
        if isinstance(module, nn.MultiheadAttention):
            if isinstance(module, NormedAttention) or module.bias_k is not None or module.add_zero_attn:
                raise RepairError(f"{name} has norms, or keys of its own, already")
            new = NormedAttention(module)
            replace_module(setup, name, new)
            new.q_norm.register_forward_hook(_seen)
            continue
        count = module.out_features // FUSED * 2 if is_fused(module) else module.out_features
        if dimension is None or count % dimension:
            raise RepairError(f"the width of the heads of {name} is not known")
        module.register_parameter(
            "head_gain", nn.Parameter(torch.ones(dimension, device=module.weight.device, dtype=module.weight.dtype))
        )
        module.register_forward_hook(HeadNorm(count, dimension))
        adopt(setup, [module.head_gain])
    slow_path(setup)


def _seen(module: nn.Module, args: Any, output: Any) -> None:
    """Torch's fused encoder layer, which would not call the norm, is not taken where there is a hook."""


def _tell_norm(*, layers: Sequence[str], dimension: int | None = None) -> Repair:
    width = "head_dim" if dimension is None else dimension
    return Repair(
        f"normalize queries and keys of {listed(layers)} per head before they are multiplied (QK-norm)",
        f"self.q_norm, self.k_norm = torch.nn.RMSNorm({width}), torch.nn.RMSNorm({width})   # in __init__\n"
        "q, k = self.q_norm(q), self.k_norm(k)   # in forward, with heads of shape (..., head_dim)",
    )


# What to try ----------------------------------------------------------------------------------------------------------


def _makers(model: nn.Module, where: Sequence[str]) -> tuple[list[str], list[str]]:
    """Layers that make queries, and those that make queries or keys, at the places of a finding."""
    modules = dict(model.named_modules())
    queries: list[str] = []
    both: list[str] = []
    named = [name for name in where if isinstance(modules.get(name), nn.Linear)]
    for place in where:
        inside = [
            n
            for n, m in modules.items()
            if (n == place or n.startswith(f"{place}.") or not place)
            and isinstance(m, (nn.Linear, nn.MultiheadAttention))
        ]
        whole = [n for n in inside if isinstance(modules[n], nn.MultiheadAttention) or is_fused(modules[n])]
        asking, asked = [n for n in inside if QUERY.search(n)], [n for n in inside if KEY.search(n)]
        queries += whole or asking
        both += whole or asking + asked
    if not queries and len(named) == 2:  # one makes queries and one keys; their product does not know which
        return named[:1], named
    return list(dict.fromkeys(queries)), list(dict.fromkeys(both))


def _measured(finding: Finding, name: str) -> tuple[float, float] | None:
    """A number of the evidence beside the expected one."""
    for one in finding.evidence:
        if (
            one.name == name
            and isinstance(one.measured, float)
            and isinstance(one.expected, float)
            and one.measured > 0
        ):
            return one.measured, one.expected
    return None


def _sharp(finding: Finding, patient: Patient) -> Iterator[Change]:
    queries, both = _makers(patient.model, finding.where)
    factor, variance = (
        _measured(finding, say("factor on the products, 1/sqrt(d)")),
        _measured(finding, say("variance of the logits")),
    )
    if queries and factor is not None and factor[0] > factor[1]:
        yield Change("scale-queries", {"layers": queries, "factor": float(f"{factor[1] / factor[0]:.4g}")})
    if both:
        yield Change("norm-heads", {"layers": both, "dimension": None if factor is None else round(factor[1] ** -2)})
    if queries and variance is not None:
        yield Change("scale-queries", {"layers": queries, "factor": float(f"{(variance[1] / variance[0]) ** 0.5:.4g}")})


def _grown(finding: Finding, patient: Patient) -> Iterator[Change]:
    _, both = _makers(patient.model, finding.where)
    if both:
        yield Change("norm-heads", {"layers": both, "dimension": _width(patient.model, both)})


def _width(model: nn.Module, names: Sequence[str]) -> int | None:
    """The heads' width, where the module around these layers says how many heads it has."""
    for name in names:
        held = model.get_submodule(name.rpartition(".")[0])
        layer = model.get_submodule(name)
        for key in ("num_heads", "n_heads", "nhead", "heads", "n_head", "num_attention_heads", "h"):
            heads = getattr(held, key, None)
            if isinstance(heads, int) and isinstance(layer, nn.Linear) and heads > 0:
                return (layer.out_features // FUSED if is_fused(layer) else layer.out_features) // heads
    return None


def _some_queries(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    queries, _ = _makers(patient.model, [""])
    return {"layers": some_of(queries, rng), "factor": some_number(rng)} if queries else None


def _some_heads(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    _, both = _makers(patient.model, [""])
    return {"layers": some_of(both, rng), "dimension": _width(patient.model, both)} if both else None


KINDS = {
    "scale-queries": Kind(scale_queries, _tell_scale, _some_queries),
    "norm-heads": Kind(norm_heads, _tell_norm, _some_heads),
}

ANSWERS = {"unscaled-attention": _sharp, "attention-logit-growth": _grown}
