"""Families of repairs: changes that turn the same screw, a random one of which is what a repair must beat.

A file here has `KINDS`, the kinds of change by name, and `ANSWERS`, what to try for the code of a root cause.
"""

from types import ModuleType

from trimtab.repairs.change import Answer, Family, Kind
from trimtab.repairs.families import (
    inputs,
    learning_rate,
    modes,
    norm_insertion,
    norm_kind,
    norm_numbers,
    norm_precision,
    padding,
    sample_order,
    targets,
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
    _family("normalization", modes, norm_numbers, norm_precision, norm_kind, norm_insertion, padding),
    _family("optimizer", learning_rate),
)
"""In the order of trying: data and loop before model, model before optimizer."""
