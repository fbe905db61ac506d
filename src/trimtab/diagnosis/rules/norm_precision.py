"""`norm-precision`: numbers of a norm that its precision cannot hold, or an eps that outweighs what it is to guard."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import is_norm, links_of
from trimtab.diagnosis.norms import eps_of, gain_squared, kind_of, shape_of, values_per_statistic
from trimtab.diagnosis.rules.nonfinite_loss import OVERFLOW
from trimtab.diagnosis.view import View
from trimtab.recording import COLUMNS, Kind, Series
from trimtab.report import Evidence, Finding, Repair, Severity

SMALLEST = 2.0**-24
"""The smallest number above zero of half precision, 6e-8: half of it, and whatever is below, is stored as zero."""

LARGEST = 65504.0
"""Half precision's largest number."""

ROOT = 256.0
"""Magnitude from which a square does not fit into half precision."""

WEAK = 0.1
"""Share var / (var + eps) below which eps, and not the variance, decides what the norm divides by: the output is under a third of its
gain in size."""

NOTHING = 0.01
"""Share below which the norm takes most of the signal away, a tenth in size being left."""

SETTLED = 2
ENOUGH = 3
"""Looks from step 2 on at which it must be so; zero-initialized branches have no variance at first."""

STUCK = 0.1
"""Relative error of running statistics that their precision never lets go, from which it costs something."""

SAFE = {"Relu", "Add", "Sub", "Gelu", "Tanh", "Sigmoid", "Silu"}
"""Operations between a norm and the modules in front that give a number from numbers as long as their sum fits."""

BITS = {"float16": 11, "bfloat16": 8}
"""Significant bits of the short formats."""


def find(view: View) -> Iterator[Found]:
    """A norm that makes NaN of numbers; else one whose eps outweighs the variance; else statistics in a short format."""
    for model in view.active:
        links = links_of(view.record, model)
        first = _first_nonfinite(view, model, links)
        if first is not None:
            yield first
            continue
        weak = [found for call in links if (found := _outweighed(view, model, call, links)) is not None]
        if weak:
            yield _together(weak)
        for name, facts in view.record.models[model]["modules"].items():
            yield from _short_statistics(view, model, name, facts)


# Numbers in, no numbers out -------------------------------------------------------------------------------------------


def _first_nonfinite(view: View, model: int, links: dict[str, dict[str, Any]]) -> Found | None:
    """The first module whose output is NaN or infinite, if it is a norm with numbers for input and parameters; or the first gradient."""
    signal, gradient = _first_bad(view, model, "output"), _first_bad(view, model, "gradient")
    if gradient is not None and (signal is None or gradient < signal):
        return _first_gradient(view, model, links, gradient) if view.progress.nonfinite is not None else None
    if signal is None:
        return None
    call = next((call for call in links if _bad_at(view.series(model, call, "output"), signal)), None)
    if call is None:
        return None
    facts = view.record.models[model]["modules"].get(view.module(model, call), {})
    largest = _largest_input(view, model, links[call], signal)
    if (
        largest is None
        or not _normalizes(view, model, call, facts)
        or not _has_numbers(view, model, call, facts, signal)
    ):
        return None
    return Found(_nonfinite(view, model, call, facts, largest, signal), signal)


def _first_bad(view: View, model: int, kind: Kind) -> int | None:
    """The first recorded step at which any site of a kind had a value that was no number."""
    columns = [site.index for site in view.sites(kind) if site.model == model]
    bad = (view.record.readings[:, columns, 6] > 0).any(1)
    return int(view.record.steps[bad][0]) if bad.any() else None


def _first_gradient(view: View, model: int, links: dict[str, dict[str, Any]], step: int) -> Found | None:
    """A norm that is given a finite gradient and hands on one that is not, under finite signals."""
    for call, link in links.items():
        facts = view.record.models[model]["modules"].get(view.module(model, call), {})
        given = view.series(model, call, "gradient")
        if given is None or step not in given.steps or _bad_at(given, step) or len(link["sources"]) != 1:
            continue
        if link["operations"] or not _normalizes(view, model, call, facts):
            continue
        if _bad_at(view.series(model, link["sources"][0], "gradient"), step):
            largest = _largest_input(view, model, link, step)
            if largest is not None and _has_numbers(view, model, call, facts, step):
                return Found(_nonfinite(view, model, call, facts, largest, step, link["sources"][0]), step)
    return None


