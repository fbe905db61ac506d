"""Which watched models have to do with one another: a generator with its critic, but not two nets that are trained side by side."""

from collections.abc import Callable

from trimtab.recording import Record
from trimtab.report import Finding


def strangers(record: Record) -> Callable[[Finding, Finding], bool]:
    """Tell findings about models between which neither signal nor gradient passes.

    Args:
        record: The record.

    Returns:
        A function of two findings; False wherever one of them is about no model in particular.
    """
    group = _groups(record)
    labels = {record.label(model, ""): model for model in group}

    def groups(finding: Finding) -> set[int]:
        owners = (
            label for place in finding.where for label in labels if place == label or place.startswith(f"{label}.")
        )
        return {group[labels[label]] for label in owners}

    def apart(one: Finding, other: Finding) -> bool:
        mine, others = groups(one), groups(other)
        return bool(mine and others) and mine.isdisjoint(others)

    return apart


def _groups(record: Record) -> dict[int, int]:
    """A group for each active model; those that take their input from one another share it."""
    group = {i: i for i, facts in enumerate(record.models) if facts.get("active", True)}
    for _, links in record.details.get("links", []):
        for key, link in links.items():
            here = int(key.partition(":")[0])
            for source in link["sources"]:
                there = int(source.partition(":")[0])
                if here in group and there in group and group[here] != group[there]:
                    old, new = group[here], group[there]
                    group = {model: new if which == old else which for model, which in group.items()}
    return group
