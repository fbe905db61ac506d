"""What has happened to a record itself: thinned to its budget, written in several sessions, left behind by a process that was killed."""

from trimtab._messages import say
from trimtab.recording import Record


def history(record: Record) -> tuple[str, ...]:
    """What a reader of the record should know of it.

    Args:
        record: The record.

    Returns:
        One line each, none for a record that was written once and whole.
    """
    return (*_thinned(record), *_sessions(record), *_abandoned(record))


def _thinned(record: Record) -> list[str]:
    facts = record.facts.get("thinned")
    if not facts:
        return []
    names = {
        "steps": say("recorded steps"),
        "details": say("steps looked at in detail"),
        "losses": say("losses"),
        "logged": say("logged numbers"),
    }
    gone = [
        say(
            "{n} {what} (one of each {gap} steps is kept)",
            n=f"{facts['removed'][kind]:,}",
            what=what,
            gap=facts["gaps"][kind],
        )
        for kind, what in names.items()
        if facts["removed"].get(kind)
    ]
    lines = []
    if gone:
        budget = f"{facts['budget'] / 1e6:g}"
        lines.append(say("thinned to its budget of {budget} MB: gone are {what}", budget=budget, what=", ".join(gone)))
    if facts.get("left_out"):
        lines.append(say("at least {n} steps were not recorded in full for want of room", n=facts["left_out"]))
    return lines


def _sessions(record: Record) -> list[str]:
    later = record.facts.get("sessions", [])[1:]
    if not later:
        return []
    joints = [
        say("step {first} ({n} steps replaced)", first=f"{session['first']:,}", n=session["replaced"])
        if session.get("replaced")
        else say("step {first}", first=f"{session['first']:,}")
        for session in later[-5:]
    ]
    return [say("written in {n} sessions, joined at {steps}", n=len(later) + 1, steps=", ".join(joints))]


def _abandoned(record: Record) -> list[str]:
    return [say("its process has ended without closing it")] if record.abandoned else []
