"""What the attentions of a run looked at in its course, and what an attention is called."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trimtab.diagnosis.view import View


@dataclass(frozen=True, slots=True)
class Course:
    """One attention at the steps that were looked at in detail.

    Attributes:
        model: Index of its model.
        places: What it is called: the module that makes queries and keys.
        steps: The steps.
        share: Entropy of its weights over that of equal weights on the keys that the mask leaves.
        largest: Largest magnitude of a logit, NaN where it could not be told.
    """

    model: int
    places: tuple[str, ...]
    steps: np.ndarray
    share: np.ndarray
    largest: np.ndarray

    @property
    def later(self) -> np.ndarray:
        """Which looks lie in the second half of those that were taken, counted in steps."""
        found: np.ndarray = self.steps >= self.steps[-1] / 2
        return found


def courses(view: "View") -> list[Course]:
    """The attentions of every model that an optimizer trains, in forward order.

    Args:
        view: The record.

    Returns:
        Their courses; several attentions behind which the same module comes first are told apart by their order.
    """
    found: dict[tuple[str, int], list[tuple[int, dict[str, object]]]] = {}
    for step, looks in view.record.details.get("attention", ()):
        seen: Counter[str] = Counter()
        for look in looks:
            key = str(look["name"]) or next(iter(look["sources"]), "")
            if key:
                found.setdefault((key, seen[key]), []).append((step, look))
            seen[key] += 1
    active = set(view.active)
    return [_course(view, key, looks) for (key, _), looks in found.items() if view.split(key)[0] in active]


def _course(view: "View", key: str, looks: Sequence[tuple[int, dict[str, object]]]) -> Course:
    model, behind = view.split(key)
    sources = [view.split(str(source))[1] for source in looks[0][1]["sources"]]  # type: ignore[attr-defined]
    numbers = np.array(
        [[step, look["entropy"], look["uniform"], np.nan if look["largest"] is None else look["largest"]] for step, look in looks],
        dtype=float,
    )  # fmt: skip
    steps, entropy, uniform, largest = numbers.T
    share = np.divide(entropy, uniform, out=np.ones_like(entropy), where=uniform > 0)
    return Course(model, places(view, model, behind, sources), steps.astype(int), share, largest)


def places(view: "View", model: int, behind: str, sources: Sequence[str]) -> tuple[str, ...]:
    """What to call an attention.

    Args:
        view: The record.
        model: Index of its model.
        behind: The call that came behind its softmax.
        sources: The calls that queries and keys come from.

    Returns:
        The module that makes queries and keys, or those that do; what comes behind the softmax where neither is known.
    """
    if view.class_of(model, behind) == "MultiheadAttention":  # which makes queries and keys in functions
        return (view.name(model, behind),)
    names = [view.module(model, source) for source in sources]
    if not names:
        return (view.name(model, behind),)
    pairs = zip(*(name.split(".") for name in (names[0], names[-1])), strict=False)
    common = ".".join(a for a, _ in itertools.takewhile(lambda ab: ab[0] == ab[1], pairs))
    return (view.name(model, common),) if common else tuple(view.name(model, source) for source in sources)
