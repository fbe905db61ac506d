"""Parameters that are there to be trained and that no backward pass reaches, and where the graph is cut behind them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.diagnosis.fresh import bias_agrees, looks_drawn
from trimtab.diagnosis.layers import MAX_HOPS, links_of
from trimtab.diagnosis.view import View


@dataclass(frozen=True, slots=True)
class Cut:
    """A place behind which a model's graph ends, though its numbers go on.

    Attributes:
        parameters: Names of the parameters in front of it, which get no gradient.
        front: The module whose output goes on without its graph.
        behind: The module that is given it; the same as `front` where that ran without a graph itself.
        drawn: Whether most of the weights in front of it look as they were drawn, and not as if somebody had trained them.
    """

    parameters: tuple[str, ...]
    front: str
    behind: str
    drawn: bool


def unreached(view: View, model: int) -> list[str]:
    """Trainable parameters of modules that ran, in an optimizer, that never got a gradient (None, not zero).

    Args:
        view: The record.
        model: Index of the model.

    Returns:
        Their names. What changes all the same is left out: a copy that follows the weights of another (momentum encoders, target nets).
    """
    ran = _ran(view, model)
    return [
        name
        for name, facts in view.record.models[model]["parameters"].items()
        if _is_meant(facts)
        and facts["owner"] in ran
        and view.series(model, name, "raw-gradient") is None
        and not _changes(view, model, name)
    ]


def targets(view: View, model: int) -> set[str]:
    """Modules that ran without a graph: what only serves as a target for others runs so (a teacher, a target net).

    Args:
        view: The record.
        model: Index of the model.

    Returns:
        Their names; those of a record without such facts are none.
    """
    return {
        view.module(model, call) for call, link in links_of(view.record, model).items() if link.get("graph") is False
    }


def meant(view: View, model: int) -> int:
    """Number of parameters that are to be trained and that an optimizer holds.

    Args:
        view: The record.
        model: Index of the model.

    Returns:
        The number.
    """
    return sum(map(_is_meant, view.record.models[model]["parameters"].values()))


def cut(view: View, model: int) -> Cut | None:
    """The last place at which a model's graph is cut, with parameters in front of it that therefore get no gradient.

    Args:
        view: The record.
        model: Index of the model.

    Returns:
        The place; None where everything is reached, or where nothing shows that a part that learns goes on from what the others give.
    """
    names = unreached(view, model)
    if not names:
        return None
    parameters = view.record.models[model]["parameters"]
    owners = {parameters[name]["owner"] for name in names}
    order = {name: i for i, name in enumerate(view.forward_order(model))}
    learns = [i for name, i in order.items() if name not in owners and _learns(view, model, name)]
    links, found = links_of(view.record, model), None
    for call, link in links.items():
        behind = view.module(model, call)
        if not link.get("graph") or not any(i >= order[behind] for i in learns) or _holds(behind, owners):
            continue
        front = _front(view, model, call, links, owners)
        ahead = [name for name in names if front is not None and order[parameters[name]["owner"]] <= order[front]]
        if front is not None and ahead:
            found = Cut(tuple(ahead), front, behind, _drawn(parameters, ahead))
    return found


def _front(
    view: View, model: int, call: str, links: Mapping[str, Mapping[str, Any]], owners: set[str], hops: int = MAX_HOPS
) -> str | None:
    """The module whose output a call is given without its graph, None where there is none."""
    link = links[call]
    if link.get("severed"):
        return view.module(model, str(link["severed"]).removeprefix(f"{model}:"))
    for source in link["sources"]:
        if source in links and links[source].get("graph") is False:  # it ran under no_grad, or behind the cut
            name = view.module(model, source)
            front = (
                name if _holds(name, owners) else _front(view, model, source, links, owners, hops - 1) if hops else None
            )
            if front is not None:
                return front
    if link.get("severed") == "":  # numbers from nowhere, right behind a part that gets nothing
        before = list(links)[: list(links).index(call)]
        last = next((view.module(model, c) for c in reversed(before) if _is_part(view, model, c)), None)
        return last if last is not None and _holds(last, owners) else None
    return None


def _is_part(view: View, model: int, call: str) -> bool:
    """Whether a call is of a module with parameters, its own or those of its parts."""
    name = view.module(model, call)
    return any(_within(facts["owner"], name) for facts in view.record.models[model]["parameters"].values())


def _holds(name: str, owners: set[str]) -> bool:
    return any(_within(owner, name) for owner in owners)


def _within(owner: str, name: str) -> bool:
    return owner == name or not name or owner.startswith(f"{name}.")


def _is_meant(facts: Mapping[str, Any]) -> bool:
    return bool(facts["trainable"] and facts["optimized"] and 0 not in facts["shape"])


def _ran(view: View, model: int) -> set[str]:
    """Modules that ran: those whose links are known, else those with readings."""
    linked = set(view.forward_order(model))
    return linked or {site.name for site in view.sites("output") if site.model == model}


def _learns(view: View, model: int, name: str) -> bool:
    """Whether a module has a parameter of its own that a gradient reaches."""
    prefix = f"{name}." if name else ""
    own = view.record.models[model]["modules"].get(name, {}).get("parameters", ())
    return any(view.series(model, prefix + parameter, "raw-gradient") is not None for parameter in own)


def _changes(view: View, model: int, name: str) -> bool:
    values = view.series(model, name, "parameter")
    return values is not None and bool((values.rows[:, 1:5] != values.rows[0, 1:5]).any())


def _drawn(parameters: Mapping[str, Mapping[str, Any]], names: list[str]) -> bool:
    weights = [parameters[name] for name in names if len(parameters[name]["shape"]) >= 2]
    return 2 * sum(looks_drawn(weight) and bias_agrees(parameters, weight) for weight in weights) >= len(weights)
