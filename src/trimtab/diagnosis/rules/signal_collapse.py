"""`signal-collapse`: a module answers the same whatever the input, or the samples grow alike with depth."""

import math
from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.advice import initialization
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import is_norm, links_of
from trimtab.diagnosis.view import View
from trimtab.recording import Units
from trimtab.report import Evidence, Finding, Repair

ALIVE = 1e-3
"""Share of the second moment that varies from sample to sample below which a signal is as good as constant: float32 resolves
1e-7 of the second moment, and a difference between samples must survive the layers that follow."""

GONE = 1e-5
"""The same at the output: what is left is of the size of rounding errors after a few layers."""

SAME = 1e-12
"""The same where one module is to blame: differences of a millionth of the values, ten times what float32 rounds. A large mean beside
a small spread, as a bias makes it, is no constant."""

DROP = 1e4
"""By how much one module must cut the varying share for the collapse to be its own: a layer far from criticality takes a factor of
10 to 100 (chi_1 of a sigmoid layer at sigma_w = 1 is 1/18), a norm over one value or a zero gain all of it."""

FLAT = 1e-3
"""Variance over the samples of a norm's output over its gain squared, expected to be 1: below this the norm has nothing to
normalize by, or its epsilon outweighs the variance a thousand times."""

ENOUGH = 3
"""Looks at which it must be so; zero-initialized branches pass their first update."""

SETTLED = 2


def find(view: View) -> Iterator[Found]:
    """A module with a varying input whose output is constant, or an output in which the samples can no longer be told apart."""
    for model in view.active:
        found = list(_constant(view, model)) or list(_alike(view, model))
        yield from found


def _constant(view: View, model: int) -> Iterator[Found]:
    links = links_of(view.record, model)
    order = list(links)
    dead = [name for name in order if _is_constant(view.units(model, name)) or is_flattened(view, model, name)]
    if not dead:
        return
    origin = next((name for name in dead if _input_varies(view, model, name, links, dead)), None)
    if origin is None or _is_rectifier(view, model, origin) or _only_moves(view, model, origin):
        return  # what a rectifier switches off is `dead-units`
    units = [u for u in view.units(model, origin) if u.step >= SETTLED]
    end = order[-1] in dead or all(source.partition(":")[2] in dead for source in view.loss.get("sources", []))
    cls = view.class_of(model, origin)
    place = view.name(model, origin)
    shown = dead if end else [origin]
    yield Found(
        Finding(
            code="signal-collapse",
            severity="error" if end or not view.learned else "warning",
            where=tuple(
                dict.fromkeys([place, *(view.name(model, n) for n in shown if view.class_of(model, n) == cls)])
            ),
            summary=say(
                "{place} ({cls}) gives the same output whatever the input: none of its {units} units varies over the samples.",
                place=place,
                cls=cls,
                units=units[-1].units,
            )
            + (" " + say("Nothing of the input reaches the loss.") if end else ""),
            evidence=(
                Evidence(
                    say("units that vary over the samples"),
                    float(units[-1].units - units[-1].constant) if units[-1].signal > SAME else 0.0,
                    float(units[-1].units),
                    None,
                    "",
                    units[-1].step,
                ),
                Evidence(
                    say("share of the output that varies over the samples"),
                    _number(units[-1].signal),
                    1.0,
                    None,
                    "",
                    units[-1].step,
                ),
            ),
            repairs=_repairs(view, model, origin, cls),
            location=view.place("forward"),
        ),
        0 if is_norm(cls) or _was_constant(view, model, origin) else _since(view.units(model, origin), SAME),
    )


def _alike(view: View, model: int) -> Iterator[Found]:
    """The samples grow alike with depth until the output cannot tell them apart, in a run that does not learn."""
    if view.learned or view.progress.nonfinite is not None:
        return
    looks = {name: _late_signal(view.units(model, name)) for name in links_of(view.record, model)}
    signal = {name: share for name, share in looks.items() if share is not None}
    ends = [source.partition(":")[2] for source in view.loss.get("sources", []) if source.partition(":")[2] in signal]
    if not ends or any(signal[end] > GONE for end in ends) or not any(share > ALIVE for share in signal.values()):
        return
    faint = [name for name in signal if signal[name] <= ALIVE]
    if all(name in ends for name in faint):
        return  # an offset at the output, such as a bias that starts at the targets' mean
    first, last = faint[0], ends[0]
    yield Found(
        Finding(
            code="signal-collapse",
            severity="error",
            where=tuple(dict.fromkeys(view.name(model, n) for n in faint)),
            summary=say(
                "The samples grow alike with depth: from {first} on less than {alive:g} of the signal varies from sample to sample, at {last} {share:.2g}.",
                first=view.name(model, first),
                alive=ALIVE,
                last=view.name(model, last),
                share=signal[last],
            ),
            evidence=(
                Evidence(
                    say("share of the output that varies over the samples"),
                    signal[last],
                    1.0,
                    ALIVE,
                    "",
                    None,
                    view.name(model, last),
                ),
                *_foretold(view, model, last),
                Evidence(say("the same at the first module"), next(iter(signal.values())), 1.0),
            ),
            repairs=initialization([layer for layer in view.layers if layer.model == model]),
            location=view.place("forward"),
        ),
        _since(view.units(model, last), GONE),
    )


