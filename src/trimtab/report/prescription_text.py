"""A prescription as text of 80 columns: what is wrong, what to change and how sure that is; then all that was tried."""

import textwrap
from collections.abc import Iterator, Sequence

from trimtab._messages import say
from trimtab.report.diagnosis import Diagnosis
from trimtab.report.finding import Finding, Repair
from trimtab.report.pages import title
from trimtab.report.prescription import Prescription, Trial
from trimtab.report.words import clean, number, shortened

WIDTH = 80
LABEL = 10
RAISED = 0.01
"""Share by which a gain must fall short of the difference of the means that are shown, for a reader to wonder."""

MOST = 12
"""Rows of the table of trials."""


def render_prescription(prescription: Prescription) -> str:
    """The prescription as text.

    Args:
        prescription: What to render.

    Returns:
        Lines of at most 80 columns but for code, ending in one line end.
    """
    lines = [_head(prescription), ""]
    roots = [f for f in prescription.diagnosis.roots if f.severity != "note"]
    for root in roots:
        lines += _labelled(say("Wrong"), f"{title(root.code) or root.code}{_place(root)} ({root.code})")
        lines += [*_labelled("", root.summary), ""]
    if prescription.best is not None:
        lines += _prescribed(prescription.best, prescription.measure)
    elif roots:
        lines += _advice(prescription.diagnosis, prescription.trials)
    elif prescription.broke:
        lines += [say("The run breaks down, but nothing was found that could be repaired."), ""]
    else:
        lines += [say("Nothing found that would keep this network from training: nothing to repair."), ""]
    lines += _table(prescription)
    if not prescription.finished:
        text = say("the budget ended before all was decided: with more runs (budget), more seeds may prove it")
        lines += [*_labelled(say("Note"), text), ""]
    for note in prescription.notes:
        lines += [*_labelled(say("Note"), note), ""]
    lines += _cost(prescription)
    return "\n".join(lines).rstrip("\n") + "\n"


def _head(prescription: Prescription) -> str:
    right = say("repair proved") if prescription.best is not None else say("no repair proved")
    if prescription.diagnosis.healthy:
        right = say("nothing found")
    left = f"trimtab repair {shortened(clean(prescription.diagnosis.run.name), 40)}".rstrip() + " "
    return f"{left}{'─' * max(WIDTH - len(left) - len(right) - 1, 3)} {right}"


def _labelled(label: str, text: str) -> list[str]:
    lines = textwrap.wrap(clean(text), WIDTH - LABEL, break_long_words=False) or [""]
    return [f"{head:<{LABEL}}{line}".rstrip() for head, line in zip([label, *[""] * len(lines)], lines, strict=False)]


def _place(finding: Finding) -> str:
    return f" {say('at')} {shortened(', '.join(finding.where), 40)}" if finding.where else ""


def _prescribed(best: Trial, measure: str) -> Iterator[str]:
    yield from _labelled(say("Change"), best.repair.summary)
    yield from _code(best.repair)
    what = say("score") if measure == "evaluate" else say("minus the area under the loss")
    yield from _labelled(
        say("How sure"),
        say(
            "{what}: {score} with it, {baseline} without it, {chance} with a random change of its family (mean of {n} seeds).",
            what=what,
            score=_short(best.score),
            baseline=_short(best.baseline),
            chance=_short(best.random),
            n=best.seeds,
        ),
    )
    yield from _gains(best)
    if best.why:
        yield from _labelled("", say("Some of its runs broke: {why}.", why=best.why))
    yield ""


def _gains(trial: Trial) -> Iterator[str]:
    if trial.interval is not None and trial.interval_random is not None:
        yield from _labelled(
            "",
            say(
                "Gain over doing nothing {a} to {b}, over a random change {c} to {d} ({level:.1%} intervals over paired seeds, 95% for all looks together).",
                a=_short(trial.interval[0]),
                b=_short(trial.interval[1]),
                c=_short(trial.interval_random[0]),
                d=_short(trial.interval_random[1]),
                level=trial.level,
            ),
        )
        if _raised(trial.score, trial.baseline, trial.interval) or _raised(
            trial.score, trial.random, trial.interval_random
        ):
            yield from _labelled(
                "",
                say(
                    "In the gains, a control that ends worse than the untrained net, or than doing nothing, counts as that."
                ),
            )


