"""What a record tells of the ranks of a distributed run."""

from typing import Any

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.view import View
from trimtab.recording import Record, Site
from trimtab.report import Evidence


def told(record: Record) -> list[tuple[int, dict[str, Any]]]:
    """The recorded steps at which several ranks were put together, each with what `Part` keeps of them."""
    steps = ((int(step), info.get("ranks")) for step, info in zip(record.steps, record.info, strict=True))
    return [(step, facts) for step, facts in steps if facts and len(facts["loss"]) > 1]


def size(record: Record) -> int:
    """Number of ranks; 1 for a run that was not distributed."""
    return int((record.facts.get("ranks") or {}).get("size", 1))


def apart(view: View, facts: dict[str, Any], kind: str) -> list[tuple[Site, list[int], int, float]]:
    """Sites of a kind at which ranks that should hold the same do not: site, some of the ranks, how many, and how far."""
    active = set(view.active)
    entries = ((view.record.sites[index], ranks, count, off) for index, ranks, count, off in facts["apart"])
    return [entry for entry in entries if entry[0].kind == kind and entry[0].model in active]


def are_averaged(view: View, step: int, facts: dict[str, Any]) -> bool:
    """Whether the ranks train one model: a wrapper averages their gradients, or these are equal all the same."""
    if facts["copies"] > 1:
        return True
    row = view.record.readings[view.record.steps == step][0]
    moving = [site for site in view.sites("raw-gradient") if row[site.index, 4] > 0]
    return bool(moving) and not facts["halves"] and not apart(view, facts, "raw-gradient")


def bad_values(view: View, step: int, site: Site) -> tuple[Evidence, ...]:
    """Which ranks had values at a site that are no numbers; nothing in a run of one rank."""
    for at, facts in told(view.record):
        if at == step:
            ranks, count = next(((r, n) for index, r, n in facts["nonfinite"] if index == site.index), ([], 0))
            which = named(ranks, count, size(view.record))
            return (Evidence(say("ranks with such values"), which, say("none"), step=step),) if count else ()
    return ()


def named(ranks: list[int], count: int, size: int) -> str:
    """Some ranks in words."""
    shown = ", ".join(map(str, ranks)) + (", ..." if count > len(ranks) else "")
    return say("{count} of {size}: rank {ranks}", count=count, size=size, ranks=shown)


def silent(record: Record) -> tuple[str, ...]:
    """Ranks whose part is missing, in words: from the start, or from some step to the end of the record."""
    steps = [(int(s), info["ranks"]) for s, info in zip(record.steps, record.info, strict=True) if info.get("ranks")]
    ranks = sorted({rank for _, facts in steps for rank in facts["missing"]})
    lines = []
    for rank in ranks:
        there = [step for step, facts in steps if rank not in facts["missing"]]
        if not there:
            lines.append(say("rank {rank} of {size} was not watched", rank=rank, size=size(record)))
        elif np.max(there) < steps[-1][0]:
            lines.append(
                say(
                    "rank {rank} of {size} was not heard from after step {step}",
                    rank=rank,
                    size=size(record),
                    step=int(np.max(there)),
                )
            )
    return tuple(lines[:4]) + ((say("{count} more ranks like these", count=len(lines) - 4),) if len(lines) > 4 else ())