def _foretold(view: View, model: int, name: str) -> Iterator[Evidence]:
    """The varying share at the first step beside the one that the weights foretell, 1 - c of the correlation map."""
    site, looks = view.foretold(model, name), view.units(model, name)
    if site is not None and math.isfinite(site.alike) and looks and looks[0].step == 0:
        measured = 0.0 if looks[0].constant == looks[0].units else _number(looks[0].signal)
        yield Evidence(
            say("the same at step 0, against the weights' prediction"),
            measured,
            max(1.0 - site.alike, 0.0),
            None,
            "",
            0,
        )


def _since(units: list[Units], share: float) -> int:
    """The step from which on the signal was below `share` at every look, at least 1: a collapse with depth follows from the layers."""
    since = units[-1].step
    for look in reversed(units):
        if look.signal > share and look.constant < look.units:
            break
        since = look.step
    return max(since, 1)


def _late_signal(units: list[Units]) -> float | None:
    """Median share of the varying signal at the looks after the first updates; 0 where every unit is constant."""
    late = [0.0 if u.constant == u.units else u.signal for u in units if u.step >= SETTLED]
    late = [share for share in late if share == share]
    return sorted(late)[len(late) // 2] if len(late) >= ENOUGH else None


def _number(value: float) -> float:
    return value if value == value else 0.0


def _is_constant(units: list[Units]) -> bool:
    """Whether no unit varied at any look after the first updates, but for rounding."""
    settled = [u for u in units if u.step >= SETTLED]
    return len(settled) >= ENOUGH and all(u.units > 0 and (u.constant == u.units or u.signal <= SAME) for u in settled)


def is_flattened(view: View, model: int, name: str) -> bool:
    """Whether a norm's output varies by far less than its gain: it makes every variance 1, but for one value and its rounding.

    Args:
        view: The record.
        model: Index of the model.
        name: The norm, or a call of it.

    Returns:
        True where that was so at every look after the first updates.
    """
    output = view.series(model, name, "output")
    settled = [u for u in view.units(model, name) if u.step >= SETTLED]
    if not is_norm(view.class_of(model, name)) or output is None or len(settled) < ENOUGH:
        return False
    gain = view.series(model, f"{name}.weight" if name else "weight", "parameter")
    expected = 1.0 if gain is None else float(gain.second_moment[0])
    moments = dict(zip(output.steps.tolist(), output.second_moment.tolist(), strict=True))
    return all(u.signal * moments.get(u.step, expected) < FLAT * expected for u in settled)


def _was_constant(view: View, model: int, name: str) -> bool:
    """Whether the first look found it constant too: what still varied then has collapsed in training, by what came before."""
    first = view.units(model, name)[0]
    return first.constant == first.units or first.signal <= SAME or is_flattened(view, model, name)


def _input_varies(view: View, model: int, name: str, links: dict[str, dict[str, object]], dead: list[str]) -> bool:
    """Whether what goes into `name` comes from modules that vary, or from the data."""
    sources = links[name].get("sources", [])
    assert isinstance(sources, list)
    if not sources:
        return False
    if any(source in dead for source in sources):
        return False
    before = [share for share in (_late_signal(view.units(model, source)) for source in sources) if share is not None]
    if is_flattened(view, model, name):
        return bool(before) and max(before) > ALIVE
    return bool(before) and max(before) > DROP * max(_late_signal(view.units(model, name)) or 0.0, 1e-12)


def _is_rectifier(view: View, model: int, name: str) -> bool:
    """Whether the constant is the zero of a rectifier, a module's own or a function's in front of it."""
    found = view.units(model, name)
    given = [u for u in view.units(model, name, "input") if u.step >= SETTLED]
    if given and all(u.silent == u.units for u in given):
        return True
    return (
        bool(found)
        and all(u.silent == u.units for u in found)
        and view.class_of(model, name) in ("ReLU", "ReLU6", "Threshold", "Hardswish")
    )


def _only_moves(view: View, model: int, name: str) -> bool:
    """Whether a module of torch has nothing to lose a signal by: behind a flattening or a pooling, positions no longer count as samples."""
    facts = view.record.models[model]["modules"].get(view.module(model, name), {})
    return (
        bool(facts.get("library"))
        and facts.get("leaf", True)
        and not facts.get("parameters")
        and not is_norm(facts.get("class", ""))
    )


def _repairs(view: View, model: int, origin: str, cls: str) -> tuple[Repair, ...]:
    if is_norm(cls):
        prefix = f"{origin}.weight" if origin else "weight"
        gain = view.series(model, prefix, "parameter")
        if gain is not None and gain.abs_max[0] == 0:
            return (
                Repair(
                    say(
                        "Start the gain of {name} at one, or add the skip connection that a zero gain is meant for",
                        name=view.name(model, origin),
                    ),
                    "torch.nn.init.ones_(norm.weight)",
                ),
            )
        return (
            Repair(
                say(
                    "A norm over a single value returns its bias: normalize over more values (fewer groups), or drop the norm"
                )
            ),
        )
    return (
        Repair(
            say("Look at the weights of {name}: something multiplies its input by zero", name=view.name(model, origin))
        ),
    )
