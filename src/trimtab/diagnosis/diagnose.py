"""`trimtab.diagnose`: train a setup under watch, or read a record, and tell what is wrong."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trimtab._messages import say
from trimtab._setup import Setup
from trimtab.diagnosis import probes, ranks
from trimtab.diagnosis.causes import SYMPTOMS, explain, without_mere_symptoms
from trimtab.diagnosis.charting import charts_of
from trimtab.diagnosis.conditioning import modes
from trimtab.diagnosis.confidence import is_root, weighed
from trimtab.diagnosis.evaluation import losses_by_mode
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.history import history
from trimtab.diagnosis.kinship import strangers
from trimtab.diagnosis.rules import RULES
from trimtab.diagnosis.view import View
from trimtab.errors import UsageError
from trimtab.prediction.riding import Ride
from trimtab.recording import Record, Recorder, Schedule, Store
from trimtab.recording.unseen import BYPASSED, SCRIPTED, TRANSFORMED
from trimtab.report import Diagnosis, Finding, RunFacts, codes

RECORDED = 200
"""Steps of a setup that are recorded in full, evenly over the run after the first ten."""


def diagnose(
    run: Setup | Record | str | Path,
    *,
    ignore: Sequence[str] = (),
    store: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Name the root cause of a run that does not train.

    Args:
        run: A `Setup`, which is trained in place for its `steps` under watch; or a `Record`, or the path of one, which may
            still be written. Where a setup's model keeps running statistics, its loss is then computed on up to 8 of its
            batches in training and in evaluation mode, and the model put back. The probes of `diagnosis.probes` then run on it,
            and leave it as it was. Its weights and buffers are copied before training, so that two roots can be tried from its start.
        ignore: Findings to leave out, as codes ("dead-units") or codes at a place ("dead-units@body.2"). A place
            stands for what lies in it; a finding loses the places that are ignored, and goes when none is left.
        store: File for the record of a setup; None keeps it in memory.
        progress: Called with the steps done and all steps while a setup is trained.

    Returns:
        The diagnosis, root causes first.

    Raises:
        UsageError: `run` is something else, or `ignore` names a code that does not exist.
        RecordError: The record cannot be read.
        SetupError: The setup's batches cannot be used.
        StepError: A loss is not a scalar tensor.
    """
    check_ignored(ignore)
    if isinstance(run, (str, Path)):
        run = Record.open(run)
    if isinstance(run, Setup):
        run = _train(run, store, progress)
    if not isinstance(run, Record):
        raise UsageError(
            f"diagnose takes a Setup, a Record or the path of one, but it was given a {type(run).__name__}"
        )
    return diagnose_record(run, ignore)


def diagnose_record(record: Record, ignore: Sequence[str] = ()) -> Diagnosis:
    """Apply every rule to a record and order what they find.

    Args:
        record: The record.
        ignore: As for `diagnose`.

    Returns:
        The diagnosis.
    """
    view = View(record)
    found = _found(view) if record.step_count or len(record.steps) else []
    kept = (
        entry._replace(finding=left) for entry in found if (left := without_ignored(entry.finding, ignore)) is not None
    )
    removal = view.probe("removal")
    findings = _explained(list(kept), record, removal.get("decided"))
    return Diagnosis(weighed(findings, removal), facts_of(record, view), partial(charts_of, record))


def _explained(found: Sequence[Found], record: Record, first: str | None = None) -> tuple[Finding, ...]:
    return without_mere_symptoms(explain(found, strangers(record), first))


def check_ignored(ignore: Sequence[str]) -> None:
    """Refuse what names no code.

    Args:
        ignore: As for `diagnose`.

    Raises:
        UsageError: A code does not exist.
    """
    known = codes()
    for entry in ignore:
        code = entry.partition("@")[0]
        if code not in known:
            raise UsageError(
                f"ignore must name a code or CODE@WHERE, but there is no code {code!r}; `trimtab explain` lists them"
            )


def without_ignored(finding: Finding, ignore: Sequence[str]) -> Finding | None:
    """The finding without the places that are ignored.

    Args:
        finding: The finding.
        ignore: As for `diagnose`.

    Returns:
        The finding; None where no place is left, or the code is ignored everywhere.
    """
    ignored = [where for code, _, where in (entry.partition("@") for entry in ignore) if code == finding.code]
    left = tuple(place for place in finding.where if not any(_is_within(place, where) for where in ignored))
    if "" in ignored or (finding.where and not left):
        return None
    return finding if left == finding.where else replace(finding, where=left)


def _is_within(place: str, where: str) -> bool:
    return place == where or place.startswith(f"{where}.")


