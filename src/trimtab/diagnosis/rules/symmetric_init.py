"""`symmetric-init`: all units of a layer start as copies of one another and stay so."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.advice import initialization
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import Layer
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding

SETTLED = 2
"""From this step on copies stay copies: a zero-initialized last layer (LoRA, ReZero, Fixup) is told apart by its first update."""


def find(view: View) -> Iterator[Found]:
    """Weights whose rows are all equal at the start and after some updates; equality is exact, so there is no threshold."""
    looks = view.record.details.get("distinct", [])
    if not looks:
        return
    start = looks[0][1]
    later = {key: value for step, found in looks if step >= SETTLED for key, value in found.items()}
    trainable = {
        (layer.model, layer.weight): layer
        for layer in view.layers
        if layer.trainable and layer.shape[0] > 1 and _is_trained(view, layer.model, layer.weight)
    }
    symmetric = []
    for (model, weight), layer in trainable.items():
        key = f"{model}:{weight}"
        if start.get(key, [2])[0] == 1 and (view.before_training or later.get(key, [2])[0] == 1):
            symmetric.append(layer)
    if view.before_training:
        symmetric = _surely_symmetric(symmetric)
    if not symmetric:
        return
    width = symmetric[0].shape[0]
    yield Found(
        Finding(
            code="symmetric-init",
            severity="warning" if view.learned else "error",
            where=view.names(symmetric),
            summary=say(
                "All {width} units of {layer} have the same weights, so they compute the same value, get the same gradient and stay copies of one another: "
                "the layer is one unit wide.",
                width=width,
                layer=view.name(symmetric[0].model, symmetric[0].name),
            ),
            evidence=(
                Evidence(say("different units at the start"), 1.0, float(width), 0.0, "", looks[0][0]),
                Evidence(say("different units later"), 1.0, float(width), 0.0, "", looks[-1][0]),
            ),
            repairs=initialization([layer for layer in view.layers if layer.model == symmetric[0].model])[:1],
            location=view.place("forward"),
        )
    )


def _surely_symmetric(layers: list[Layer]) -> list[Layer]:
    """Those that no update can tell apart: all weights zero is a custom for last layers of branches, not for two in a row."""
    names = {layer.name for layer in layers}
    in_a_row = {layer.name for layer in layers if names & set(layer.before.sources) and not layer.before.joins}
    in_a_row |= {source for layer in layers if layer.name in in_a_row for source in layer.before.sources}
    return [layer for layer in layers if layer.name in in_a_row or (len(layer.values) and layer.values.abs_max[0] > 0)]


def _is_trained(view: View, model: int, weight: str) -> bool:
    return bool(view.record.models[model]["parameters"].get(weight, {}).get("optimized", False))
