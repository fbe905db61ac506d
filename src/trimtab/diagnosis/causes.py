"""Which finding explains which: one table, small enough to read.

Origin before propagation, start before training, data before model, loop before optimizer.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from trimtab.report import SEVERITIES, Finding

RANK = (
    "nonfinite-data",
    "rank-divergence",
    "duplicated-batches",
    "unequal-batches",
    "missing-zero-grad",
    "loss-scale-underflow",
    "missing-from-optimizer",
    "detached-graph",
    "frozen-parameters",
    "broadcast-loss",
    "double-softmax",
    "future-leak",
    "cross-sample-leak",
    "unscaled-inputs",
    "unscaled-targets",
    "symmetric-init",
    "degenerate-normalization",
    "norm-precision",
    "norm-placement",
    "residual-growth",
    "lipschitz-blowup",
    "unscaled-attention",
    "attention-logit-growth",
    "small-batch-batchnorm",
    "padding-in-batch-stats",
    "stale-running-stats",
    "train-eval-gap",
    "excessive-weight-decay",
    "decayed-norm-parameters",
    "loss-at-init-off",
    "signal-collapse",
    "dead-units",
    "saturated-units",
    "exploding-gradient",
    "vanishing-gradient",
    "ill-conditioned",
    "clipping-dominates",
    "missing-warmup",
    "learning-rate-too-high",
    "learning-rate-too-low",
    "output-logit-drift",
    "loss-spike",
    "nonfinite-loss",
    "cannot-overfit-one-batch",
    "input-ignored",
)
"""Codes from origin to consequence: the order of reading, and who is the cause where two explain each other."""

SYMPTOMS = frozenset({"cannot-overfit-one-batch", "input-ignored"})
"""What any fault may lead to: that a net cannot be fitted, or does not use its input, is said only where nothing else is found."""

UNSTABLE = frozenset({"missing-warmup", "attention-logit-growth", "output-logit-drift"})
"""What steps that are too long bring about in a transformer: whatever explains such steps explains these."""

_EXPLAINS: dict[str, frozenset[str]] = {
    "nonfinite-data": frozenset(RANK[1:]),
    "rank-divergence": frozenset({
        "loss-spike",
        "learning-rate-too-high",
        "learning-rate-too-low",
        "train-eval-gap",
        "stale-running-stats",
        "exploding-gradient",
        "nonfinite-loss",
    }),
    "missing-zero-grad": frozenset({
        "loss-spike",
        "learning-rate-too-high",
        "exploding-gradient",
        "nonfinite-loss",
        "dead-units",
        "saturated-units",
        "clipping-dominates",
    }),
    "loss-scale-underflow": frozenset({
        "signal-collapse",
        "dead-units",
        "saturated-units",
        "vanishing-gradient",
        "frozen-parameters",
        "learning-rate-too-low",
    }),
    "missing-from-optimizer": frozenset({
        "vanishing-gradient",
        "learning-rate-too-low",
        "signal-collapse",
        "saturated-units",
    }),
    "detached-graph": frozenset({
        "frozen-parameters",
        "signal-collapse",
        "dead-units",
        "saturated-units",
        "vanishing-gradient",
        "learning-rate-too-low",
    }),
    "frozen-parameters": frozenset({"learning-rate-too-low", "vanishing-gradient", "signal-collapse"}),
    "broadcast-loss": frozenset({
        "signal-collapse",
        "dead-units",
        "saturated-units",
        "vanishing-gradient",
        "train-eval-gap",
        "excessive-weight-decay",
        "learning-rate-too-high",
        "learning-rate-too-low",
    }),
    "double-softmax": frozenset({"vanishing-gradient", "learning-rate-too-low", "saturated-units"}),
    "cross-sample-leak": frozenset({
        "train-eval-gap",
        "signal-collapse",
        "vanishing-gradient",
        "learning-rate-too-low",
    }),
    "unscaled-inputs": frozenset({
        "loss-spike",
        "loss-at-init-off",
        "ill-conditioned",
        "exploding-gradient",
        "dead-units",
        "saturated-units",
        "learning-rate-too-high",
        "learning-rate-too-low",
        "nonfinite-loss",
        "signal-collapse",
        "clipping-dominates",
    }),
    "unscaled-targets": frozenset({
        "loss-spike",
        "loss-at-init-off",
        "exploding-gradient",
        "learning-rate-too-high",
        "learning-rate-too-low",
        "nonfinite-loss",
        "dead-units",
        "clipping-dominates",
        "signal-collapse",
    }),
    "symmetric-init": frozenset({"signal-collapse", "vanishing-gradient", "dead-units", "learning-rate-too-low"}),
    "degenerate-normalization": frozenset({
        "signal-collapse",
        "vanishing-gradient",
        "frozen-parameters",
        "dead-units",
        "learning-rate-too-low",
    }),
    "norm-precision": frozenset({
        "ill-conditioned",
        "stale-running-stats",
        "train-eval-gap",
        "signal-collapse",
        "vanishing-gradient",
        "dead-units",
        "learning-rate-too-low",
        "nonfinite-loss",
    }),
    "norm-placement": frozenset({
        "loss-at-init-off",
        "small-batch-batchnorm",
        "train-eval-gap",
        "signal-collapse",
        "vanishing-gradient",
        "exploding-gradient",
        "dead-units",
        "learning-rate-too-high",
        "learning-rate-too-low",
    }),
    "residual-growth": frozenset({
        "loss-at-init-off",
        "exploding-gradient",
        "learning-rate-too-high",
        "dead-units",
        "saturated-units",
        "clipping-dominates",
        "nonfinite-loss",
    }),
    "lipschitz-blowup": frozenset({
        "loss-spike",
        "signal-collapse",
        "dead-units",
        "saturated-units",
        "exploding-gradient",
        "vanishing-gradient",
        "learning-rate-too-high",
        "learning-rate-too-low",
        "nonfinite-loss",
        "clipping-dominates",
    }),
    "unscaled-attention": frozenset({"signal-collapse", "vanishing-gradient", "learning-rate-too-low"}),
    "attention-logit-growth": frozenset({
        "output-logit-drift",
        "loss-spike",
        "signal-collapse",
        "exploding-gradient",
        "vanishing-gradient",
        "learning-rate-too-low",
        "nonfinite-loss",
        "clipping-dominates",
    }),
    "small-batch-batchnorm": frozenset({
        "train-eval-gap",
        "stale-running-stats",
        "exploding-gradient",
        "learning-rate-too-high",
        "learning-rate-too-low",
    }),
    "padding-in-batch-stats": frozenset({"train-eval-gap", "stale-running-stats"}),
    "stale-running-stats": frozenset({
        "loss-at-init-off",
        "train-eval-gap",
        "signal-collapse",
        "dead-units",
        "exploding-gradient",
        "vanishing-gradient",
        "learning-rate-too-high",
        "learning-rate-too-low",
        "nonfinite-loss",
        "clipping-dominates",
    }),
    "train-eval-gap": frozenset({"learning-rate-too-low"}),
    "excessive-weight-decay": frozenset({
        "loss-spike",
        "train-eval-gap",
        "stale-running-stats",
        "decayed-norm-parameters",
        "signal-collapse",
        "dead-units",
        "saturated-units",
        "exploding-gradient",
        "vanishing-gradient",
        "learning-rate-too-high",
        "learning-rate-too-low",
    }),
    "decayed-norm-parameters": frozenset({
        "train-eval-gap",
        "stale-running-stats",
        "signal-collapse",
        "dead-units",
        "vanishing-gradient",
        "learning-rate-too-high",
        "learning-rate-too-low",
    }),
    "signal-collapse": frozenset({"dead-units", "vanishing-gradient", "frozen-parameters", "learning-rate-too-low"}),
    "dead-units": frozenset({"vanishing-gradient", "learning-rate-too-low"}),
    "saturated-units": frozenset({
        "loss-at-init-off",
        "vanishing-gradient",
        "exploding-gradient",
        "learning-rate-too-low",
        "clipping-dominates",
    }),
    "exploding-gradient": frozenset({
        "loss-at-init-off",
        "loss-spike",
        "learning-rate-too-high",
        "nonfinite-loss",
        "clipping-dominates",
    }),
    "vanishing-gradient": frozenset({"learning-rate-too-low"}),
    "ill-conditioned": frozenset({"learning-rate-too-low"}),
    "clipping-dominates": frozenset({"learning-rate-too-low", "ill-conditioned"}),
    "missing-warmup": frozenset({
        "attention-logit-growth",
        "output-logit-drift",
        "loss-spike",
        "signal-collapse",
        "dead-units",
        "saturated-units",
        "exploding-gradient",
        "vanishing-gradient",
        "learning-rate-too-low",
        "nonfinite-loss",
        "clipping-dominates",
    }),
    "output-logit-drift": frozenset({"loss-spike", "nonfinite-loss", "clipping-dominates"}),
    "loss-spike": frozenset({"nonfinite-loss"}),
    "learning-rate-too-high": frozenset({"loss-spike", "nonfinite-loss", "train-eval-gap", "stale-running-stats"}),
    "cannot-overfit-one-batch": frozenset({"input-ignored"}),
    "input-ignored": frozenset({"cannot-overfit-one-batch"}),
}

EXPLAINS = {
    code: _EXPLAINS.get(code, frozenset())
    | (frozenset() if code in SYMPTOMS else SYMPTOMS)
    | (UNSTABLE if "learning-rate-too-high" in {code, *_EXPLAINS.get(code, ())} else frozenset())
    for code in RANK
    if code in _EXPLAINS or code not in SYMPTOMS
}
"""Cause and effect."""

LATER = {
    ("vanishing-gradient", "signal-collapse"),
    ("dead-units", "signal-collapse"),
    ("exploding-gradient", "dead-units"),
    ("loss-at-init-off", "dead-units"),
    ("exploding-gradient", "saturated-units"),
    *(("saturated-units", code) for code in sorted(UNSTABLE)),
    ("learning-rate-too-high", "dead-units"),
    ("learning-rate-too-high", "saturated-units"),
    ("learning-rate-too-high", "exploding-gradient"),
    ("learning-rate-too-high", "signal-collapse"),
    ("learning-rate-too-high", "vanishing-gradient"),
    ("learning-rate-too-high", "norm-precision"),
    ("exploding-gradient", "norm-precision"),
    ("signal-collapse", "missing-warmup"),
    ("vanishing-gradient", "missing-warmup"),
    *itertools.product(
        ("signal-collapse", "dead-units", "saturated-units", "vanishing-gradient", "learning-rate-too-high"),
        ("excessive-weight-decay", "decayed-norm-parameters"),  # what gets no gradient is left to the decay
    ),
}
"""Cause and effect where the effect came after the cause in training, or lies behind it: its `begins` decides."""


def explain(
    found: Sequence[tuple[Finding, int]],
    apart: Callable[[Finding, Finding], bool] = lambda cause, effect: False,
    first: str | None = None,
) -> tuple[Finding, ...]:
    """Name the causes of each finding and put the findings in the order of reading.

    Args:
        found: Findings, each with the step at which its fault was there for the first time.
        apart: Whether two findings are about models between which neither signal nor gradient passes.
        first: A root that trials have decided on; it comes before the others.

    Returns:
        Roots first (graver ones first, origin before consequence), each followed by what it explains.
    """
    loud = [(f, begins) for f, begins in found if f.severity != "note"]
    named = []
    for finding, begins in found:
        causes = [
            other.code
            for other, start in loud
            if _is_graver(other, finding)
            and _explains(other.code, start, finding.code, begins)
            and not apart(other, finding)
        ]
        named.append(replace(finding, causes=tuple(dict.fromkeys(causes))))
    return _in_reading_order(_without_cycles(named), first)


def without_mere_symptoms(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Leave out that a net cannot be fitted where something else is found that explains it.

    Args:
        findings: Findings with their causes.

    Returns:
        The others, in the same order.
    """
    return tuple(f for f in findings if f.code not in SYMPTOMS or SYMPTOMS.issuperset(f.causes))


