"""Which of several roots a run suffers from: short runs of a copy from the run's own start, each with one of them mended."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from trimtab._setup import Setup
from trimtab.diagnosis.probes.calls import Call, Declined, drawn, facts_of
from trimtab.diagnosis.probes.copies import trained
from trimtab.diagnosis.probes.trials import Trial, trial

CANDIDATES = 2
"""Roots that are tried, the first ones with a mend of their own."""

SHARE, LEAST, MOST = 12, 20, 50
"""Steps of each of the three trials: a twelfth of the run's, so that together they take a quarter of it, within bounds."""

HELPS = 0.1
"""Share of the first loss that a mend must take off beyond what the run takes off by itself; short runs differ by less."""

DECIDES = 3.0
"""How many times more one mend must take off than the other."""


class Mend(NamedTuple):
    """What takes a fault away, roughly: enough for a short run to show whether it was in the way.

    Attributes:
        words: What is done, for people.
        prepare: Changes a copy of the setup before it is trained.
        change: Changes what the model is given.
    """

    words: str
    prepare: Callable[[Setup], None] | None = None
    change: Callable[[Call], Call] | None = None


def _times(factor: float) -> Callable[[Setup], None]:
    def prepare(setup: Setup) -> None:
        for group in _groups(setup):
            group["lr"] = group["lr"] * factor

    return prepare


def _without_decay(setup: Setup) -> None:
    for group in _groups(setup):
        if "weight_decay" in group:
            group["weight_decay"] = 0.0


def _drawn_anew(setup: Setup) -> None:
    """He's rule, which is near enough to right for every usual activation."""
    mine = {id(p) for p in trained(setup)}
    for module in setup.model.modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if (
            isinstance(weight, Tensor)
            and id(weight) in mine
            and weight.ndim > 1
            and not isinstance(module, nn.Embedding)
        ):
            nn.init.kaiming_normal_(weight, nonlinearity="relu")
            if isinstance(bias, Tensor) and id(bias) in mine:
                nn.init.zeros_(bias)


def _standardized(call: Call) -> Call:
    def standard(x: Tensor) -> Tensor:
        if not x.is_floating_point() or x.ndim < 2:
            return x
        spread = x.std(0, correction=0)
        return (x - x.mean(0)) / torch.where(spread > 0, spread, 1.0)

    return call.changed(standard)


def _groups(setup: Setup) -> list[dict[str, Any]]:
    return [group for optimizer in setup.optimizers for group in optimizer.param_groups]


_SLOWER = Mend("at a tenth of the rate", _times(0.1))
_FASTER = Mend("at ten times the rate", _times(10.0))
_NO_DECAY = Mend("without weight decay", _without_decay)
_REDRAWN = Mend("with weights drawn by He's rule", _drawn_anew)

MENDS = {
    "unscaled-inputs": Mend("with inputs standardized", change=_standardized),
    "symmetric-init": _REDRAWN,
    "signal-collapse": _REDRAWN,
    "dead-units": _REDRAWN,
    "saturated-units": _REDRAWN,
    "exploding-gradient": _REDRAWN,
    "vanishing-gradient": _REDRAWN,
    "excessive-weight-decay": _NO_DECAY,
    "decayed-norm-parameters": _NO_DECAY,
    "learning-rate-too-high": _SLOWER,
    "loss-spike": _SLOWER,
    "learning-rate-too-low": _FASTER,
}
"""Which fault is taken away how. Two roots are tried against each other where their mends differ."""


@dataclass(frozen=True)
class Start:
    """A setup as it was before training: a copy of its weights and buffers, and the state of its optimizers."""

    tensors: dict[str, Tensor]
    optimizers: list[dict[str, Any]]

    def restore(self, setup: Setup) -> None:
        """Put a copy of the setup back to its start.

        Raises:
            Declined: Its tensors are others than they were.
        """
        now = _tensors(setup.model)
        if {n: t.shape for n, t in now.items()} != {n: t.shape for n, t in self.tensors.items()}:
            raise Declined("the model has other parameters than at its start")
        with torch.no_grad():
            for name, tensor in now.items():
                tensor.copy_(self.tensors[name])
        for optimizer, state in zip(setup.optimizers, self.optimizers, strict=True):
            optimizer.load_state_dict(copy.deepcopy(state))


