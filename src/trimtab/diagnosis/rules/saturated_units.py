"""`saturated-units`: bounded activations that sit at the ends of their range, where their derivative is near zero."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.advice import initialization
from trimtab.diagnosis.expected import saturated
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import CLASSES, OPERATIONS, links_of
from trimtab.diagnosis.view import View
from trimtab.propagation import activation, saturated_share
from trimtab.recording import Kind, Units
from trimtab.report import Evidence, Finding, Severity

BOUNDED = {"tanh", "sigmoid"}

EXPECTED_AT = 1.0
"""Spread of the pre-activations of a well-scaled layer."""

SHARE = 0.5
"""Values with a derivative under 5 % of its largest. A well-scaled tanh layer has 2.9 % of them, a sigmoid layer 1.3e-5; at one
half the mean squared derivative is halved by saturation alone, at every layer."""

EARLY = 10


def find(view: View) -> Iterator[Found]:
    """Hidden layers with most values at the ends of the range at the first steps, or from some step on to the end."""
    flat: list[tuple[int, str, str, str, list[Units]]] = []
    outputs = {source.partition(":")[2] for source in view.loss.get("sources", [])}
    for model, module, source, name, units in _bounded(view):
        if module in outputs:
            continue  # a sure answer of the last sigmoid is what training is for
        late = units[len(units) // 2 :]
        if (units and units[0].edge > SHARE) or (len(late) > 1 and all(u.edge > SHARE for u in late)):
            flat.append((model, module, source, name, units))
    if not flat:
        return
    at_start = [entry for entry in flat if entry[4][0].edge > SHARE and entry[4][0].step < EARLY]
    shown = at_start or flat
    model, _, source, name, units = shown[0]
    layer = view.series(model, source, "output")
    expected = saturated_share(activation(name), EXPECTED_AT)
    places: list[str] = []
    for m, module, src, _, _ in shown:
        places += [view.name(m, src)] if src else []
        places += [view.name(m, module)] if module else []
    place = view.name(model, source) if source else places[0]
    evidence = [
        Evidence(
            say("share of saturated values behind {place}", place=place),
            units[0].edge,
            expected,
            SHARE,
            "",
            units[0].step,
        )
    ]
    foretold = saturated(view.foretold(model, source), name) if at_start else None
    if foretold is not None:
        evidence.append(Evidence(say("the same, as the weights predict"), units[0].edge, foretold, None, "", 0))
    if layer is not None:
        evidence.append(
            Evidence(
                say("spread of the pre-activations of {place}", place=place),
                float(layer.rms[0]),
                EXPECTED_AT,
                None,
                "",
                int(layer.steps[0]),
            )
        )
    severity: Severity = "note" if view.learned else "error" if at_start else "warning"
    layers = [entry for entry in view.layers if entry.model == model and entry.name in {s for _, _, s, _, _ in shown}]
    begins = 0 if at_start else next((u.step for u in units if u.edge > SHARE), 0)
    yield Found(
        Finding(
            code="saturated-units",
            severity=severity,
            where=tuple(dict.fromkeys(places)),
            summary=say(
                "{share:.0%} of the values behind {place} lie at the ends of {name}, where its derivative is under 5 % of its largest: expected of a "
                "well-scaled layer {expected:.2g}. The hidden layers stay almost what they were drawn to be.",
                share=units[0].edge if at_start else units[-1].edge,
                place=place,
                name=name,
                expected=expected,
            ),
            evidence=tuple(evidence),
            repairs=initialization([entry for entry in view.layers if entry.before.activations] or layers)[:1],
            location=view.place("forward"),
        ),
        begins,
    )


def _bounded(view: View) -> Iterator[tuple[int, str, str, str, list[Units]]]:
    """Model, activation module ("" for a function), layer in front, activation, looks."""
    for model in view.active:
        for name, link in links_of(view.record, model).items():
            kind: Kind = "output"
            own = CLASSES.get(view.class_of(model, name), "")
            source = next(iter(link["sources"]), "")
            module = name
            if own not in BOUNDED:
                if not link["operations"] or OPERATIONS.get(link["operations"][0]) not in BOUNDED:
                    continue
                own, kind, module = OPERATIONS[link["operations"][0]], "input", ""
            found = view.units(model, name, kind)
            if found:
                yield model, module, source, own, found
