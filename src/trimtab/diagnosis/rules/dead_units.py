"""`dead-units`: rectifiers that are off for every sample of every batch."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.expected import silent
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import CLASSES, OPERATIONS, links_of
from trimtab.diagnosis.view import View
from trimtab.recording import Kind, Units
from trimtab.report import Evidence, Finding, Repair

RECTIFIERS = {"relu", "relu6", "hard_swish"}

MANY = 0.75
"""Share of a layer's units that are off on a whole batch. At initialization with centred inputs each unit is on for half of the
samples, so that a unit is off on all of 32 with a chance of 2e-10. Where the samples have grown alike with depth, every unit is on
or off for all of them by chance alone, one half each (that is `signal-collapse`); trained nets keep some units for rare inputs."""

ALL = 0.98
"""From here on nothing passes: the gradient behind the layer is that of at most a unit in fifty."""

ENOUGH = 3


def find(view: View) -> Iterator[Found]:
    """Activations with most units exactly zero on every sample at every look."""
    full: list[tuple[int, str, str, list[Units]]] = []
    partial: list[tuple[int, str, str, list[Units]]] = []
    for model, activation, layer, units in _rectified(view):
        if _stays(units, ALL) or (view.before_training and units[-1].silent >= ALL * units[-1].units):
            full.append((model, activation, layer, units))
        elif _stays(units, MANY):
            partial.append((model, activation, layer, units))
    if full:
        yield _finding(view, *_origin(view, full), error=True)
    if partial:
        yield _finding(view, partial[0], partial, error=False)


def _origin(
    view: View, full: list[tuple[int, str, str, list[Units]]]
) -> tuple[tuple[int, str, str, list[Units]], list[tuple[int, str, str, list[Units]]]]:
    """The first dead layer in forward order: what lies behind it sees only its own bias."""
    first = full[0]
    begins = _begins(first[3], ALL)
    earlier = [entry for entry in full if _begins(entry[3], ALL) < begins]
    return (earlier[0], [earlier[0]]) if earlier else (first, [first])


def _stays(units: list[Units], share: float) -> bool:
    """Whether the units were off at the last looks, at least three of them and a fifth of all."""
    last = units[-max(ENOUGH, len(units) // 5) :]
    return len(units) >= ENOUGH and all(u.silent >= share * u.units for u in last)


def died_in_training(view: View) -> int | None:
    """The step from which on a whole layer of rectifiers was off that was not at the start; None when there is none."""
    steps = [_begins(units, ALL) for _, _, _, units in _rectified(view) if _stays(units, ALL)]
    later = [step for step in steps if step > 0]
    return min(later) if later and len(later) == len(steps) else None


def _begins(units: list[Units], share: float) -> int:
    """The step from which on the units were off at every look."""
    begins = units[-1].step
    for look in reversed(units):
        if look.silent < share * look.units:
            break
        begins = look.step
    return begins


def _finding(
    view: View,
    origin: tuple[int, str, str, list[Units]],
    entries: list[tuple[int, str, str, list[Units]]],
    *,
    error: bool,
) -> Found:
    model, activation, layer, units = origin
    last = units[-1]
    places: list[str] = []
    for m, act, lay, _ in entries:
        places += [view.name(m, lay)] if lay else []
        places += [view.name(m, act)] if act and act != lay else []
    begins = _begins(units, ALL if error else MANY)
    place = view.name(model, layer or activation)
    evidence = [
        Evidence(
            say("units of {place} that are off on every sample", place=place),
            last.silent / last.units,
            0.0,
            MANY,
            "",
            last.step,
        ),
        Evidence(say("the same at the first look"), units[0].silent / units[0].units, 0.0, MANY, "", units[0].step),
    ]
    shape = links_of(view.record, model).get(layer, {}).get("output") or []
    foretold = silent(view.foretold(model, layer), shape[0]) if len(shape) == 2 and units[0].step == 0 else None
    if foretold is not None:
        evidence.append(
            Evidence(say("the same, as the weights predict"), units[0].silent / units[0].units, foretold, MANY, "", 0)
        )
    before = view.series(model, layer, "output") if layer else None
    if before is not None:
        evidence.append(
            Evidence(
                say("mean of what the rectifier is given"),
                float(before.mean[0]),
                0.0,
                float(before.std[0]),
                "",
                int(before.steps[0]),
            )
        )
    when = say("from the first step on") if begins == 0 else say("from step {step} on", step=begins)
    return Found(
        Finding(
            code="dead-units",
            severity=("error" if error else "warning") if not view.learned else ("warning" if error else "note"),
            where=tuple(dict.fromkeys(places)),
            summary=say(
                "{dead} of {all} units behind {place} are off for every sample, {when}: their gradient is exactly zero, and {behind}.",
                dead=last.silent,
                all=last.units,
                place=place,
                when=when,
                behind=say("nothing in front of them can learn") if error else say("they cannot come back"),
            ),
            evidence=tuple(evidence),
            repairs=_repairs(view, model, layer, begins),
            location=view.place("forward"),
        ),
        begins,
    )


def _repairs(view: View, model: int, layer: str, begins: int) -> tuple[Repair, ...]:
    if begins > 0:
        return (
            Repair(say("Lower the learning rate, or warm it up: a large step threw the biases below zero")),
            Repair(say("Replace the ReLU by one that lets a little through"), "torch.nn.LeakyReLU(0.01)"),
        )
    path = f"model.get_submodule({view.name(model, layer)!r})" if layer else "layer"
    return (
        Repair(
            say("Start the biases of {layer} at zero", layer=view.name(model, layer) if layer else say("the layer")),
            f"torch.nn.init.zeros_({path}.bias)",
        ),
        Repair(say("Replace the ReLU by one that lets a little through"), "torch.nn.LeakyReLU(0.01)"),
    )


def _rectified(view: View) -> Iterator[tuple[int, str, str, list[Units]]]:
    """Model, activation module, the layer in front of it, and the looks, for every rectifier in forward order."""
    for model in view.active:
        links = links_of(view.record, model)
        for name, link in links.items():
            kind: Kind = "output"
            if CLASSES.get(view.class_of(model, name)) in RECTIFIERS:
                source = next(iter(link["sources"]), "")
                activation = name
            elif (
                link["operations"]
                and OPERATIONS.get(link["operations"][0]) in RECTIFIERS
                and view.units(model, name, "input")
            ):
                kind, source, activation = "input", next(iter(link["sources"]), ""), ""
            else:
                continue
            found = view.units(model, name, kind)
            if found:
                yield model, activation, _weighted(view, model, source, links), found


def _weighted(view: View, model: int, name: str, links: dict[str, dict[str, object]]) -> str:
    """The nearest layer with a weight at or in front of `name`."""
    weighted = {layer.name for layer in view.layers if layer.model == model}
    for _ in range(4):
        if name in weighted or name not in links:
            return name
        sources = links[name]["sources"]
        assert isinstance(sources, list)
        if not sources:
            return name
        name = str(sources[0])
    return name
