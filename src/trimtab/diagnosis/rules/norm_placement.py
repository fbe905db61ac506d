"""`norm-placement`: a norm at a place where it does harm: right before a regression loss, or behind each sum of a deep residual net."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import CLASSES, IDLE, OPERATIONS, is_norm, links_of
from trimtab.diagnosis.norms import ends_of, kind_of, shape_of, values_per_statistic
from trimtab.diagnosis.rules.learning_rate_too_high import early_jump
from trimtab.diagnosis.rules.learning_rate_too_low import GAINED, LONG
from trimtab.diagnosis.rules.signal_collapse import ALIVE, SETTLED
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity

REGRESSION = ("MseLoss", "SmoothL1Loss", "HuberLoss")
"""Losses that compare the outputs with numbers, by autograd's name."""

BY_HAND = (("Mean", "Sum"), ("Pow", "Abs", "Mul"), ("Sub", "Rsub"))
"""The same where they are written by hand: a mean of squares or magnitudes of differences."""

SCALES = {"Mul", "Div", "Mean", "Sum"}
"""Operations that weight a loss."""

FLOOR = 0.05
"""Share of the targets' variance that stays in the loss whatever is learnt, from which it costs something: that of batches of 30."""

HIGH = 0.25
"""The same, from which the run is broken: that of batches of 6."""

FEW = 8
"""Values per statistic from which a norm of logits still lets a run learn: below, most of what it gives is the batch's own noise."""

DEEP = 12
"""Norms behind residual sums in a row: those of the six layers for which Xiong et al. 2020 (section 4) found warm-up to be needed."""

WARM = 0.5
"""First learning rate over the largest: below this the run has a warm-up."""


COLLAPSED = 1e-3
"""Squared gradient at the first of these norms over that at the last, against the same at the start, below which training has closed
the stack. Stacks that train stay at one or above (measured: 2 to 70 after 60 to 150 steps of 3 to 18 layers; closed ones 1e-10)."""

LIVELY = 1e-3
"""Median relative update over the first steps of a rate that trains: a run with such steps that learns nothing is not merely slow."""

REASON = 0.1
"""The same up to which the place and not the rate is to blame: a hundred times a rate that trains."""


def find(view: View) -> Iterator[Found]:
    """A norm with nothing to learn between it and the loss, and chains of norms behind residual sums in runs that do not learn."""
    for model in view.active:
        links = links_of(view.record, model)
        last = _last_norm(view, model, links)
        if last is not None:
            yield from _before_the_loss(view, model, last, links[last])
        chain = post_norms(view, model, links)
        if len(chain) >= DEEP and _suffers(view, model, chain):
            yield Found(_deep(view, model, chain))


# Right before the loss ------------------------------------------------------------------------------------------------


def _last_norm(view: View, model: int, links: dict[str, dict[str, Any]]) -> str | None:
    """The norm that the loss is made of, if nothing lies between them but functions of single elements."""
    ends = ends_of(view, model)
    if len(ends) != 1 or len(view.loss.get("sources", [])) != 1:
        return None
    call = ends[0]
    for _ in range(4):
        if call not in links:
            return None
        cls, link = view.class_of(model, call), links[call]
        if is_norm(cls):
            return call
        plain = (
            cls in CLASSES or cls in IDLE or not view.record.models[model]["modules"][view.module(model, call)]["leaf"]
        )
        elementwise = set(link["operations"]) <= set(OPERATIONS)
        if not plain or cls == "PReLU" or not elementwise or len(link["sources"]) != 1:
            return None
        call = link["sources"][0]
    return None


def _before_the_loss(view: View, model: int, call: str, link: dict[str, Any]) -> Iterator[Found]:
    facts = view.record.models[model]["modules"][view.module(model, call)]
    kind, values = kind_of(facts), values_per_statistic(facts, shape_of(link))
    if values is None or values < 2:
        return
    if kind == "batch" and facts.get("training", True):
        if _is_regression(view):
            floor, measured = _floor(view, link, values)
            yield Found(_batches_alike(view, model, call, values, floor, measured))
        elif _is_classification(view) and values < FEW and _fails(view):
            yield Found(_batches_alike(view, model, call, values, _expected_floor(values), False))
    elif kind in ("layer", "instance", "group") and _is_regression(view) and _fails(view):
        yield Found(_samples_alike(view, model, call, values))