def _raised(score: float | None, control: float | None, interval: tuple[float, float]) -> bool:
    """Whether the gain is smaller than the difference of the means that are shown: then controls have been raised."""
    if score is None or control is None:
        return False
    return sum(interval) / 2 < (score - control) * (1 - RAISED)


def _code(repair: Repair) -> Iterator[str]:
    if repair.code:
        yield ""
        yield from (f"{'':{LABEL + 4}}{line}".rstrip() for line in clean(repair.code, lines=True).splitlines())
    yield ""


def _advice(diagnosis: Diagnosis, trials: Sequence[Trial]) -> Iterator[str]:
    """Where nothing is proved: what the findings advise, which only the user can do."""
    yield from _labelled(
        say("Proved"),
        say("nothing of what was tried is better than doing nothing and than a random change, beyond doubt")
        if trials
        else say("nothing: there is no change that could be made to a setup from outside"),
    )
    if trials and trials[0].interval is not None:
        yield from _labelled("", say("Nearest to it: {change}.", change=trials[0].repair.summary))
        yield from _gains(trials[0])
    yield ""
    for root in diagnosis.roots:
        for repair in root.repairs[:1] if root.severity != "note" else ():
            yield from _labelled(say("Advice"), repair.summary)
            if root.location is not None:
                yield from _labelled("", say("Look at {file}:{line}", file=root.location.file, line=root.location.line))
            yield from _code(repair)


def _table(prescription: Prescription) -> Iterator[str]:
    if not prescription.trials:
        return
    name = say("Tried")
    yield f"── {name} {'─' * (WIDTH - len(name) - 4)}"
    yield f"{'':8}{say('score'):>9} {say('without'):>9} {say('random'):>9} {say('seeds'):>5}  {say('change')}"
    behind = [t for t in prescription.trials if t.share < 1 and not t.why]
    shown = [t for t in prescription.trials if t not in behind]
    for trial in shown[:MOST]:
        mark = say("proved") if trial.proved else ""
        seeds = trial.seeds if trial.interval is not None else 1
        left = f"{mark:8}{_short(trial.score):>9} {_short(trial.baseline):>9} {_short(trial.random):>9} {seeds:>5}  "
        told = clean(trial.repair.summary) + (f" [{clean(trial.why)}]" if trial.why else "")
        rows = textwrap.wrap(told, WIDTH - len(left)) or [""]
        yield f"{left}{rows[0]}".rstrip()
        yield from (f"{'':{len(left)}}{row}" for row in rows[1:])
    if len(shown) > MOST:
        yield say("and {n} more", n=len(shown) - MOST)
    if behind:
        yield ""
        yield from textwrap.wrap(say("Behind the others after {share:.0%} of the steps:", share=behind[0].share), WIDTH)
        for trial in behind[:MOST]:
            rows = textwrap.wrap(clean(trial.repair.summary), WIDTH - 4)
            yield from (f"{head}{row}" for head, row in zip(["  - ", *["    "] * len(rows)], rows, strict=False))
    yield ""


def _cost(prescription: Prescription) -> Iterator[str]:
    runs = prescription.steps / prescription.run_steps if prescription.run_steps else 0.0
    yield from _labelled(
        say("Cost"),
        say(
            "{steps} training steps, as many as {runs} of {run} steps",
            steps=f"{prescription.steps:,}",
            runs=say("1 run") if runs == 1 else say("{count:.3g} runs", count=runs),
            run=f"{prescription.run_steps:,}",
        ),
    )


def _short(value: float | None) -> str:
    return "" if value is None else number(value)
