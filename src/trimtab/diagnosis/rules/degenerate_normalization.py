"""`degenerate-normalization`: a norm over so few values that nothing of its input is left."""

import math
from collections.abc import Iterator
from typing import Any

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import links_of
from trimtab.diagnosis.norms import (
    ends_of,
    eps_of,
    gain_squared,
    is_only_way,
    kind_of,
    shape_of,
    values_per_statistic,
)
from trimtab.diagnosis.rules.signal_collapse import is_flattened
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity

TAKEN = 2
"""Degrees of freedom that a norm takes from its values: one for the mean, one for the spread. Of a norm over so many values a sign is
left, over fewer nothing."""

TAKEN_BY_RMS = 1
"""The same for a norm that takes no mean off."""


def find(view: View) -> Iterator[Found]:
    """Layer, group, instance and RMS norms whose statistics are of one value, or of two."""
    for model in view.active:
        links = links_of(view.record, model)
        few: dict[str, tuple[str, int]] = {}
        for call, link in links.items():
            facts = view.record.models[model]["modules"].get(view.module(model, call), {})
            kind, values = kind_of(facts), values_per_statistic(facts, shape_of(link))
            if values is None and _erases(view, model, call, link, facts):
                values = 1
            if values is None or kind in ("", "batch"):  # few samples in a batch are another rule's
                continue
            if values <= _taken(kind):
                few[call] = kind, values
        erased = [call for call, (kind, values) in few.items() if values < _taken(kind)]
        signs = [call for call in few if call not in erased]
        yield from (Found(_finding(view, model, calls, links, *few[calls[0]])) for calls in (erased, signs) if calls)


def _taken(kind: str) -> int:
    return TAKEN_BY_RMS if kind == "rms" else TAKEN


def _erases(view: View, model: int, call: str, link: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Whether a norm written by hand, whose settings tell nothing, gives a constant of an input that varies and that eps leaves alone."""
    gain, eps = gain_squared(view, model, call), eps_of(facts) or 0.0
    if facts.get("library") or link["operations"] or (gain is not None and not gain[0] > 0):
        return False
    if not is_flattened(view, model, call):
        return False
    for source in link["sources"]:
        looks, series = view.units(model, source), view.series(model, source, "output")
        if looks and series is not None and looks[-1].signal * series.second_moment[-1] > eps:
            return True
    return False


def _finding(
    view: View, model: int, calls: list[str], links: dict[str, dict[str, Any]], kind: str, values: int
) -> Finding:
    """The finding: the first of the norms as the example, all of them as its places."""
    call = calls[0]
    place, cls = view.name(model, call), view.class_of(model, call)
    taken = _taken(kind)
    erased = values < taken
    only = any(is_only_way(links, ends_of(view, model), one) for one in calls)
    what = (
        say("it returns its bias whatever comes in")
        if erased
        else say("only the sign of its input is left")
        if values == 1
        else say("of each pair of values only the order is left")
    )
    summary = say(
        "{place} ({cls}) takes its statistics over {values} value(s), input {shape}: {what}.",
        place=place,
        cls=cls,
        values=values,
        shape=tuple(shape_of(links[call]) or ()),
        what=what,
    )
    if erased:
        summary += " " + (
            say("Nothing of the input reaches the loss.") if only else say("The branch it ends adds nothing.")
        )
    evidence = [
        Evidence(say("values per statistic"), float(values), float(taken + 1)),
        Evidence(
            say("degrees of freedom left of them"), float(max(values - taken, 0)), float(max(values, taken + 1) - taken)
        ),
    ]
    looks = view.units(model, call)
    if erased and looks:
        signal = 0.0 if looks[-1].constant == looks[-1].units else looks[-1].signal
        evidence.append(
            Evidence(say("share of the output that varies over the samples"), signal, 1.0, None, "", looks[-1].step)
        )
    return Finding(
        code="degenerate-normalization",
        severity=_severity(view, values, erased, only, _statistics(links[call], values)),
        where=tuple(dict.fromkeys(view.name(model, one) for one in calls)),
        summary=summary,
        evidence=tuple(evidence),
        repairs=_repairs(view, model, call, kind),
        reference="https://github.com/pytorch/pytorch/issues/19250; Wu & He 2018, arXiv:1803.08494",
        location=view.place("forward"),
    )


def _statistics(link: dict[str, Any], values: int) -> int:
    """How many statistics a sample has: so many signs are left of it."""
    return math.prod((shape_of(link) or [])[1:]) // values


def _severity(view: View, values: int, erased: bool, only: bool, signs: int) -> Severity:
    """One value is an error where nothing else reaches the loss or the run does not learn; many signs may be enough to learn from."""
    if erased:
        return "error" if only or not (view.learned or view.before_training) else "warning"
    if view.learned:
        return "warning" if only and values == 1 else "note"  # the order within pairs keeps more than the sign of each
    single = only and signs == 1
    if view.before_training:
        return "warning" if single else "note"
    return "error" if single else "warning"


def _repairs(view: View, model: int, call: str, kind: str) -> tuple[Repair, ...]:
    attributes = view.record.models[model]["modules"][view.module(model, call)]["attributes"]
    name = view.name(model, call)
    drop = Repair(say("Leave {name} out: over so few values there is nothing to normalize", name=name), "nn.Identity()")
    channels, groups = attributes.get("num_channels"), attributes.get("num_groups")
    if kind == "group" and isinstance(channels, int) and isinstance(groups, int):
        fewer = next((g for g in range(max(1, channels // 8), 0, -1) if channels % g == 0), 1)
        if fewer < groups:
            return (
                Repair(
                    say("Take fewer groups, so that each has several channels"), f"nn.GroupNorm({fewer}, {channels})"
                ),
                drop,
            )
    if kind == "instance":
        return (
            drop,
            Repair(say("Normalize in front of the pooling, where a channel still has many positions")),
        )
    return (
        drop,
        Repair(say("Normalize over the axis of the features: its size has to be well above two")),
    )
