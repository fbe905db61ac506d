"""Families of repairs: changes that turn the same screw, a random one of which is what a repair must beat.

A file here has `KINDS`, the kinds of change by name, and `ANSWERS`, what to try for the code of a root cause.
"""

from types import ModuleType

from trimtab.repairs.change import Answer, Family, Kind
from trimtab.repairs.families import clipping, critic, decay, learning_rate, loop


def _family(name: str, *files: ModuleType) -> Family:
    kinds: dict[str, Kind] = {}
    answers: dict[str, list[Answer]] = {}
    for file in files:
        kinds |= file.KINDS
        for code, answer in file.ANSWERS.items():
            answers.setdefault(code, []).append(answer)
    return Family(name, kinds, {code: tuple(several) for code, several in answers.items()})


FAMILIES = (_family("training", loop, critic, learning_rate, clipping, decay),)
"""In the order of trying: data and loop before model, model before optimizer.

A family is wide: what a repair of the loop must beat is any change of the loop or the optimizer, drawn by lot.
"""
