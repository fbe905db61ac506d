"""A diagnosis as JSON, and back."""

import json
import math
from dataclasses import fields
from typing import Any

import trimtab
from trimtab._messages import say
from trimtab.errors import UsageError
from trimtab.report.diagnosis import Diagnosis, RunFacts
from trimtab.report.finding import Evidence, Finding

SCHEMA = 1
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def strict(value: Any) -> Any:
    """Return the value as strict JSON has it: tuples as lists, non-finite numbers as "nan", "inf" and "-inf"."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, str | bool | int | None):
        return value
    if hasattr(value, "item"):  # a number of numpy or torch
        return strict(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    return str(value)


def render_json(diagnosis: Diagnosis) -> str:
    """The diagnosis as strict JSON with a stable order of keys.

    Args:
        diagnosis: What to render.

    Returns:
        An object with `schema`, `trimtab` (the version), `healthy`, `run` and `findings`; non-finite numbers are the
        strings "nan", "inf" and "-inf".
    """
    document = {"schema": SCHEMA, "trimtab": trimtab.__version__, **strict(diagnosis.to_dict())}
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def parse_json(text: str) -> Diagnosis:
    """The diagnosis that `render_json` wrote.

    Args:
        text: The JSON.

    Returns:
        A diagnosis equal to the one rendered.

    Raises:
        UsageError: If the text is no report of trimtab, or one of another schema.
    """
    try:
        document = json.loads(text)
        schema = document["schema"]
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(say("This is no JSON report of trimtab: {error}", error=repr(error))) from error
    if schema != SCHEMA:
        raise UsageError(say("The report has schema {got}; this trimtab reads schema {want}.", got=schema, want=SCHEMA))
    try:
        return Diagnosis(tuple(_finding(f) for f in document["findings"]), _run(document["run"]))
    except (AttributeError, TypeError, KeyError) as error:
        raise UsageError(say("The JSON report is damaged: {error}", error=repr(error))) from error


def _number(value: Any) -> Any:
    return _WORDS.get(value, value) if isinstance(value, str) else value


def _finding(data: dict[str, Any]) -> Finding:
    numbers = ("measured", "expected", "tolerance")
    names = [f.name for f in fields(Evidence)]
    evidence = [{n: _number(e[n]) if n in numbers else e[n] for n in names} for e in data["evidence"]]
    known = {f.name: data[f.name] for f in fields(Finding)}
    return Finding.from_dict({**known, "evidence": evidence})


def _run(data: dict[str, Any]) -> RunFacts:
    known = {f.name: data[f.name] for f in fields(RunFacts)}
    for name in ("models", "optimizers", "unseen"):
        known[name] = tuple(known[name])
    for name in ("first_loss", "last_loss", "watching"):
        known[name] = _number(known[name])
    return RunFacts(**known)
