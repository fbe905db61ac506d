"""Families of repairs: changes that turn the same screw, a random one of which is what a repair must beat.

A file here has `KINDS`, the kinds of change by name, and `ANSWERS`, what to try for the code of a root cause.
"""

from types import ModuleType

from trimtab.repairs.change import Answer, Family, Kind
from trimtab.repairs.families import (
    activations,
    attention,
    branches,
    clipping,
    critic,
    decay,
    inputs,
    learning_rate,
    loop,
    modes,
    norm_insertion,
    norm_kind,
    norm_numbers,
    norm_precision,
    outputs,
    padding,
    placement,
    recurrent,
    sample_order,
    starts,
    targets,
    weights,
)


def _family(name: str, *files: ModuleType) -> Family:
    kinds: dict[str, Kind] = {}
    answers: dict[str, list[Answer]] = {}
    for file in files:
        kinds |= file.KINDS
        for code, answer in file.ANSWERS.items():
            answers.setdefault(code, []).append(answer)
    return Family(name, kinds, {code: tuple(several) for code, several in answers.items()})


FAMILIES = (
    _family("data", inputs, targets, sample_order),
    _family("initialization", starts, weights, recurrent),
    _family("normalization", modes, norm_numbers, norm_precision, norm_kind, norm_insertion, padding),
    _family("architecture", activations, branches, placement, attention, outputs),
    _family("training", loop, critic, learning_rate, clipping, decay),
)
"""In the order of trying: data before model, model before training.

A family is wide: what a repair of the loop must beat is any change of the loop or the optimizer, drawn by lot.
"""