def start_of(setup: Setup) -> Start | None:
    """Keep a setup's start, in memory as much as its weights and buffers take.

    Args:
        setup: A setup before training.

    Returns:
        The start; None where the first batch is to give parameters their shapes, or an optimizer's state cannot be copied.
    """
    tensors = _tensors(setup.model)
    if any(is_lazy(t) or t.is_meta for t in tensors.values()):
        return None
    try:
        states = [copy.deepcopy(optimizer.state_dict()) for optimizer in setup.optimizers]
        return Start({name: tensor.detach().clone() for name, tensor in tensors.items()}, states)
    except Exception:  # an optimizer or a tensor of a kind of its own
        return None


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def rivals(roots: Sequence[str]) -> list[str]:
    """Which roots can be tried against one another.

    Args:
        roots: Codes of the roots above a note, first ones first.

    Returns:
        The first two whose mends differ; empty where there are none.
    """
    found: list[str] = []
    for code in roots:
        if code in MENDS and all(MENDS[code] != MENDS[other] for other in found):
            found.append(code)
    return found[:CANDIDATES] if len(found) >= CANDIDATES else []


def probe(setup: Setup, start: Start, roots: Sequence[str]) -> dict[str, Any]:
    """Run copies from the start, as they are and with each rival mended.

    Args:
        setup: The trained setup; everything is as it was afterwards.
        start: Its start.
        roots: Codes of the roots above a note.

    Returns:
        "steps", "first" (the loss at the start), "plain" (where the run itself comes to in as many steps), "ends" (where it comes to with
        each root mended, by code; infinite where it breaks), "words" (what was done) and "decided": the root whose mend helps where the
        other's does not, None where that is open. Or "declined".
    """
    return facts_of(lambda: _probe(setup, start, roots))


def _probe(setup: Setup, start: Start, roots: Sequence[str]) -> dict[str, Any]:
    codes = rivals(roots)
    if not codes:
        raise Declined("no two of the roots have mends that differ")
    steps = min(max(setup.steps // SHARE, LEAST), MOST)
    batches = drawn(setup, steps)

    def run(mend: Mend) -> Trial:
        def prepare(one: Setup) -> None:
            start.restore(one)
            if mend.prepare is not None:
                mend.prepare(one)

        done = trial(setup, batches, steps, prepare=prepare, change=mend.change)
        if not done.norms.any():
            raise Declined(
                "the copy gets no gradient: a step of the setup's own trains another model than the one it is given"
            )
        return done

    plain = run(Mend(""))
    ends = {code: run(MENDS[code]).end for code in codes}
    first = float(plain.losses[0])
    return {
        "steps": steps,
        "first": first,
        "plain": plain.end,
        "ends": ends,
        "words": {code: MENDS[code].words for code in codes},
        "decided": decided(first, plain.end, ends),
    }


def decided(first: float, plain: float, ends: dict[str, float]) -> str | None:
    """Which mend helps where the others do not.

    Args:
        first: Loss at the start.
        plain: Loss at the end without a mend.
        ends: Loss at the end with each mend.

    Returns:
        Its code, None where none stands out.
    """
    if not math.isfinite(first) or first == 0:
        return None
    floor = min(plain, first)  # a run that rises has taken nothing off
    helped = {code: max(floor - end, 0.0) / abs(first) for code, end in ends.items()}
    best = max(helped, key=lambda code: helped[code])
    rest = max(value for code, value in helped.items() if code != best)
    return best if helped[best] >= HELPS and helped[best] >= DECIDES * rest else None