def _bad_at(series: Series | None, step: int) -> bool:
    if series is None:
        return False
    at = np.flatnonzero(series.steps == step)
    return bool(len(at)) and bool(series.nonfinite[at[0]] > 0)


def _normalizes(view: View, model: int, call: str, facts: dict[str, Any]) -> bool:
    """Whether a module is a norm, by its class or by an eps of its own without a matrix of weights beside it."""
    if is_norm(facts.get("class", "")) or kind_of(facts):
        return True
    module, known = view.module(model, call), view.record.models[model]["parameters"]
    own = (known.get(f"{module}.{p}" if module else p, {}) for p in facts.get("parameters", []))
    return eps_of(facts) is not None and bool(facts.get("leaf")) and all(len(p.get("shape", ())) < 2 for p in own)


def _inputs(view: View, model: int, link: dict[str, Any]) -> list[Series | None]:
    """Readings of what a call takes its input from: modules, or what the model was fed with."""
    if link["sources"]:
        return [view.series(model, source, "output") for source in link["sources"]]
    return [view.record.series(site) for site in view.sites("input") if site.model == model]


def _largest_input(view: View, model: int, link: dict[str, Any], step: int) -> float | None:
    """Largest magnitude that can have come in; None where that need not have been a number."""
    found, largest = _inputs(view, model, link), 0.0
    if not found or not set(link["operations"]) <= SAFE:
        return None
    for series in found:
        if series is None or step not in series.steps or _bad_at(series, step):
            return None
        largest += float(series.abs_max[series.steps == step][0])
    limit = LARGEST if {"Add", "Sub"} & set(link["operations"]) else OVERFLOW
    return largest if largest <= limit else None


def _has_numbers(view: View, model: int, call: str, facts: dict[str, Any], step: int) -> bool:
    """Whether the norm's own parameters are finite."""
    module = view.module(model, call)
    own = [view.series(model, f"{module}.{p}" if module else p, "parameter") for p in facts.get("parameters", [])]
    return not any(series is not None and _bad_at(series, step) for series in own)


def _nonfinite(
    view: View, model: int, call: str, facts: dict[str, Any], largest: float, step: int, source: str | None = None
) -> Finding:
    """The finding; with `source`, the module in front at which the gradient is no number, while every signal is one."""
    place, eps = view.name(model, call), eps_of(facts)
    series = view.series(model, call, "output") if source is None else view.series(model, source, "gradient")
    bad = 0.0 if series is None else float(series.nonfinite[series.steps == step][0])
    what = (
        say("values of its output that are no number")
        if source is None
        else say("values of its gradient that are no number")
    )
    evidence = [
        Evidence(what, bad, 0.0, None, "", step),
        Evidence(say("largest magnitude of its input"), largest, ROOT, None, "", step),
    ]
    if eps is not None:
        evidence.append(Evidence(say("eps, as half precision holds it"), float(np.float16(eps)), eps, SMALLEST))
    overflows = largest >= ROOT
    vanishes = eps is not None and float(np.float16(eps)) == 0
    why = (
        say("its eps is zero, so that values that are all alike are divided by zero")
        if eps == 0
        else say(
            "its eps of {eps:g} is zero in half precision, so that values that are all alike are divided by zero",
            eps=eps,
        )
        if vanishes
        else say("squares of values up to {largest:.3g} do not fit into half precision", largest=largest)
        if overflows
        else say("the root of a variance of zero has no derivative: eps has to stand under the root")
        if source is not None
        else say("what it divides by was zero, or did not fit")
    )
    summary = (
        say(
            "{place} ({cls}) makes {bad:.0f} NaN or infinite values of finite input at step {step}: {why}.",
            place=place,
            cls=facts["class"],
            bad=bad,
            step=step,
            why=why,
        )
        if source is None
        else say(
            "{place} ({cls}) makes {bad:.0f} NaN or infinite gradients of finite ones at step {step}: {why}.",
            place=place,
            cls=facts["class"],
            bad=bad,
            step=step,
            why=why,
        )
    )
    broken = view.progress.nonfinite is not None or not view.learned
    return Finding(
        code="norm-precision",
        severity="error" if broken else "warning",
        where=(place,),
        summary=summary,
        evidence=tuple(evidence),
        repairs=_in_single() if overflows and not vanishes else (*_larger_eps(), *_in_single()),
        reference="https://github.com/pytorch/pytorch/issues/41527; https://github.com/deepspeedai/DeepSpeed/issues/581",
        location=view.place("forward"),
    )


