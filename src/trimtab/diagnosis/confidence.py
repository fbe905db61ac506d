"""How sure a root is: how often a root that stood as it does was the true cause of a run whose fault was known."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from trimtab._messages import say
from trimtab.report import Evidence, Finding

Standing: TypeAlias = Literal["alone", "decided", "first", "beside", "ruled out"]

RIGHT: dict[Standing, tuple[int, int]] = {
    "alone": (716, 732),
    "decided": (4, 4),
    "first": (10, 16),
    "beside": (3, 16),
    "ruled out": (0, 4),
}
"""Roots of a standing that were the known fault, and all of them, in 752 broken runs; `benchmarks/calibrate_roots.py` counts them."""


def weighed(findings: Sequence[Finding], removal: dict[str, Any]) -> tuple[Finding, ...]:
    """Give each root above a note its confidence, and the evidence of the trials where they were run.

    Args:
        findings: Findings in the order of reading.
        removal: What `probes.removal` found; empty where it was not run.

    Returns:
        The same findings in the same order.
    """
    roots = [f.code for f in findings if is_root(f)]
    return tuple(
        replace(f, confidence=confidence(standing(f.code, roots, removal)), evidence=(*_trial(f, removal), *f.evidence))
        if is_root(f)
        else f
        for f in findings
    )


def is_root(finding: Finding) -> bool:
    """Whether it is a root cause above a note."""
    return not finding.causes and finding.severity != "note"


def standing(code: str, roots: Sequence[str], removal: dict[str, Any]) -> Standing:
    """How a root stands among the others.

    Args:
        code: The root.
        roots: All roots above a note, in the order of reading.
        removal: What `probes.removal` found.

    Returns:
        "alone"; "decided" or "ruled out" where trials told it from a rival; else "first" or "beside" the first.
    """
    if len(roots) < 2:
        return "alone"
    decided, tried = removal.get("decided"), removal.get("ends", {})
    if decided is not None and code in tried:
        return "decided" if code == decided else "ruled out"
    return "first" if code == roots[0] else "beside"


def confidence(stands: Standing) -> float:
    """The share of roots that stood so and were the true cause.

    Laplace's rule of succession: (right + 1) / (all + 2), which few runs cannot bring to 0 or 1.

    Args:
        stands: How the root stands.

    Returns:
        The share, 0 to 1.
    """
    right, of = RIGHT[stands]
    return round((right + 1) / (of + 2), 2)


def _trial(finding: Finding, removal: dict[str, Any]) -> tuple[Evidence, ...]:
    ends = removal.get("ends", {})
    if finding.code not in ends:
        return ()
    words = say("loss of a copy after {n} steps {how}", n=removal["steps"], how=removal["words"][finding.code])
    return Evidence(words, ends[finding.code]), Evidence(say("the same, as the run is"), removal["plain"])
