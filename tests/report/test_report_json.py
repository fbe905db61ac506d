"""JSON: strict, stable and complete."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from report_cases import ALL, COLLAPSE, ONE_ROOT, UNFINISHED, VANISHING

import trimtab
from trimtab.report import Diagnosis, Evidence, Finding, RunFacts
from trimtab.report.json import render_json, strict


def refuse(word):
    raise AssertionError(f"{word} is not JSON")


@pytest.mark.parametrize("name", ALL)
def test_every_diagnosis_is_strict_json_with_all_that_it_says(name):
    document = json.loads(render_json(ALL[name]), parse_constant=refuse)
    said = strict(ALL[name].to_dict())
    assert document == {"schema": 1, "trimtab": trimtab.__version__, **said}
    assert [f["code"] for f in document["findings"]] == [f.code for f in ALL[name].findings]
    assert document["run"].keys() == {f.name for f in fields(RunFacts)}


def test_non_finite_numbers_are_words():
    document = json.loads(render_json(UNFINISHED))
    evidence = document["findings"][0]["evidence"][1]
    assert (evidence["measured"], evidence["expected"], evidence["tolerance"]) == ("nan", "inf", "-inf")
    assert document["run"]["first_loss"] == "inf"


def test_a_confidence_is_a_number_or_null():
    document = json.loads(render_json(Diagnosis((replace(VANISHING, confidence=0.75), COLLAPSE))))
    assert [f["confidence"] for f in document["findings"]] == [0.75, None]


def test_keys_come_in_a_stable_order():
    document = json.loads(render_json(ONE_ROOT))
    assert list(document) == ["schema", "trimtab", "healthy", "run", "findings"]
    assert document["schema"] == 1
    assert document["healthy"] is False
    assert list(document["findings"][0])[:4] == ["code", "severity", "where", "summary"]


def test_numbers_of_numpy():
    finding = Finding("a", "note", (), "s", (Evidence("n", np.float32(0.5), np.int64(3), np.float64("nan")),))
    evidence = json.loads(render_json(Diagnosis((finding,))))["findings"][0]["evidence"][0]
    assert (evidence["measured"], evidence["expected"], evidence["tolerance"]) == (0.5, 3, "nan")