def _is_graver(cause: Finding, effect: Finding) -> bool:
    """Only a finding that weighs at least as much explains another; a note is explained by nothing."""
    return (
        cause.code != effect.code
        and effect.severity != "note"
        and SEVERITIES.index(cause.severity) <= SEVERITIES.index(effect.severity)
    )


def _explains(cause: str, cause_begins: int, effect: str, effect_begins: int) -> bool:
    if effect in EXPLAINS.get(cause, ()):
        return cause_begins <= effect_begins
    return (cause, effect) in LATER and cause_begins < effect_begins


def _without_cycles(findings: list[Finding]) -> list[Finding]:
    """Two findings that explain each other: the one that ranks first keeps none of the other as its cause."""
    by_code = {f.code: set(f.causes) for f in findings}
    return [
        replace(
            f, causes=tuple(c for c in f.causes if not (f.code in by_code.get(c, set()) and _rank(f.code) < _rank(c)))
        )
        for f in findings
    ]


def _rank(code: str) -> int:
    return RANK.index(code) if code in RANK else len(RANK)


def _in_reading_order(findings: list[Finding], first: str | None) -> tuple[Finding, ...]:
    def order(finding: Finding) -> tuple[bool, int, int]:
        return finding.code != first, SEVERITIES.index(finding.severity), _rank(finding.code)

    roots = sorted((f for f in findings if not f.causes), key=order)
    rest = sorted((f for f in findings if f.causes), key=order)
    ordered: list[Finding] = []
    for root in (r for r in roots if r.severity != "note"):
        ordered.append(root)
        told = {root.code}
        while follows := next((f for f in rest if told & set(f.causes)), None):
            rest.remove(follows)
            ordered.append(follows)
            told.add(follows.code)
    ordered += rest
    ordered += [r for r in roots if r.severity == "note"]
    return tuple(ordered)
