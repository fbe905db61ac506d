"""SARIF: valid by the schema, with places, levels, causes and stable fingerprints."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from report_cases import ALL, BAD_DATA, COLLAPSE, HOSTILE, ONE_ROOT, UNFINISHED, VANISHING

from trimtab.report import Diagnosis, Finding, Location
from trimtab.report.sarif import render_sarif

SCHEMA = json.loads((Path(__file__).parent / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))


def results(diagnosis, **options):
    return json.loads(render_sarif(diagnosis, **options))["runs"][0]["results"]


@pytest.mark.parametrize("name", ALL)
def test_valid_by_the_schema(name):
    document = json.loads(render_sarif(ALL[name]))
    validator = jsonschema.validators.validator_for(SCHEMA)
    validator.check_schema(SCHEMA)
    validator(SCHEMA, format_checker=validator.FORMAT_CHECKER).validate(document)


def test_the_schema_does_refuse():
    document = json.loads(render_sarif(ONE_ROOT))
    document["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_non_finite_evidence_is_a_word():
    evidence = results(UNFINISHED)[0]["properties"]["evidence"][1]
    assert evidence["measured"] == "nan"


def test_rules_have_the_pages_as_help():
    driver = json.loads(render_sarif(HOSTILE))["runs"][0]["tool"]["driver"]
    rules = {rule["id"]: rule for rule in driver["rules"]}
    assert driver["name"] == "trimtab"
    assert list(rules) == ["an-unknown-code", "vanishing-gradient", "frozen-parameters"]
    assert "## Repair" in rules["vanishing-gradient"]["help"]["markdown"]
    assert "fades" in rules["vanishing-gradient"]["shortDescription"]["text"]
    assert rules["an-unknown-code"]["shortDescription"]["text"] == "An unknown code."
    assert all(result["ruleId"] == driver["rules"][result["ruleIndex"]]["id"] for result in results(HOSTILE))


def test_a_roots_confidence_is_its_rank():
    first, second = results(Diagnosis((replace(VANISHING, confidence=0.875), COLLAPSE)))
    assert (first["rank"], first["properties"]["confidence"]) == (87.5, 0.875)
    assert "rank" not in second
    assert second["properties"]["confidence"] is None


def test_a_result_says_level_message_and_places(tmp_path):
    inside = tmp_path / "my dir" / "train.py"
    finding = Finding("dead-units", "warning", ("body.1", "loss"), "Half of it.", location=Location(str(inside), 7))
    (result,) = results(Diagnosis((finding,)), root=tmp_path)
    assert result["level"] == "warning"
    assert result["message"]["text"].startswith("Half of it.")
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "my%20dir/train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 7},
    }
    assert location["logicalLocations"] == [
        {"name": "1", "fullyQualifiedName": "body.1", "kind": "member"},
        {"name": "loss", "fullyQualifiedName": "loss", "kind": "resource"},
    ]


def test_a_file_elsewhere_has_an_absolute_uri(tmp_path):
    finding = Finding("dead-units", "error", (), "s", location=Location("/elsewhere/a b.py", 1))
    (result,) = results(Diagnosis((finding,)), root=tmp_path)
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "file:///elsewhere/a%20b.py"}


def test_a_place_that_is_no_file_is_left_out():
    finding = Finding("dead-units", "error", ("fc",), "s", location=Location("<stdin>", 1))
    assert "physicalLocation" not in results(Diagnosis((finding,)))[0]["locations"][0]


def test_causes_are_related_locations():
    root, symptom = results(ONE_ROOT)[:2]
    assert "relatedLocations" not in root
    (related,) = symptom["relatedLocations"]
    assert related["message"]["text"].startswith("vanishing-gradient: ")
    assert related["physicalLocation"]["region"]["startLine"] == 23
    assert symptom["properties"]["causes"] == ["vanishing-gradient"]


def test_fingerprints_depend_on_code_and_places_only():
    def fingerprint(finding):
        return results(Diagnosis((finding,)))[0]["partialFingerprints"]["codeAndPlaces/v1"]

    other_numbers = Finding(VANISHING.code, "warning", VANISHING.where, "other words")
    assert fingerprint(VANISHING) == fingerprint(other_numbers)
    assert len({fingerprint(f) for f in (VANISHING, COLLAPSE, BAD_DATA)}) == 3
