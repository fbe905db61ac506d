"""A diagnosis as SARIF 2.1.0, the format in which code hosts and editors read findings."""

import hashlib
import json
import re
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

import trimtab
from trimtab._messages import say
from trimtab.report.diagnosis import Diagnosis
from trimtab.report.finding import Finding, Location
from trimtab.report.json import strict
from trimtab.report.pages import codes, page
from trimtab.report.words import clean, expectation, in_words, measurement, places, quantity

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_BASE = "%SRCROOT%"
_NO_MODULES = {"data", "loss", "optimizer", "loop"}


def render_sarif(diagnosis: Diagnosis, *, root: str | Path | None = None, language: str = "en") -> str:
    """The diagnosis as a SARIF 2.1.0 log with one run.

    Each code is a rule whose help is its page, each finding a result. A finding that others explain has its causes
    as related locations. A root's confidence is its `rank`, of 100. `partialFingerprints` depend on code and places only, so they hold from run to run.

    Args:
        diagnosis: What to render.
        root: Folder that file names are given relative to (as `%SRCROOT%`); the working directory by default.
        language: Language of the rules' help.

    Returns:
        The log, strict JSON.
    """
    base = Path.cwd() if root is None else Path(root).absolute()
    used = tuple(dict.fromkeys(finding.code for finding in diagnosis.findings))
    results = [_result(finding, diagnosis, used, base) for finding in diagnosis.findings]
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "trimtab",
                "version": trimtab.__version__,
                "semanticVersion": trimtab.__version__,
                "shortDescription": {"text": say("Tells why a neural network won't train.")},
                "rules": [_rule(code, language) for code in used],
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_BASE: {"uri": base.as_uri().rstrip("/") + "/"}},
        "results": results,
        "properties": {"run": strict(diagnosis.to_dict()["run"])},
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def _rule(code: str, language: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"id": code, "name": "".join(word.capitalize() for word in code.split("-"))}
    if code not in codes():
        text = in_words(code).capitalize() + "."
        return rule | {"shortDescription": {"text": text}, "fullDescription": {"text": text}}
    known = page(code, language)
    mechanism = known.sections.get("Mechanism", known.title).split("\n\n")[0]
    return rule | {
        "shortDescription": {"text": known.title},
        "fullDescription": {"text": re.sub(r"[`*]", "", " ".join(mechanism.split()))},
        "help": {"text": known.text, "markdown": known.text},
    }


def _result(finding: Finding, diagnosis: Diagnosis, rules: tuple[str, ...], base: Path) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rules.index(finding.code),
        "level": finding.severity,
        "message": {"text": _message(finding)},
        "locations": [_location(finding, base)],
        "partialFingerprints": {"codeAndPlaces/v1": _fingerprint(finding)},
        "properties": strict({
            "where": finding.where,
            "causes": finding.causes,
            "confidence": finding.confidence,
            "evidence": finding.to_dict()["evidence"],
            "repairs": finding.to_dict()["repairs"],
            "reference": finding.reference,
        }),
    }
    if finding.confidence is not None:
        result["rank"] = round(100.0 * finding.confidence, 1)
    causes = [cause for cause in diagnosis.findings if cause.code in finding.causes and cause is not finding]
    if causes:
        result["relatedLocations"] = [
            {"id": i, **_location(cause, base), "message": {"text": f"{cause.code}: {clean(cause.summary)}"}}
            for i, cause in enumerate(causes, start=1)
        ]
    return result


def _message(finding: Finding) -> str:
    lines = [clean(finding.summary)]
    if finding.where:
        lines.append(say("At {places}.", places=places(finding.where)))
    for evidence in finding.evidence:
        line = f"{clean(measurement(evidence))}: {quantity(evidence.measured, evidence.unit)}"
        expected = expectation(evidence)
        lines.append(
            say("{measured}, expected {expected}.", measured=line, expected=expected) if expected else line + "."
        )
    if finding.causes:
        lines.append(say("It follows from {causes}.", causes=", ".join(finding.causes)))
    lines += [say("Repair: {repair}", repair=clean(repair.summary)) for repair in finding.repairs[:1]]
    return "\n".join(lines)


def _location(finding: Finding, base: Path) -> dict[str, Any]:
    location: dict[str, Any] = {}
    if finding.location is not None and not finding.location.file.startswith("<"):
        location["physicalLocation"] = _physical(finding.location, base)
    if finding.where:
        location["logicalLocations"] = [
            {
                "name": name.rsplit(".", 1)[-1] or name,
                "fullyQualifiedName": name,
                "kind": "resource" if name in _NO_MODULES else "member",
            }
            for name in dict.fromkeys(finding.where)
        ]
    return location


def _physical(location: Location, base: Path) -> dict[str, Any]:
    file = PurePath(location.file)
    if file.is_absolute() and not file.is_relative_to(base):
        artifact = {"uri": file.as_uri()}
    else:
        relative = file.relative_to(base) if file.is_absolute() else file
        artifact = {"uri": quote(relative.as_posix()), "uriBaseId": _BASE}
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if location.line >= 1:
        physical["region"] = {"startLine": location.line}
    return physical


def _fingerprint(finding: Finding) -> str:
    return hashlib.sha256("\0".join((finding.code, *finding.where)).encode()).hexdigest()[:32]
