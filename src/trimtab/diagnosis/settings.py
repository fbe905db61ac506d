"""What was set differently in two runs: the answer to "what did I change?"."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.charting.flow import name_of
from trimtab.diagnosis.diagnose import size_of
from trimtab.diagnosis.layers import module_of
from trimtab.diagnosis.starts import start
from trimtab.diagnosis.view import View
from trimtab.report.alignment import Kind, aligned
from trimtab.report.comparison import Setting
from trimtab.report.words import number, places

APART = 0.1
"""Share by which the size of inputs must differ to be told: batches of one data set differ by less."""

IDLE = {"foreach", "fused", "differentiable", "capturable"}
"""Settings of an optimizer that change its speed and not its steps."""


def kinds(view: View) -> dict[str, Kind]:
    """What is known of each module and call of a module.

    Args:
        view: The run.

    Returns:
        By every name under which people meet it.
    """
    record, found = view.record, dict[str, Kind]()
    for i, model in enumerate(record.models):
        calls = [site.name for site in record.of_kind("output") if site.model == i]
        for name in dict.fromkeys([*model["modules"], *calls]):
            module = module_of(name, model["modules"])
            facts = model["modules"].get(module)
            if facts is not None:
                own = [f"{module}.{own}" if module else own for own in facts["parameters"]]
                shapes = tuple(tuple(model["parameters"].get(p, {}).get("shape") or ()) for p in own)
                kind = Kind(record.label(i, name), facts["class"], shapes)
                found |= dict.fromkeys((kind.name or facts["class"], name_of(view, i, name), view.name(i, name)), kind)
    return found


def differences(a: View, b: View) -> tuple[Setting, ...]:
    """Everything that a record knows to have been set differently.

    Args:
        a: The first run.
        b: The second run.

    Returns:
        Model, weights at the start, data, loss, optimizers and loop, in this order.
    """
    return tuple(x for part in (_modules, start, _data, _loss, _optimizers, _loop) for x in part(a, b))


# ---- the model


def _modules(a: View, b: View) -> Iterator[Setting]:
    sizes = [sum(size_of(view.record.models[i]) for i in view.active) for view in (a, b)]
    if sizes[0] != sizes[1]:
        yield Setting("model", say("numbers in its parameters"), f"{sizes[0]:,}", f"{sizes[1]:,}")
    mine, others = _parts(a), _parts(b)
    changed: dict[tuple[str, str, str], list[str]] = {}
    for i, k in aligned(list(mine), list(others), kinds(a), kinds(b)):
        old = None if i is None else list(mine)[i]
        new = None if k is None else list(others)[k]
        name = new if new is not None else old
        assert name is not None
        one, other = mine.get(old or "", {}), others.get(new or "", {})
        cls, own = (one.get("class", "") if old else ""), (other.get("class", "") if new else "")
        if cls != own:
            changed.setdefault(("", cls, own), []).append(name)
        elif one and other:
            for key, was, now in _unequal(one.get("attributes", {}), other.get("attributes", {}), {"training"}):
                changed.setdefault((key, was, now), []).append(name)
    for (key, was, now), names in changed.items():
        at = places(names)
        yield Setting("model", say("{setting} of {places}", setting=key, places=at) if key else at, was, now)


def _parts(view: View) -> dict[str, dict[str, Any]]:
    """Facts of every module that has no parts, or parameters of its own, in the order of the forward pass."""
    found = {}
    for model in view.active:
        modules = view.record.models[model]["modules"]
        for name in dict.fromkeys([*view.forward_order(model), *modules]):
            facts = modules.get(name)
            if facts and (facts.get("leaf") or facts.get("parameters")):
                found[view.record.label(model, name) or facts["class"]] = facts
    return found


def _unequal(a: dict[str, Any], b: dict[str, Any], without: set[str]) -> Iterator[tuple[str, str, str]]:
    for key in dict.fromkeys([*a, *b]):
        if key not in without and a.get(key) != b.get(key):
            yield key, _word(a, key), _word(b, key)


def _word(facts: dict[str, Any], key: str) -> str:
    if key not in facts:
        return ""
    value = facts[key]
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value}"


# ---- data and loss


def _data(a: View, b: View) -> Iterator[Setting]:
    one, other = _fed(a), _fed(b)
    if one["shape"] != other["shape"]:
        yield Setting("data", say("shape of the first input"), one["shape"], other["shape"])
    for kind, names in (
        ("input", (say("mean of the inputs"), say("spread of the inputs"))),
        ("target", (say("mean of the targets"), say("spread of the targets"))),
    ):
        if kind in one and kind in other:
            scale = max(one[kind][1], other[kind][1])
            for name, x, y in zip(names, one[kind], other[kind], strict=True):
                if abs(x - y) > APART * scale:
                    yield Setting("data", name, number(x), number(y))


def _fed(view: View) -> dict[str, Any]:
    """Shape of what the first module is given, mean and standard deviation of inputs and targets over the first recorded steps."""
    record = view.record
    found: dict[str, Any] = {"shape": ""}
    links = record.details.get("links")
    if links:
        shapes = [facts.get("input") for facts in links[0][1].values() if facts.get("input")]
        found["shape"] = " × ".join(map(str, shapes[0])) if shapes else ""
    for kind in ("input", "target"):
        rows = [record.readings[:10, site.index, :3].astype(np.float64) for site in record.of_kind(kind)]
        rows = [row[row[:, 0] > 0] for row in rows]
        if rows and sum(map(len, rows)):
            count, mean, std = np.concatenate(rows).T
            whole = float((count * mean).sum() / count.sum())
            spread = float(np.sqrt((count * (std**2 + (mean - whole) ** 2)).sum() / count.sum()))
            found[kind] = (whole, spread)
    return found


def _loss(a: View, b: View) -> Iterator[Setting]:
    one, other = (" ← ".join(view.loss.get("operations", ())) for view in (a, b))
    if one != other and one and other:
        yield Setting("loss", say("operations"), one, other)


# ---- optimizers and loop


def _optimizers(a: View, b: View) -> Iterator[Setting]:
    mine, others = a.record.optimizers, b.record.optimizers
    for i in range(max(len(mine), len(others))):
        one, other = (those[i] if i < len(those) else {} for those in (mine, others))
        alone = max(len(mine), len(others)) == 1
        name = other.get("label") or one.get("label") or say("optimizer {i}", i=i + 1)
        if one.get("class") != other.get("class"):
            yield Setting("optimizer", say("class") if alone else name, one.get("class", ""), other.get("class", ""))
        groups = [facts.get("groups", []) for facts in (one, other)]
        several = max(map(len, groups)) > 1
        for k in range(max(map(len, groups))):
            was, now = (those[k]["settings"] if k < len(those) else {} for those in groups)
            for key, x, y in _unequal(was, now, IDLE):
                what = say("{setting}, group {group}", setting=key, group=k) if several else key
                yield Setting(
                    "optimizer", what if alone else say("{setting} of {places}", setting=what, places=name), x, y
                )
    yield from _trained(a, b)


def _trained(a: View, b: View) -> Iterator[Setting]:
    """Parameters of one name that one of the runs leaves as they are."""
    one, other = (
        {
            view.record.label(i, name): bool(facts.get("optimized"))
            for i, model in enumerate(view.record.models)
            for name, facts in model["parameters"].items()
        }
        for view in (a, b)
    )
    words = {True: say("trained"), False: say("left as they are")}
    for value in (True, False):
        names = [name for name in one if one[name] == value and other.get(name) == (not value)]
        if names:
            yield Setting("optimizer", places(names), words[value], words[not value])


def _loop(a: View, b: View) -> Iterator[Setting]:
    if a.record.step_count != b.record.step_count:
        yield Setting("loop", say("training steps"), f"{a.record.step_count:,}", f"{b.record.step_count:,}")
    passes = [view.record.info[0].get("passes", 1) if view.record.info else 1 for view in (a, b)]
    if passes[0] != passes[1]:
        yield Setting("loop", say("backward passes a step"), f"{passes[0]}", f"{passes[1]}")
