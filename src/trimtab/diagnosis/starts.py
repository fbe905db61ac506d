"""What the weights of two runs were before the first step: as they were, drawn anew, or of another size."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trimtab._messages import say
from trimtab.diagnosis.view import View
from trimtab.report.alignment import Kind, aligned
from trimtab.report.comparison import Setting
from trimtab.report.words import number, places

SIGMAS = 4.0
"""How far two draws of weights must lie apart, in standard errors of the root mean square of normal numbers, 1 / sqrt(2n), to be of two
sizes: by chance it happens once in 16,000 tensors."""

ROUNDING = 1e-5
"""Share of their size up to which the moments of one draw may differ: a sum in float32 goes by where in memory its tensor lies."""


def start(a: View, b: View) -> Iterator[Setting]:
    """Sizes of the parameters before the first step, where both records begin with it.

    Args:
        a: The first run.
        b: The second run.

    Yields:
        Weights of another size, then other parameters of another size; where none is, whether they were drawn anew.
    """
    first, second = _drawn(a), _drawn(b)
    rows = aligned(
        list(first), list(second), *({name: p.kind for name, p in those.items()} for those in (first, second))
    )
    both = [(list(first.values())[i], list(second.values())[k]) for i, k in rows if i is not None and k is not None]
    apart = [(one, other) for one, other in both if not _of_one_size(one, other)]
    for weights in (True, False):
        those = [(one, other) for one, other in apart if one.weight == weights]
        if those:
            what = say("rms of {places}", places=places([other.name for _, other in those]))
            yield Setting(
                "start", what, _range([one.size for one, _ in those]), _range([other.size for _, other in those])
            )
    if not apart and not all(_is_one_draw(one, other) for one, other in both):
        yield Setting("start", say("weights"), say("one draw"), say("another draw of the same size"))


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter before the first step."""

    name: str
    kind: Kind
    weight: bool
    count: float
    mean: float
    size: float


def _drawn(view: View) -> dict[str, _Parameter]:
    """The parameters before the first step, by name."""
    record, found = view.record, {}
    if not len(record.steps) or record.steps[0] != 0:
        return {}
    for site in view.sites("parameter"):
        count, mean, std = (float(value) for value in record.readings[0, site.index, :3])
        facts = record.models[site.model]["parameters"].get(site.name)
        if count > 0 and facts:
            own = site.name.rpartition(".")[2]
            label = record.label(site.model, site.name)
            kind = Kind(
                label, (view.class_of(site.model, facts.get("owner") or ""), own), (tuple(facts["shape"] or ()),)
            )
            found[label] = _Parameter(label, kind, len(facts["shape"] or ()) > 1, count, mean, math.hypot(mean, std))
    return found


def _of_one_size(a: _Parameter, b: _Parameter) -> bool:
    """Whether chance alone may have made the difference."""
    noise = SIGMAS * math.sqrt(1 / (2 * a.count) + 1 / (2 * b.count))
    return a.size == b.size or (a.size > 0 and b.size > 0 and abs(math.log(b.size / a.size)) <= noise)


def _is_one_draw(a: _Parameter, b: _Parameter) -> bool:
    """Whether the numbers are the same, but for rounding."""
    least = ROUNDING * max(a.size, b.size)
    return abs(a.mean - b.mean) <= least and abs(a.size - b.size) <= least


def _range(values: list[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} … {high}"