def _larger_eps() -> tuple[Repair, ...]:
    return (
        Repair(
            say("Give the norm an eps that half precision can hold, and put it under the root"),
            "y = x / (variance + 1e-3).sqrt()",
        ),
    )


def _in_single() -> tuple[Repair, ...]:
    return (
        Repair(
            say("Compute mean and variance in single precision, and turn the result back"),
            "y = F.layer_norm(x.float(), x.shape[-1:], eps=1e-5).to(x.dtype)",
        ),
    )


# Eps against variance -------------------------------------------------------------------------------------------------


def _outweighed(view: View, model: int, call: str, links: dict[str, dict[str, Any]]) -> Found | None:
    """A norm that gives far less than its gain, and whose input explains it: small beside eps, or too large for half precision."""
    facts = view.record.models[model]["modules"].get(view.module(model, call), {})
    values = values_per_statistic(facts, shape_of(links[call]))
    if not _normalizes(view, model, call, facts) or (values is not None and values < 2):
        return None
    if any((norm.model, norm.name) == (model, call) and not norm.normalizes_by_batch for norm in view.batch_norms):
        return None  # it divides by what it has kept, not by what it is given
    share, steps = _share(view, model, call)
    given = _looked_at(view, model, call, steps) or _given(view, model, links[call], steps)
    if given is None or not share < WEAK:
        return None
    moment, largest = given
    eps = eps_of(facts)
    output = view.series(model, call, "output")
    zeros = 0.0 if output is None else float(output.rows[0, COLUMNS.index("zeros")] / max(output.count[0], 1.0))
    overflows = largest >= ROOT and zeros > 1 - WEAK  # dividing by infinity leaves exact zeros; a bias starts at zero
    bound = moment / (moment + eps) if eps else 1.0  # the variance within a group is at most the second moment
    if moment == 0 or not (bound < WEAK or (overflows and _in_half(facts))):
        return None
    return Found(_small(view, model, call, facts, share, None if bound >= WEAK else bound, moment, largest))


def _together(found: list[Found]) -> Found:
    """One finding for all such norms of a model: the worst as the example, in the order of the forward pass as places."""
    worst = min((f.finding for f in found), key=lambda finding: float(finding.evidence[0].measured))
    return Found(replace(worst, where=tuple(dict.fromkeys(f.finding.where[0] for f in found))))


