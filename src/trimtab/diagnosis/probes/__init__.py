"""Active probes, one a file: each looks at a setup, leaves everything as it was, and gives facts for the record."""

from trimtab._setup import Setup
from trimtab.diagnosis.probes import cannot_overfit_one_batch, cross_sample_leak, future_leak, input_ignored, removal
from trimtab.diagnosis.probes.calls import Drawn, drawn, stacked

Facts = dict[str, dict[str, object]]

BATCHES = 4
"""Batches that are looked at after training."""


def before_training(setup: Setup, batches: Drawn) -> Facts:
    """The probes that take a pass or two.

    Args:
        setup: A setup that has not been trained.
        batches: Its first batch.

    Returns:
        Facts by the name of the probe.
    """
    return {
        "input-ignored": input_ignored.probe_before_training(setup, batches),
        "cross-sample-leak": cross_sample_leak.probe(setup, batches),
        "future-leak": future_leak.probe(setup, batches),
    }


def after_training(setup: Setup, batches: Drawn) -> Facts:
    """The same for a setup that has been trained.

    Args:
        setup: The setup.
        batches: A few of its batches.

    Returns:
        Facts by the name of the probe.
    """
    return {
        "input-ignored": input_ignored.probe(setup, batches),
        "cross-sample-leak": cross_sample_leak.probe(setup, batches),
        "future-leak": future_leak.probe(setup, batches),
    }


__all__ = [
    "BATCHES",
    "Drawn",
    "Facts",
    "after_training",
    "before_training",
    "cannot_overfit_one_batch",
    "cross_sample_leak",
    "drawn",
    "future_leak",
    "input_ignored",
    "removal",
    "stacked",
]
