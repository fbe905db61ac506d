"""JSON: strict, stable, and read back equal."""

import json
import math

import numpy as np
import pytest
from report_cases import ALL, BAD_DATA, ONE_ROOT, UNFINISHED

from trimtab.errors import UsageError
from trimtab.report import Diagnosis, Evidence, Finding
from trimtab.report.json import parse_json, render_json


def refuse(word):
    raise AssertionError(f"{word} is not JSON")


@pytest.mark.parametrize("name", ALL)
def test_round_trip(name):
    text = render_json(ALL[name])
    json.loads(text, parse_constant=refuse)
    again = parse_json(text)
    assert repr(again) == repr(ALL[name])  # NaN is not equal to itself
    assert render_json(again) == text


def test_equal_where_numbers_are_finite():
    assert parse_json(ONE_ROOT.to_json()) == ONE_ROOT


def test_non_finite_numbers_are_words():
    evidence = json.loads(render_json(UNFINISHED))["findings"][0]["evidence"][1]
    assert (evidence["measured"], evidence["expected"], evidence["tolerance"]) == ("nan", "inf", "-inf")
    read = parse_json(render_json(UNFINISHED)).findings[0].evidence[1]
    assert math.isnan(read.measured)
    assert read.tolerance == -math.inf
    assert parse_json(render_json(UNFINISHED)).run.first_loss == math.inf


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


def test_fields_of_a_later_version_are_ignored():
    document = json.loads(render_json(Diagnosis((BAD_DATA,))))
    document["later"] = document["run"]["later"] = document["findings"][0]["later"] = 1
    assert parse_json(json.dumps(document)).findings[0].code == BAD_DATA.code


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"schema": 1}', '{"schema": 1, "findings": [3], "run": {}}'])
def test_other_text_is_refused(text):
    with pytest.raises(UsageError, match="JSON report"):
        parse_json(text)


def test_another_schema_is_refused():
    with pytest.raises(UsageError, match="schema 2"):
        parse_json('{"schema": 2}')
