"""`playbook`: how the Deep Learning Tuning Playbook tells why an optimization fails, on copies."""

import math
from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab._setup import Setup
from trimtab.diagnosis import probes
from trimtab.diagnosis.probes.calls import Declined
from trimtab.diagnosis.probes.trials import Trial, trial
from trimtab.diagnosis.procedures import Plan, Progress, follow
from trimtab.report.procedure import Procedure, ProcedureStep

REFERENCE = (
    "Godbole et al. 2023, Deep Learning Tuning Playbook: how can optimization failures be debugged and mitigated?"
)

STEPS = 60
"""Steps of each trial, at most those of the setup."""

FACTORS = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0, 16.0, 64.0)
"""Rates that are tried, over the setup's own; then half and twice the best."""

FINER = 3
"""How often half and twice the best rate are tried, as long as one of them is better."""

FAR = 8.0
"""Rate over the best one, or the other way round, from which on it is far from it: further than the noise of a short run moves it."""

HARDLY = 0.05
"""Share of its first loss that a trial at the setup's own rate must take off for a higher one to be a mere proposal."""

OUTLIER = 10.0
"""Norm of the gradient over its median that stands out."""

PERCENTILE = 90
"""Percentile of the norms at which the playbook clips."""

SPIKE = 1.5
"""Loss over the lowest of those before it that counts as instability, beside the first loss."""

EARLY = 0.1
"""Share of a run that counts as its beginning: the playbook looks at warm-up there, and at clipping later."""


def playbook(setup: Setup, *, progress: Progress | None = None) -> Procedure:
    """Find the best rate, look at what happens just above it, at the gradient's norm, and at a run at twice the best rate.

    Args:
        setup: The run; it is not trained, and everything is as it was afterwards.
        progress: Called with the name of a step, and how much of it is done of how much.

    Returns:
        The steps with their verdicts; printing it gives a list.

    Raises:
        SetupError: Its batches cannot be used.
    """
    return follow(PLAYBOOK, setup, progress)


def _steps(setup: Setup, progress: Progress | None) -> Iterator[ProcedureStep]:
    steps = min(setup.steps, STEPS)
    drawn = probes.drawn(setup, steps)
    rate = max((group["lr"] for o in setup.optimizers for group in o.param_groups), default=math.nan)
    found: dict[float, Trial] = {}

    def run(name: str, factor: float, at: int, of: int) -> Trial:
        if factor not in found:
            told = None if progress is None else (lambda done, _: progress(name, at * steps + done, of * steps))
            found[factor] = trial(setup, drawn, steps, factor=factor, told=told)
        return found[factor]

    try:
        name = say("best learning rate lr*")
        for i, factor in enumerate(FACTORS):
            run(name, factor, i, len(FACTORS) + 2)
        best = min(found, key=lambda f: found[f].end)
        for tried in range(len(FACTORS), len(FACTORS) + FINER):
            for factor in (best / 2, best * 2):
                run(name, factor, tried, len(FACTORS) + FINER)
            if best == (best := min(found, key=lambda f: found[f].end)):
                break
        yield _best(name, rate, best, found)
        if math.isinf(found[best].end):
            return
        yield _above(say("loss just above lr*"), rate, [(f, run("", f, 0, 1)) for f in (best, 2 * best, 4 * best)])
        yield _norms(say("norm of the full gradient"), found[best])
        yield _instability(say("a run at 2 lr*, every step"), run("", 2 * best, 0, 1))
    except Declined as reason:
        yield ProcedureStep(
            say("trials on copies"), "open", "", "", say("Could not be done: {reason}.", reason=str(reason))
        )


