"""The loss of a trained setup in training mode, in evaluation mode, and with running statistics computed anew.

Told apart so: statistics that do not fit the weights are healed by computing them anew, small batches are not.
"""

import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import nn

from trimtab import norms
from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.recording.batch_statistics import is_batch_norm

BATCHES = 8
"""Batches that are looked at; fewer where a pass is shorter."""


def losses_by_mode(setup: Setup) -> dict[str, float] | None:
    """Mean losses of a few training batches; everything is as it was afterwards.

    Args:
        setup: A setup that has been trained.

    Returns:
        "train" (statistics of the batch), "evaluation" (running statistics), "recalibrated" (running statistics computed anew on these
        batches), "batches"; None where no batch normalization keeps statistics, or the loss cannot be computed so.
    """
    model = setup.model
    if not any(is_batch_norm(module) and module.running_mean is not None for module in model.modules()):
        return None
    with (
        unchanged(model, *model.parameters(), *model.buffers(), used_by=(setup.loss, setup.batches)) as kept,
        torch.no_grad(),
    ):
        try:
            batches = list(islice(setup.stream(on_pass=kept.add_data), BATCHES))
            found = {"train": _loss(setup, batches, model.train), "batches": float(len(batches))}
            kept.restore()
            found["evaluation"] = _loss(setup, batches, model.eval)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # uneven batches are for the rules to judge
                norms.recalibrate(model, batches, upstream="batch", forward=setup.loss)
            found["recalibrated"] = _loss(setup, batches, model.eval)
        except Exception:  # a loss that cannot be had twice, or not in this mode: then nobody knows
            return None
    return found


def _loss(setup: Setup, batches: list[Any], mode: Callable[[], nn.Module]) -> float:
    mode()
    return float(sum(float(setup.loss(setup.model, batch)) for batch in batches) / len(batches))
