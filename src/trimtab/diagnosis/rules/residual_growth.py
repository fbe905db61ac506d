"""`residual-growth`: each residual block adds a branch as large as its input, so that the signal doubles from block to block."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.first_step import foretold_update
from trimtab.diagnosis.flow import LINEAR, SCATTER
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import is_norm, links_of
from trimtab.diagnosis.norms import ends_of
from trimtab.diagnosis.rules.exploding_gradient import LARGE_STEP, WORSE
from trimtab.diagnosis.view import View, relative_updates
from trimtab.report import Evidence, Finding, Repair, Severity

BLOCKS = 4
"""Residual sums in a row from which a growth can be told from chance."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A chain of residual sums.

    Attributes:
        model: Index of the model.
        calls: The calls whose output is the sum, or that are fed with it, in forward order.
        moments: Second moment of the output of each, at the first step with numbers.
        width: Units of their outputs.
    """

    model: int
    calls: tuple[str, ...]
    moments: tuple[float, ...]
    width: int

    @property
    def log_growth(self) -> float:
        """Natural logarithm of the growth per block: the slope of a straight line through the logarithms."""
        return float(np.polyfit(np.arange(len(self.moments)), np.log(self.moments), 1)[0])

    @property
    def tolerance(self) -> float:
        """Three standard deviations of the logarithm of the growth over the chain: a sum has half of what its branch scatters."""
        return 3 * math.sqrt((SCATTER + LINEAR) / 4 * len(self.calls) / max(self.width, 1))


def find(view: View) -> Iterator[Found]:
    """Streams whose second moment grows faster than normalized branches let it, in a run that breaks."""
    for model in view.active:
        links = links_of(view.record, model)
        for stream in _streams(view, model, links):
            blocks = len(stream.calls)
            if stream.log_growth * blocks < math.log(1 + blocks) + stream.tolerance:  # branches of constant size
                continue
            severity = _severity(view, stream)
            if severity is not None and not _is_normalized(view, model, links, stream):
                yield Found(_finding(view, stream, severity))


def _streams(view: View, model: int, links: dict[str, dict[str, Any]]) -> Iterator[Stream]:
    """Chains of residual sums: each is made of the one before and of a branch."""
    chains: list[list[str]] = []
    for call, link in links.items():
        if "Add" not in link["operations"] or is_norm(view.class_of(model, call)) or not _moment(view, model, call):
            continue
        chain = next((c for c in reversed(chains) if _follows(links, c[-1], call)), None)
        if chain is None:
            chains.append([call])
        else:
            chain.append(call)
    for chain in chains:
        if len(chain) >= BLOCKS:
            moments = tuple(_moment(view, model, call) for call in chain)
            yield Stream(model, tuple(chain), moments, _width(links[chain[0]]))


def _width(link: dict[str, Any]) -> int:
    shape, axis = link.get("output"), link.get("axis")
    return int(shape[axis]) if shape and axis is not None else 1


def _follows(links: dict[str, dict[str, Any]], before: str, call: str) -> bool:
    """Whether the sum at `call` has the sum at `before` in it: as a term, through a projection, or by the terms of both."""
    mine, others = links[call]["sources"], links[before]["sources"]
    if len(mine) < 2:  # a bias, or another number that no module has made
        return False
    if before in mine or set(mine) & set(others):
        return True
    return any(before in links[source]["sources"] for source in mine if source in links)


def _moment(view: View, model: int, call: str) -> float:
    """Second moment of a call's output at the first step, 0 where it is not a number above zero."""
    series = view.series(model, call, "output")
    if series is None or series.nonfinite[0] or not math.isfinite(series.second_moment[0]):
        return 0.0
    return float(series.second_moment[0])


def _is_normalized(view: View, model: int, links: dict[str, dict[str, Any]], stream: Stream) -> bool:
    """Whether a norm between the stream's end and the loss takes the growth off again."""
    end = stream.calls[-1]
    queue, seen = list(ends_of(view, model)), {end}
    while queue:
        call = queue.pop()
        if call in seen or call not in links:
            continue
        seen.add(call)
        if is_norm(view.class_of(model, call)) and (_follows(links, end, call) or _comes_from(links, end, call)):
            return True
        queue += links[call]["sources"]
    return False