def _is_regression(view: View) -> bool:
    """Whether the loss compares single outputs, or elementwise functions of them, with targets."""
    operations, kind = view.loss.get("operations", []), view.loss.get("kind")
    if kind in REGRESSION:
        place = operations.index(kind) if kind in operations else len(operations)
        return set(operations[:place]) <= SCALES and set(operations[place + 1 :]) <= set(OPERATIONS)
    while operations[:1] in (["Mul"], ["Div"]):  # a weight of the loss
        operations = operations[1:]
    by_hand = len(operations) >= 3 and all(name in allowed for name, allowed in zip(operations, BY_HAND, strict=False))
    return not kind and by_hand and set(operations[3:]) <= set(OPERATIONS)


def _is_classification(view: View) -> bool:
    return bool(view.classes) or str(view.loss.get("kind", "")).startswith("BinaryCrossEntropy")


def _fails(view: View) -> bool:
    """Whether the run has been trained and has not learned."""
    return not view.before_training and view.progress.steps > 0 and not view.learned


def _expected_floor(values: int) -> float:
    """Share of the targets' variance that batches of so many independent ones leave: 1/n by their means, half of it by their spreads."""
    return min(1.5 / values, 1.0)


def _floor(view: View, link: dict[str, Any], values: int) -> tuple[float, bool]:
    """Share of the targets' variance that stays, from the targets' own batches where the record has them; whether it has."""
    sites = list(view.sites("target"))
    shape = link.get("output") or []
    single = len(shape) < 2 or shape[1] == 1  # one statistic for all predictions of a batch
    if len(sites) != 1 or not single or view.before_training:
        return _expected_floor(values), False
    series = view.record.series(sites[0])
    sound = (series.nonfinite == 0) & (series.count > 1)
    if sound.sum() < 10:
        return _expected_floor(values), False
    means, spreads = series.mean[sound], series.std[sound]
    whole = float(np.mean(means**2 + spreads**2) - np.mean(means) ** 2)
    return (float(np.var(means) + np.var(spreads)) / whole, True) if whole > 0 else (0.0, True)


def _batches_alike(view: View, model: int, call: str, values: int, floor: float, measured: bool) -> Finding:
    place, cls = view.name(model, call), view.class_of(model, call)
    evidence = [
        Evidence(say("learnable layers between the norm and the loss"), 0.0, 1.0),
        Evidence(
            say("share of the targets' variance that no predictions of one mean and spread can explain"),
            floor,
            _expected_floor(values) if measured else 0.0,
            None,
        ),
    ]
    if math.isfinite(view.progress.last):
        evidence.append(Evidence(say("last loss"), view.progress.last, None))
    return Finding(
        code="norm-placement",
        severity=_severity(view, floor),
        where=(place,),
        summary=say(
            "{place} ({cls}) is the last thing before the loss: the predictions of every batch of {values} have the same mean and spread whatever "
            "its targets are, so that about {floor:.0%} of their variance stays in the loss.",
            place=place,
            cls=cls,
            values=values,
            floor=floor,
        ),
        evidence=tuple(evidence),
        repairs=(
            Repair(say("Make a plain linear layer the last one: leave {place} out", place=place), "nn.Identity()"),
            Repair(say("To scale targets, standardize them once with the statistics of the whole training set")),
        ),
        reference="https://github.com/Lab41/attalos/pull/89; Ioffe & Szegedy 2015, arXiv:1502.03167",
        location=view.place("forward"),
    )


def _severity(view: View, floor: float) -> Severity:
    if _is_classification(view):
        return "warning"
    if floor < FLOOR:
        return "note"
    return "warning" if floor < HIGH or view.before_training else "error"


def _samples_alike(view: View, model: int, call: str, values: int) -> Finding:
    place, cls = view.name(model, call), view.class_of(model, call)
    return Finding(
        code="norm-placement",
        severity="error",
        where=(place,),
        summary=say(
            "{place} ({cls}) is the last thing before the loss: the {values} predictions of every sample have the same mean and spread, whatever "
            "its targets are, and the run does not learn.",
            place=place,
            cls=cls,
            values=values,
        ),
        evidence=(
            Evidence(say("learnable layers between the norm and the loss"), 0.0, 1.0),
            Evidence(say("share of the first loss that is gone"), view.progress.gained, 1.0),
        ),
        repairs=(
            Repair(say("Make a plain linear layer the last one: leave {place} out", place=place), "nn.Identity()"),
        ),
        reference="Ba et al. 2016, arXiv:1607.06450",
        location=view.place("forward"),
    )


