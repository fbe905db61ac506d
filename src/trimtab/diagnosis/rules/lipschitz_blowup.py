"""`lipschitz-blowup`: a critic whose loss is linear in its output, and nothing that bounds its slope."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import CLASSES, Layer
from trimtab.diagnosis.view import View
from trimtab.recording import Series
from trimtab.report import Evidence, Finding, Repair

LINEAR = {"Mean", "Sum", "Sub", "Rsub", "Add", "Neg", "Mul", "Div", "Stack", "Cat"}
"""Operations of a loss that has no lower bound: a difference of means. A hinge, a logarithm or a penalty is none of these."""

SPREAD = 40.0
"""Size of the outputs over that of the first steps: a critic that is bounded grows from a small start to the distance of the data, ten to
thirty times the output of a fresh net."""

SLOPE = 5.0
"""Product of the norms of its weights over that at the start, the slope that its layers allow: one to three times for bounded critics."""

SAME = 0.5
"""Share of the readings at which the largest weight is one and the same number: then it is clipped."""

BREAKS = 1e3
"""Growth of the outputs from which on it is an error."""

FIRST = 3
"""First readings, of which the median is the start."""


def find(view: View) -> Iterator[Found]:
    """The outputs of a critic and the norms of its weights grow without end."""
    for model, name, stepped in _unbounded(view):
        last = next((layer for layer in view.layers if (layer.model, layer.name) == (model, name)), None)
        critic = [] if last is None else _critic(view, last, stepped)
        if last is None or not critic or _clipped(critic):
            continue
        growth, slope = _growth(last.output), _slope(critic)
        lost = bool((last.output.nonfinite > 0).any())
        if slope >= SLOPE and (growth >= SPREAD or lost):
            yield Found(_finding(view, critic, growth, slope, lost))
            return


def _unbounded(view: View) -> list[tuple[int, str, int]]:
    """Model and name of each unbounded layer whose output a loss is linear in, with the optimizers that stepped then (bits)."""
    record = view.record
    stepped = dict(zip(record.loss_steps.tolist(), record.stepped.tolist(), strict=True))
    found = []
    for step, loss in record.details.get("loss", []):
        facts: dict[str, Any] = loss
        operations, sources = set(facts.get("operations", ())), facts.get("sources", [])
        if operations <= LINEAR and operations & {"Mean", "Sum"} and len(sources) == 1:
            model, call = view.split(sources[0])
            if view.class_of(model, call) not in CLASSES:
                found.append((model, view.module(model, call), stepped.get(step, 0)))
    return list(dict.fromkeys(found))


def _critic(view: View, last: Layer, stepped: int) -> list[Layer]:
    """The layers in front of the output that the optimizers which lower this loss hold; none where the last one is not among them."""
    held = {
        name
        for i, facts in enumerate(view.record.optimizers)
        if stepped >> i & 1
        for group in facts.get("groups", ())
        for name in group["parameters"]
    }
    layers = {
        layer.name: layer
        for layer in view.layers
        if layer.model == last.model and held & {layer.weight, view.name(layer.model, layer.weight)}
    }
    queue, found = [last.name], []
    while queue:
        layer = layers.get(queue.pop(0))
        if layer is not None and layer not in found:
            found.append(layer)
            queue += layer.before.sources
    return sorted(found, key=lambda layer: layer.order)


def _clipped(critic: list[Layer]) -> bool:
    """Whether the largest weight of the layers is the same number at most steps behind the first, as long as the outputs are numbers."""
    bad = critic[-1].output.steps[critic[-1].output.nonfinite > 0]
    end = bad[0] if len(bad) else np.inf  # what has broken down stands still too
    series = [layer.values.abs_max[1:][layer.values.steps[1:] < end] for layer in critic]
    if not len(series[0]) or len({len(one) for one in series}) > 1:
        return False
    largest = np.max(series, axis=0)
    return bool(np.mean(np.isclose(largest, np.median(largest), rtol=1e-6, atol=0)) >= SAME)


def _growth(output: Series) -> float:
    """Largest size of the outputs over that of the first readings, 1 where there are too few."""
    size = output.rms[output.nonfinite == 0]
    start = float(np.median(size[:FIRST])) if len(size) > 2 * FIRST else 0.0
    return float(size.max()) / start if start > 0 else 1.0


def _slope(critic: list[Layer]) -> float:
    """Product over the layers of the largest norm of a weight over that at the start."""
    product = 1.0
    for layer in critic:
        norms = layer.values.norm[layer.values.nonfinite == 0]
        if len(norms) and norms[0] > 0:
            product *= float(norms.max() / norms[0])
    return product


def _finding(view: View, critic: list[Layer], spread: float, slope: float, lost: bool) -> Finding:
    last = critic[-1]
    return Finding(
        code="lipschitz-blowup",
        severity="error" if lost or spread >= BREAKS else "warning",
        where=view.names(critic),
        summary=say(
            "The loss is linear in the output of {name}, so it has no lower bound, and nothing bounds the net's slope: the outputs have grown "
            "{spread:.2g} times, the product of its weights' norms {slope:.2g} times{lost}.",
            name=view.name(last.model, last.name),
            spread=spread,
            slope=slope,
            lost=say(", until they were no numbers") if lost else "",
        ),
        evidence=(
            Evidence(say("size of the outputs over that of the first ones"), spread, 1.0, SPREAD, "x"),
            Evidence(say("product of the layers' weight norms over that at the start"), slope, 1.0, SLOPE, "x"),
            Evidence(say("layers of the critic"), float(len(critic))),
        ),
        repairs=(
            Repair(
                say("Penalize the norm of the gradient at points between real and generated samples (WGAN-GP)"),
                "between = (a * real + (1 - a) * fake).requires_grad_()   # a: one random number for each sample\n"
                "(slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)\n"
                "loss = loss + 10 * (slope.flatten(1).norm(dim=1) - 1).square().mean()",
            ),
            Repair(
                say("Normalize each layer of the critic by its spectral norm"),
                "layer = torch.nn.utils.parametrizations.spectral_norm(layer)",
            ),
            Repair(
                say("Clip the critic's weights after each of its steps"),
                "for p in critic.parameters():\n    p.data.clamp_(-0.01, 0.01)",
            ),
        ),
        reference="Arjovsky et al. 2017, arXiv:1701.07875; Gulrajani et al. 2017, arXiv:1704.00028; Miyato et al. 2018, arXiv:1802.05957",
        location=view.place("backward"),
    )