def _comes_from(links: dict[str, dict[str, Any]], before: str, call: str) -> bool:
    """Whether the output of `before` is among what `call` is made of."""
    queue, seen = [call], {call}
    while queue:
        for source in links.get(queue.pop(), {"sources": []})["sources"]:
            if source == before:
                return True
            if source not in seen:
                seen.add(source)
                queue.append(source)
    return False


def _severity(view: View, stream: Stream) -> Severity | None:
    """By consequence: a first loss far above guessing, a step that leaves nothing, a loss that is no number; None without any."""
    progress = view.progress
    if view.learned:
        return None
    worse = progress.last > WORSE * view.constant_answer or view.first_loss > WORSE * view.constant_answer
    if progress.nonfinite is not None or progress.rose or _first_jump(view, stream.model) > LARGE_STEP:
        return "error"
    return None if not worse else "warning" if view.before_training else "error"


def _first_jump(view: View, model: int) -> float:
    """The largest first update of a weight over the weight; foretold where no step was taken."""
    layers = [layer for layer in view.layers if layer.model == model]
    if view.before_training:
        jumps = [foretold_update(view, layer) for layer in layers]
    else:
        jumps = [float(relative_updates(layer)[0]) for layer in layers if len(relative_updates(layer))]
    return max((jump for jump in jumps if math.isfinite(jump)), default=0.0)


def _finding(view: View, stream: Stream, severity: Severity) -> Finding:
    blocks = len(stream.calls)
    growth, scaled = math.exp(stream.log_growth), 1 + 1 / blocks
    ratio = stream.moments[-1] / stream.moments[0]
    first, last = view.name(stream.model, stream.calls[0]), view.name(stream.model, stream.calls[-1])
    within = math.exp(stream.tolerance / max(blocks - 1, 1))
    return Finding(
        code="residual-growth",
        severity=severity,
        where=tuple(view.name(stream.model, call) for call in stream.calls),
        summary=say(
            "Each of {blocks} residual blocks multiplies the second moment of the signal by about {growth:.3g}: at {last} it is {ratio:.2g} times "
            "that at {first}, and the first loss is {loss:.3g}.",
            blocks=blocks,
            growth=growth,
            first=first,
            last=last,
            ratio=ratio,
            loss=view.first_loss,
        ),
        evidence=(
            Evidence(
                say("second moment, per block, against branches scaled by 1/sqrt(blocks)"),
                growth,
                scaled,
                within,
                "x",
                0,
            ),
            Evidence(say("the same, against unscaled branches"), growth, 2.0, within, "x", 0),
            *_foretold(view, stream, growth),
            Evidence(
                say("second moment at {last} over that at {first}", first=first, last=last),
                ratio,
                scaled ** (blocks - 1),
                math.exp(stream.tolerance),
                "x",
                0,
            ),
            Evidence(
                say("first loss"),
                view.first_loss,
                view.constant_answer if math.isfinite(view.constant_answer) else None,
                None,
                "",
                0,
            ),
        ),
        repairs=(
            Repair(
                say("Scale each residual branch by 1/sqrt(number of blocks): the signal then grows by e at most"),
                f"x = x + branch(x) / math.sqrt({blocks})",
            ),
            Repair(
                say("Or start each branch at zero, by a learnt factor or by its last weight (ReZero, Fixup)"),
                "x = x + self.alpha * branch(x)   # self.alpha = nn.Parameter(torch.zeros(()))",
            ),
            Repair(say("Or normalize at the start of each branch, and once behind the last block")),
        ),
        reference="De & Smith 2020, arXiv:2002.10444; Zhang et al. 2019 (Fixup), arXiv:1901.09321",
        location=view.place("forward"),
    )


def _foretold(view: View, stream: Stream, growth: float) -> Iterator[Evidence]:
    """The growth per block beside the one that the weights foretell."""
    sites = [view.foretold(stream.model, call) for call in stream.calls]
    moments = [site.forward for site in sites if site is not None and site.forward > 0]
    if len(moments) == len(stream.calls):
        predicted = math.exp(float(np.polyfit(np.arange(len(moments)), np.log(moments), 1)[0]))
        last = sites[-1]
        within = last.forward_tolerance ** (1 / len(moments)) if last is not None else None
        yield Evidence(say("the same, as the weights predict"), growth, predicted, within, "x", 0)