# Behind residual sums -------------------------------------------------------------------------------------------------


def post_norms(view: View, model: int, links: dict[str, dict[str, Any]] | None = None) -> list[str]:
    """The longest chain of norms each of which takes the sum of the norm before and of a branch.

    Args:
        view: The record.
        model: Index of the model.
        links: Where its calls' inputs come from; None to look it up.

    Returns:
        The calls in forward order.
    """
    length: dict[str, list[str]] = {}
    for call, link in (links_of(view.record, model) if links is None else links).items():
        if not is_norm(view.class_of(model, call)) or "Add" not in link["operations"] or len(link["sources"]) < 2:
            continue
        before = [source for source in link["sources"] if is_norm(view.class_of(model, source))]
        if before or not length:
            length[call] = [*max((length.get(source, []) for source in before), key=len, default=[]), call]
    return max(length.values(), key=len, default=[])


def _suffers(view: View, model: int, chain: list[str]) -> bool:
    """Whether a run without warm-up has closed the stack, or learns nothing at a rate that trains."""
    rates = view.record.rates[np.isfinite(view.record.rates)]
    early = early_jump(view)
    if not _fails(view) or not len(rates) or rates[0] < WARM * rates.max() or early > REASON:
        return False
    start, end = _gradient_ratios(view, model, chain)
    closed = start is not None and end is not None and end < COLLAPSED * start
    late = [u.signal for u in view.units(model, chain[-1]) if u.step >= SETTLED and u.signal == u.signal]
    alike = bool(late) and float(np.median(late)) < ALIVE
    idle = view.progress.steps >= LONG and view.progress.gained < GAINED and early > LIVELY
    return closed or alike or idle


def _deep(view: View, model: int, chain: list[str]) -> Finding:
    blocks = len(chain)
    rates = view.record.rates[np.isfinite(view.record.rates)]
    first, last = view.name(model, chain[0]), view.name(model, chain[-1])
    evidence = [
        Evidence(say("norms behind residual sums in a row"), float(blocks), 0.0),
        Evidence(
            say("gradient of the last branch over that of a net with norms inside its branches: sqrt(1 + L/2)"),
            math.sqrt(1 + blocks / 4),
            1.0,
            None,
            "x",
            0,
        ),
    ]
    start, end = _gradient_ratios(view, model, chain)
    if start is not None and end is not None:
        words = say("squared gradient at {first} over that at {last}", first=first, last=last)
        evidence.append(Evidence(words, start, 1.0, None, "x", 0))
        evidence.append(Evidence(words, end, 1.0, None, "x"))
    evidence.append(Evidence(say("first learning rate over the largest"), float(rates[0] / rates.max()), 0.0))
    return Finding(
        code="norm-placement",
        severity="error",
        where=tuple(view.name(model, call) for call in chain),
        summary=say(
            "{blocks} norms stand behind residual sums in a row, from {first} to {last}, and the run has no warm-up: there is no way past "
            "them, the gradients near the output do not fall with depth, and the first steps at the full rate spoil the stack.",
            blocks=blocks,
            first=first,
            last=last,
        ),
        evidence=tuple(evidence),
        repairs=(
            Repair(
                say("Put each norm inside its branch, in front of it, and one norm behind the whole stack (pre-norm)"),
                "x = x + branch(norm(x))   # nn.TransformerEncoderLayer(..., norm_first=True)",
            ),
            Repair(
                say("Or warm the rate up over some hundreds to thousands of steps"),
                "scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-3, 1.0, total_iters=1000)",
            ),
            Repair(say("Or weight the skips by alpha and draw the branches smaller by beta (DeepNorm)")),
        ),
        reference="Xiong et al. 2020, arXiv:2002.04745; Wang et al. 2022, arXiv:2203.00555",
        location=view.place("forward"),
    )


def _gradient_ratios(view: View, model: int, chain: list[str]) -> tuple[float | None, float | None]:
    """Squared gradient at the first norm over that at the last: at the start, and the median over the later half of the run."""
    first, last = (view.series(model, call, "gradient") for call in (chain[0], chain[-1]))
    if first is None or last is None:
        return None, None
    steps, i, j = np.intersect1d(first.steps, last.steps, return_indices=True)
    if not len(steps):
        return None, None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (first.norm[i] / last.norm[j]) ** 2
    late = ratios[steps >= steps[-1] / 2]
    start, end = float(ratios[0]), float(np.median(late))
    return (start if math.isfinite(start) else None), (end if math.isfinite(end) else None)
