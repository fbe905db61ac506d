"""A diagnosis as JSON."""

import json
import math
from typing import Any

import trimtab
from trimtab.report.diagnosis import Diagnosis

SCHEMA = 1


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
    return document(diagnosis.to_dict())


def document(data: dict[str, Any]) -> str:
    """Plain data as a document of strict JSON that says which schema and which trimtab it is of.

    Args:
        data: What it tells.

    Returns:
        An object with `schema` and `trimtab` before the rest.
    """
    whole = {"schema": SCHEMA, "trimtab": trimtab.__version__, **strict(data)}
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)