def _best(name: str, rate: float, best: float, found: dict[float, Trial]) -> ProcedureStep:
    if math.isinf(found[best].end):
        return ProcedureStep(
            name, "bad", say("the loss blows up at every rate from {least:.2g} on", least=rate * min(found)), "",
            say("It is not the rate: look for the cause with `trimtab check`."),
        )  # fmt: skip
    measured = say(
        "lr* = {best:.2g} (loss {loss:.3g} after {n} steps)",
        best=rate * best,
        loss=found[best].end,
        n=len(found[best].losses),
    )
    expected = say("the setup's {rate:.2g} (loss {loss:.3g})", rate=rate, loss=found[1.0].end)
    if 1 / FAR < best < FAR:
        return ProcedureStep(name, "good", measured, expected, "")
    own = found[1.0]
    if best >= FAR and own.end < (1 - HARDLY) * own.losses[0]:
        return ProcedureStep(
            name, "open", measured, expected, say("A higher rate gets further within so few steps: try one.")
        )
    if best >= FAR:
        return ProcedureStep(
            name, "bad", measured, expected, say("The rate is too low for a run of this length: raise it.")
        )
    return ProcedureStep(name, "bad", measured, expected, say("The rate is too high: lower it, or warm it up."))


def _above(name: str, rate: float, runs: list[tuple[float, Trial]]) -> ProcedureStep:
    measured = ", ".join(f"{rate * f:.2g}: " + (say("blows up") if t.broke else f"{t.end:.3g}") for f, t in runs)
    unstable = [rate * f for f, t in runs[1:] if t.broke or _spike(t) is not None]
    if not unstable:
        return ProcedureStep(
            name, "good", measured, "", say("The loss stays calm above the best rate: stability is not what limits it.")
        )
    return ProcedureStep(
        name, "open", measured, "",
        say(
            "From {rate:.2g} on the loss is unstable, which sets the best rate: what makes training more stable (warm-up, clipping, a norm) "
            "may let the rate rise and the run end lower.",
            rate=unstable[0],
        ),
    )  # fmt: skip


def _norms(name: str, best: Trial) -> ProcedureStep:
    median = float(np.median(best.norms))
    if median == 0:
        return ProcedureStep(
            name, "bad", "0", say("more than 0"), say("No gradient arrives: look for the cause with `trimtab check`.")
        )
    largest, many = float(best.norms.max()) / median, int((best.norms > OUTLIER * median).sum())
    measured = say("median {median:.2g}, largest {largest:.3g} times that", median=median, largest=largest)
    expected = say("no more than {n:g} times", n=OUTLIER)
    if not many:
        return ProcedureStep(name, "good", measured, expected, "")
    bound = float(np.percentile(best.norms, PERCENTILE))
    advice = say(
        "{many} of {n} steps stand out, the largest at step {at}: clip the gradient at its 90th percentile, {bound:.2g}.",
        many=many, n=len(best.norms), at=int(best.norms.argmax()), bound=bound,
    )  # fmt: skip
    return ProcedureStep(name, "bad", measured, expected, advice)


def _instability(name: str, twice: Trial) -> ProcedureStep:
    at = _spike(twice)
    if at is None and twice.broke:
        at = len(twice.losses) - 1
    if at is None:
        return ProcedureStep(name, "good", say("loss {loss:.3g}, no spike", loss=twice.end), "", "")
    measured = say("unstable from step {at} of {n}", at=at, n=len(twice.losses))
    if at <= max(EARLY * len(twice.losses), 1):
        return ProcedureStep(
            name, "open", measured, "", say("Early instability: warm the learning rate up over the first steps.")
        )
    return ProcedureStep(name, "open", measured, "", say("Instability in mid-run: clip the gradient."))


def _spike(run: Trial) -> int | None:
    """The step at which a loss first stands well above both its start and the lowest before it."""
    losses = run.losses
    if len(losses) < 2:
        return None
    lowest = np.minimum.accumulate(losses)[:-1]
    bound = np.maximum(lowest + (SPIKE - 1) * np.abs(lowest), losses[0] + 0.2 * abs(losses[0]))
    over = np.flatnonzero(~(losses[1:] <= bound))
    return int(over[0]) + 1 if len(over) else None


PLAYBOOK = Plan("playbook", REFERENCE, _steps)
