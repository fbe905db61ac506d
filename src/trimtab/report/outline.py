"""What a report tells and in which order, whatever it is written in."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from trimtab._messages import say
from trimtab.report.diagnosis import Diagnosis, RunFacts
from trimtab.report.finding import Finding
from trimtab.report.words import number, places, share

SEVERITY_NAMES = {"error": lambda: say("error"), "warning": lambda: say("warning"), "note": lambda: say("note")}
"""Names of the severities, each made when it is asked for: then the language is known."""


def fold(diagnosis: Diagnosis) -> tuple[list[tuple[Finding, list[Finding]]], list[Finding]]:
    """The findings as they are told: main findings, each with all that follows from it, and lone notes.

    A finding whose causes are not in the diagnosis (ignored ones, say) stands for itself; none is told twice or lost.

    Args:
        diagnosis: The findings.

    Returns:
        Main findings with their symptoms, direct and indirect, and the notes that belong to none.
    """
    findings = diagnosis.findings
    present = {f.code for f in findings}
    told: set[int] = set()
    groups: list[tuple[Finding, list[Finding]]] = []
    first = [i for i, f in enumerate(findings) if not present.intersection(f.causes)]
    for i in (*first, *range(len(findings))):
        if i in told:
            continue
        told.add(i)
        following: list[Finding] = []
        heads = [findings[i].code]
        for head in heads:  # grows while it is read: symptoms of symptoms belong here too
            for k, finding in enumerate(findings):
                if head in finding.causes and k not in told:
                    told.add(k)
                    following.append(finding)
                    heads.append(finding.code)
        groups.append((findings[i], following))
    grave, light = [], []
    for main, following in groups:
        if all(f.severity == "note" for f in (main, *following)):
            light += [main, *following]
        else:
            grave.append((main, following))
    return grave, light


def count(n: int, what: str) -> str:
    """Return so many of something: "1 error", "3 errors"."""
    words = {
        "error": ("{n} error", "{n} errors"),
        "warning": ("{n} warning", "{n} warnings"),
        "note": ("{n} note", "{n} notes"),
        "step": ("{n} step", "{n} steps"),
        "root": ("{n} root cause", "{n} root causes"),
        "consequence": ("{n} consequence", "{n} consequences"),
    }[what]
    return say(words[n != 1], n=f"{n:,}")


def place(where: Sequence[str]) -> str:
    """Return where a finding is, as a phrase: "at body.3", "in the data"."""
    phrases = {
        "data": say("in the data"),
        "loss": say("in the loss"),
        "optimizer": say("in the optimizer"),
        "loop": say("in the training loop"),
    }
    if not where:
        return ""
    if all(name in phrases for name in where):
        return ", ".join(phrases[name] for name in where)
    return say("at {places}", places=places(where))


def confidence(finding: Finding) -> str:
    """Return how sure a root is, in brackets; "" where that is not known."""
    if finding.confidence is None:
        return ""
    return say("(confidence {share})", share=f"{finding.confidence:.1f}")


def facts(run: RunFacts) -> Iterator[tuple[str, Sequence[str]]]:
    """What a reader wants to know of the run, in rows.

    Args:
        run: The run.

    Yields:
        A label, and one line or more.
    """
    if run.steps == 0:
        yield say("Steps"), [say("no training step was seen")]
    else:
        seen = say("{steps}, {n} recorded in full", steps=count(run.steps, "step"), n=f"{run.recorded:,}")
        yield say("Steps"), [seen if run.finished else say("{seen}, not ended", seen=seen)]
    if run.first_loss is None and run.last_loss is None:
        yield say("Loss"), [say("no loss was seen")]
    elif run.last_loss is None and run.steps == 1:
        yield say("Loss"), [number(run.first_loss or 0.0)]
    else:
        first, last = (say("unknown") if x is None else number(x) for x in (run.first_loss, run.last_loss))
        yield say("Loss"), [say("{first} → {last} (first step, mean of the last ones)", first=first, last=last)]
    if run.models:
        yield say("Model"), run.models
    if run.optimizers:
        yield say("Optimizer"), run.optimizers
    yield say("Record"), [run.record or say("kept in memory only"), *run.history]
    if run.watching is not None:
        yield say("Cost"), [say("watching took {share} of the run's time", share=share(run.watching))]
    if run.unseen:
        yield say("Not seen"), run.unseen


def from_here(file: str) -> str:
    """The file as seen from the working directory, where it lies under it."""
    with contextlib.suppress(ValueError, OSError):
        return str(Path(file).relative_to(Path.cwd()))
    return file
