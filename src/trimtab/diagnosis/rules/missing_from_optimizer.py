"""`missing-from-optimizer`: parameters that get a gradient and that no optimizer has."""

from collections.abc import Iterator
from typing import Any

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.fresh import looks_fresh
from trimtab.diagnosis.names import owners
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity


def find(view: View) -> Iterator[Found]:
    """Exact: the gradient was deposited, and no parameter group holds the parameter.

    Parameters that `model.parameters()` does not know (modules in a plain list), or that still look like a fresh draw, were meant
    to be trained. A registered, trained one may be left out on purpose, as when only a head is tuned: that is a note.

    Yields:
        At most one finding.
    """
    left_out: list[tuple[int, str, dict[str, Any]]] = []
    total = 0
    orphaned = not view.active  # no optimizer has anything of any model that ran
    for model in range(len(view.record.models)) if orphaned else view.active:
        for name, facts in view.record.models[model]["parameters"].items():
            total += _size(facts)
            if facts["trainable"] and not facts["optimized"] and _has_gradient(view, model, name):
                left_out.append((model, name, facts))
    if not left_out:
        return
    hidden = [entry for entry in left_out if not entry[2]["registered"]]
    fresh = [entry for entry in left_out if not entry[2]["updated"] and looks_fresh(entry[2])]
    meant = bool(hidden or fresh)
    severity: Severity = "note" if not (meant or orphaned) else ("warning" if view.learned else "error")
    modules = owners(view.name(model, name) for model, name, _ in left_out)
    share = sum(_size(facts) for _, _, facts in left_out) / max(total, 1)
    if orphaned:
        summary = say(
            "No optimizer holds a single parameter of the model that ran: it was built before the model, or the part of it that is trained, was made anew."
        )
        repair = Repair(
            say("Build the optimizer last, when the model is complete"),
            f"model[-1] = torch.nn.Linear(64, 10)\noptimizer = {view.optimizer}(model.parameters(), lr=lr)",
        )
    elif hidden:
        summary = say(
            "{count} parameters get a gradient but are in no optimizer ({share:.0%} of all weights): their modules are kept in a plain Python list "
            "or dictionary, which model.parameters() does not look into.",
            count=len(left_out),
            share=share,
        )
        repair = Repair(
            say(
                "Keep the modules in nn.ModuleList (or nn.ModuleDict), so that parameters(), to() and state_dict() know them"
            ),
            "self.layers = torch.nn.ModuleList([nn.Linear(64, 64) for _ in range(6)])",
        )
    else:
        summary = say(
            "{count} parameters get a gradient but are in no optimizer ({share:.0%} of all weights), so they stay as they were drawn.",
            count=len(left_out),
            share=share,
        )
        repair = Repair(
            say(
                "Give the optimizer all parameters, or freeze these with requires_grad_(False) if they are meant to stay"
            ),
            f"optimizer = {view.optimizer}(model.parameters(), lr=lr)",
        )
    yield Found(
        Finding(
            code="missing-from-optimizer",
            severity=severity,
            where=modules,
            summary=summary,
            evidence=(
                Evidence(say("parameters with a gradient and without an optimizer"), float(len(left_out)), 0.0),
                Evidence(say("share of all weights"), share, 0.0),
            ),
            repairs=(repair,),
            location=view.place("step", "forward"),
        )
    )


def _has_gradient(view: View, model: int, name: str) -> bool:
    series = view.series(model, name, "raw-gradient")
    return series is not None and bool((series.second_moment > 0).any())


def _size(facts: dict[str, Any]) -> int:
    size = 1
    for length in facts["shape"]:
        size *= length
    return size