def _share(view: View, model: int, call: str) -> tuple[float, np.ndarray]:
    """Median of a norm's mean square, without its bias, over that of its gain, and the steps looked at."""
    output, gain = view.series(model, call, "output"), gain_squared(view, model, call)
    if output is None:
        return math.nan, np.zeros(0)
    enough = 1 if view.before_training else ENOUGH
    late = (output.steps >= (0 if view.before_training else SETTLED)) & (output.count > 0)
    if late.sum() < enough:
        return math.nan, np.zeros(0)
    module = view.module(model, call)
    bias = view.series(model, f"{module}.bias" if module else "bias", "parameter")
    moments = output.second_moment - (_at(bias, output.steps) if bias is not None else 0.0)
    scale = (
        1.0
        if gain is None
        else _at(view.series(model, f"{module}.weight" if module else "weight", "parameter"), output.steps)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.maximum(moments, 0.0) / scale
    shares = np.broadcast_to(shares, output.steps.shape)[late]
    return float(np.median(shares)), output.steps[late]


def _at(series: Series | None, steps: np.ndarray) -> np.ndarray:
    """Second moment of a parameter at these steps, NaN where it was not seen."""
    if series is None:
        return np.full(len(steps), np.nan)
    by_step = dict(zip(series.steps.tolist(), series.second_moment.tolist(), strict=True))
    return np.array([by_step.get(int(step), math.nan) for step in steps])


def _looked_at(view: View, model: int, call: str, steps: np.ndarray) -> tuple[float, float] | None:
    """Median second moment and largest magnitude of a norm's own input, where that was looked at."""
    looks = [
        links.get(f"{model}:{call}", {}).get("given") for step, links in view.record.details["links"] if step in steps
    ]
    seen = [look for look in looks if look]
    if not seen:
        return None
    return float(np.median([look["moment"] for look in seen])), float(np.median([look["largest"] for look in seen]))


def _given(view: View, model: int, link: dict[str, Any], steps: np.ndarray) -> tuple[float, float] | None:
    """Median second moment and largest magnitude of a norm's input; None where other operations lie between."""
    if not set(link["operations"]) <= {"Relu"}:
        return None
    found = _inputs(view, model, link)
    if len(found) != 1 or found[0] is None:
        return None
    series = found[0]
    seen = np.isin(series.steps, steps) & (series.count > 0)
    if not seen.any():
        return None
    return float(np.median(series.second_moment[seen])), float(np.median(series.abs_max[seen]))


def _in_half(facts: dict[str, Any]) -> bool:
    """Whether a norm may compute in half precision: one written by hand. Those of torch compute in single precision inside."""
    return not facts.get("library")


def _small(
    view: View,
    model: int,
    call: str,
    facts: dict[str, Any],
    share: float,
    bound: float | None,
    moment: float,
    largest: float,
) -> Finding:
    place, eps = view.name(model, call), eps_of(facts)
    if bound is not None:
        summary = say(
            "The eps of {place} ({cls}), {eps:g}, outweighs the variance that it is to guard, {moment:.2g} at most: the output has {share:.2g} of "
            "the mean square that its gain asks for.",
            place=place,
            cls=facts["class"],
            eps=eps,
            moment=moment,
            share=share,
        )
        evidence = [
            Evidence(say("mean square of the output over that of the gain"), share, 1.0),
            Evidence(say("the same, as eps and the input let expect at most: q / (q + eps)"), share, bound),
            Evidence(say("mean square of the input"), moment, eps),
        ]
        repairs: tuple[Repair, ...] = (
            Repair(
                say("Take an eps far below the variance: a hundredth of it or less"),
                f"norm.eps = {10.0 ** math.floor(math.log10(moment / 100)):g}",
            ),
            Repair(say("Or bring the input of the norm to a scale near one")),
        )
    else:
        summary = say(
            "{place} ({cls}) gives {share:.2g} of the mean square that its gain asks for: squares of its input, up to {largest:.3g}, do not fit "
            "into half precision, and dividing by infinity gives zero.",
            place=place,
            cls=facts["class"],
            share=share,
            largest=largest,
        )
        evidence = [
            Evidence(say("mean square of the output over that of the gain"), share, 1.0),
            Evidence(say("largest magnitude of its input"), largest, ROOT),
        ]
        repairs = _in_single()
    return Finding(
        code="norm-precision",
        severity=_severity(view, share),
        where=(place,),
        summary=summary,
        evidence=tuple(evidence),
        repairs=repairs,
        location=view.place("forward"),
    )


def _severity(view: View, share: float) -> Severity:
    """A weak signal slows a run down: it is an error where the run stands still, none where it learns, and blows up nothing."""
    if view.learned:
        return "note"
    blown = view.progress.nonfinite is not None or view.progress.rose
    return "error" if share < NOTHING and not blown and not view.before_training else "warning"


# Running statistics ---------------------------------------------------------------------------------------------------


def _short_statistics(view: View, model: int, name: str, facts: dict[str, Any]) -> Iterator[Found]:
    """Running statistics in a short format: an update of `momentum` times the difference is lost below half a unit in the last place."""
    attributes = facts.get("attributes", {})
    momentum = attributes.get("momentum")
    if kind_of(facts) not in ("batch", "instance") or not attributes.get("track_running_stats") or not momentum:
        return
    weight = view.record.models[model]["parameters"].get(f"{name}.weight" if name else "weight", {})
    bits = BITS.get(weight.get("dtype", ""))
    if bits is None or view.series(model, name, "output") is None:
        return
    lost = 2.0**-bits / float(momentum)
    yield Found(
        Finding(
            code="norm-precision",
            severity="warning" if lost > STUCK else "note",
            where=(view.name(model, name),),
            summary=say(
                "{place} ({cls}) keeps its running statistics in {dtype}: with a momentum of {momentum:g} they stop {lost:.2g} of their size short "
                "of what they are to follow.",
                place=view.name(model, name),
                cls=facts["class"],
                dtype=weight["dtype"],
                momentum=momentum,
                lost=lost,
            ),
            evidence=(Evidence(say("relative error at which updates are lost"), lost, 0.0, STUCK),),
            repairs=(
                Repair(
                    say("Keep the norms in single precision where the rest of the model is in half precision"),
                    "for m in model.modules():\n    if isinstance(m, nn.modules.batchnorm._BatchNorm):\n        m.float()",
                ),
            ),
            location=view.place("forward"),
        )
    )