def _train(setup: Setup, store: str | Path | None, progress: Callable[[int, int], None] | None) -> Record:
    every = max(1, setup.steps // RECORDED)
    target, start = Store(store), probes.removal.start_of(setup)
    recorder = Recorder(target, Schedule(every), type(setup.model).__name__, Ride)
    recorder.add_model(setup.model)
    for optimizer in setup.optimizers:
        recorder.add_optimizer(optimizer)
    recorder.start()
    how = "ended"
    try:
        for done, _ in enumerate(setup.train(on_batch=recorder.batch), start=1):
            if progress is not None:
                progress(done, setup.steps)
        recorder.close(how)
        target.facts({"evaluation": losses_by_mode(setup), "modes": modes(setup)})
        _probe(setup, target, start)
    except BaseException as error:
        how = f"{type(error).__name__}: {error}"
        raise
    finally:
        recorder.close(how)
        target.close()
    return Record.of(target)


def _probe(setup: Setup, target: Store, start: probes.removal.Start | None) -> None:
    """Ask the trained setup what the record cannot tell; what is dear only where the rest leaves it open."""
    try:
        batches = probes.drawn(setup, probes.BATCHES)
    except Exception:  # data that can be had once: then nobody knows
        return
    facts = probes.after_training(setup, batches)
    target.facts({"probes": facts})
    record = Record.of(target)
    view = View(record)
    found = _found(view)
    if not view.learned and not any(f.finding.severity == "error" and f.finding.code not in SYMPTOMS for f in found):
        facts["cannot-overfit-one-batch"] = probes.cannot_overfit_one_batch.probe(setup, batches)
    roots = [f.code for f in _explained(found, record) if is_root(f)]
    if start is not None and probes.removal.rivals(roots):
        facts["removal"] = probes.removal.probe(setup, start, roots)
    target.facts({"probes": facts})


def _found(view: View) -> list[Found]:
    with np.errstate(all="ignore"):
        return [found for rule in RULES for found in rule(view)]


def facts_of(record: Record, view: View) -> RunFacts:
    """The run in a few words and numbers."""
    active = view.active
    models = tuple(
        f"{record.models[i].get('label', '')} ({record.models[i]['class']}, {size_of(record.models[i]):,} parameters)"
        if record.models[i].get("label") not in ("", record.models[i]["class"])
        else f"{record.models[i]['class']}, {size_of(record.models[i]):,} parameters"
        for i in active
    )
    optimizers = tuple(_optimizer(facts) for facts in record.optimizers)
    seconds, spent = record.facts.get("seconds"), record.facts.get("spent")
    share = spent / seconds if seconds and spent is not None else None
    seen = record.losses[record.loss_seen]
    return RunFacts(
        name=record.facts.get("name", ""),
        models=models,
        optimizers=optimizers,
        steps=record.step_count,
        recorded=len(record.steps),
        first_loss=float(seen[0]) if len(seen) else None,
        last_loss=float(np.mean(seen[-10:])) if len(seen) and not view.before_training else None,
        watching=None if view.before_training else share,
        record=None if record.path is None else str(record.path),
        unseen=_unseen(record, view),
        unseen_sites=tuple(asdict(place) for place in record.unseen),
        finished=record.finished,
        history=history(record),
    )


def size_of(model: dict[str, Any]) -> int:
    """Numbers in the parameters of a model."""
    return sum(int(np.prod(facts["shape"])) if facts["shape"] else 1 for facts in model["parameters"].values())


def _optimizer(facts: dict[str, Any]) -> str:
    settings = facts["groups"][0]["settings"] if facts.get("groups") else {}
    shown = {"lr": "lr", "momentum": "momentum", "weight_decay": "weight decay", "eps": "eps"}
    parts = [
        f"{word} {settings[key]:g}"
        for key, word in shown.items()
        if isinstance(settings.get(key), (int, float)) and settings[key]
    ]
    return ", ".join([facts["class"], *(p for p in parts if p != "eps 1e-08")])


def _unseen(record: Record, view: View) -> tuple[str, ...]:
    """What a reader should know of what was not seen, one line a reason: parts with weights that are used, whole models, steps."""
    places: dict[str, list[str]] = {}
    for place in record.unseen:
        matters = not place.name or place.reason == SCRIPTED
        if place.name and place.reason in (BYPASSED, TRANSFORMED):
            matters = bool(record.models[place.model]["modules"].get(place.name, {}).get("parameters"))
        if matters and place.model in view.active:
            places.setdefault(place.reason, []).append(view.name(place.model, place.name))
    notes = []
    for reason, names in places.items():
        names = list(dict.fromkeys(names))
        more = say(" and {n} more", n=len(names) - 3) if len(names) > 3 else ""
        notes.append(say("{names}: {reason}", names=", ".join(names[:3]) + more, reason=say(reason)))
    notes += ranks.silent(record)
    if record.facts.get("fault"):
        notes.append(say("trimtab stopped watching: {fault}", fault=record.facts["fault"]))
    return tuple(notes)
