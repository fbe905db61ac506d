"""The front door, and the summary of a diagnosis as data."""

import json

import pytest
from report_cases import ONE_ROOT

from trimtab.errors import UsageError
from trimtab.report import FORMATS, render
from trimtab.report.text import render_text


def test_each_format_opens():
    assert FORMATS == ("text", "json", "sarif", "html")
    assert render(ONE_ROOT) == render_text(ONE_ROOT)
    assert render(ONE_ROOT, "text", width=60) == render_text(ONE_ROOT, width=60)
    assert json.loads(render(ONE_ROOT, "json"))["schema"] == 1
    assert json.loads(render(ONE_ROOT, "sarif"))["version"] == "2.1.0"


def test_an_unknown_format_names_the_choices():
    with pytest.raises(UsageError, match=r"'yaml'.*text, json, sarif, html"):
        render(ONE_ROOT, "yaml")
