"""The page as a text: complete in itself, every foreign word escaped, numbers kept, small enough."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from charts_cases import HOSTILE as HOSTILE_CHARTS
from charts_cases import MARKUP, USUAL, heat, line, spoilt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from report_cases import ALL, HOSTILE, ONE_ROOT, VANISHING

from documents import run
from trimtab.errors import UsageError
from trimtab.report import Diagnosis, Finding, Prescription, Repair, RunFacts, Trial, codes, render
from trimtab.report.charts import Charts
from trimtab.report.html import notebook_html, render_html
from trimtab.report.html.code_page import page_html
from trimtab.report.html.packing import (
    FIRST,
    LAST,
    NONFINITE,
    UNSEEN,
    ZERO,
    as_script,
    colour_range,
    encoded,
    is_named,
    packed,
)

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Parsed(HTMLParser):
    """Elements with their attributes, the text outside of scripts and styles, and the scripts."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.words, self.open, self.scripts, self.styles = [], [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        where = self.open[-1] if self.open else ""
        {"script": self.scripts, "style": self.styles}.get(where, self.words).append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize("name", ALL)
def test_a_page_is_well_formed_and_loads_nothing(name):
    page = Parsed(render_html(ALL[name], charts=USUAL))
    assert page.open == []
    loads = [
        (tag, key, value)
        for tag, attributes in page.elements
        for key, value in attributes.items()
        if key in {"src", "srcset", "action", "data", "poster", "background"} or (key == "href" and tag != "a")
    ]
    assert [value for _, _, value in loads if not value.startswith("data:")] == []
    assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on") or key == "style"]
    assert "@import" not in "".join(page.styles)
    assert "url(" not in "".join(page.styles)


def test_the_policy_allows_what_the_page_brings_and_nothing_else():
    page = Parsed(render_html(ONE_ROOT, charts=USUAL))
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == "'none'"
    run = [text for text, attributes in zip(page.scripts, page.all("script"), strict=True) if "type" not in attributes]
    for name, texts in (("script-src", run), ("style-src", page.styles)):
        digests = {f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts}
        assert set(directives[name].split()) == digests
    assert "unsafe" not in policy


def test_foreign_words_are_text_whatever_they_look_like():
    evil = Finding(
        MARKUP,
        "error",
        (MARKUP,),
        MARKUP,
        repairs=(Repair(MARKUP, MARKUP),),
        reference=MARKUP,
    )
    facts = RunFacts(MARKUP, (MARKUP,), (MARKUP,), 3, 1, record=MARKUP, unseen=(MARKUP,), history=(MARKUP,))
    diagnosis = Diagnosis((evil, VANISHING), facts)
    page = Parsed(render_html(diagnosis, charts=HOSTILE_CHARTS))
    assert page.all("img") == []
    assert len(page.all("script")) == 3
    assert page.text.count(MARKUP) >= 10
    assert "{{ 7*7 }}" in page.text
    data = json.loads(page.scripts[0])
    assert data["charts"][0]["curves"][0]["name"] == MARKUP
    assert data["charts"][2]["rows"][0] == f"{MARKUP}.0"
    assert Parsed(notebook_html(diagnosis)).all("img") == []


def test_control_characters_are_gone():
    page = render_html(HOSTILE, charts=HOSTILE_CHARTS)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", page.partition('id="data"')[0].replace("\n", ""))


def test_findings_fold_with_their_evidence_and_their_page():
    page = Parsed(render_html(ONE_ROOT, charts=USUAL))
    folds = [a for a in page.all("details") if a.get("class", "").startswith("finding")]
    assert len(folds) == len(ONE_ROOT)
    assert ["open" in a for a in folds] == [True, False, False, False]
    assert "×0.166 ×1 (within ×1.35)" in page.text
    assert "torch.nn.init.kaiming_normal_(layer.weight" in page.text
    assert "Look at train.py:23" in page.text
    assert page.text.index("correlation 0.998") > page.text.index("What follows from it")
    for word in ("Symptom", "Mechanism", "Formula", "Threshold", "Reference"):
        assert word in page.text


def test_a_healthy_run_is_called_so():
    assert "Nothing found that would keep this network from training." in Parsed(render_html(ALL["healthy"])).text
    assert "no training step was seen" in Parsed(render_html(ALL["empty"])).text
    assert "its first 57 steps showed" in Parsed(render_html(ALL["unfinished"])).text


def test_a_prescription_stands_on_top():
    tried = Trial(VANISHING.repairs[0], ("initialization",), 0.91, 0.1, 0.2, (0.7, 0.9), (0.6, 0.8), 0.99, 3, True)
    failed = Trial(VANISHING.repairs[1], ("normalization",), None, 0.1, why=MARKUP)
    found = Prescription(ONE_ROOT, (tried, failed), tried, notes=("A note.",))
    page = Parsed(render_html(ONE_ROOT, charts=USUAL, prescription=found))
    assert page.text.index("repair proved") < page.text.index("Each layer multiplies")
    assert "0.700 … 0.900" in page.text
    assert MARKUP in page.text
    assert "A note." in page.text


@pytest.mark.parametrize("code", codes())
def test_every_page_of_a_code_is_html(code):
    page = Parsed(page_html(code))
    assert page.open == []
    assert len(page.all("h4")) >= 6
    assert not {"script", "img", "style", "iframe"} & {tag for tag, _ in page.elements}


@pytest.mark.parametrize(
    ("row", "place", "marked"),
    [
        ("body.0 Linear", "body.0", True),
        ("body.0 Linear", "body.0.weight", True),
        ("body.0 Linear", "body.01", False),
        ("two words", "two words", True),
        ("two words", "two words.weight", True),
        ("a <b>.0 Linear", "a <b>.0", True),
        ("two words", "words", False),
    ],
)
def test_a_row_is_marked_where_a_finding_names_it(row, place, marked):
    assert is_named(row, [place]) == marked


def test_data_cannot_end_its_script():
    text = as_script({"a": "</script><!-- & \u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["a"] == "</script><!-- & \u2028"


# ---- numbers ----


def unpacked(data):
    """As the page's script does it."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(data["cells"])), dtype=np.uint8).astype(np.uint16)
    shape = len(data["rows"]), len(data["columns"])
    high, low = planes.reshape(2, *shape)
    return np.cumsum((high << 8) | low, axis=1, dtype=np.uint16)


def numbers(data):
    codes_ = unpacked(data)
    level = data["low"] + (codes_ - float(FIRST)) / (LAST - FIRST) * (data["high"] - data["low"])
    found = 10**level if data["log"] else level
    found[codes_ == ZERO], found[codes_ == UNSEEN], found[codes_ == NONFINITE] = 0, np.nan, np.inf
    return found


cells = st.one_of(st.floats(2**-126, 2.0**126, width=32), st.just(0.0), st.just(np.nan), st.just(np.inf))


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 7)), elements=cells))
def test_every_cell_comes_back(values):
    chart = heat(rows=values.shape[0], columns=values.shape[1])
    chart = type(chart)(*[getattr(chart, f) if f != "values" else values for f in chart.__slots__])
    found = numbers(packed(chart))
    span = max(np.ptp(colour_range([chart])), 2)
    np.testing.assert_allclose(found, values, rtol=10 ** (span / (LAST - FIRST)) * 1.001 - 1 + 1e-6)


@given(arrays.arrays(np.uint16, st.tuples(st.integers(1, 4), st.integers(1, 9))))
def test_codes_survive_their_packing(codes_):
    from trimtab.report.html.packing import squeezed

    data = {"cells": squeezed(codes_), "rows": range(codes_.shape[0]), "columns": range(codes_.shape[1])}
    np.testing.assert_array_equal(unpacked(data), codes_)


def test_a_plain_scale_is_even():
    values = np.array([[-2.0, 0.0, 2.0]], dtype=np.float32)
    assert encoded(values, -2, 2, log=False).tolist() == [[FIRST, round((FIRST + LAST) / 2), LAST]]


def test_what_was_not_seen_is_told_from_zero_and_from_infinity():
    assert unpacked(packed(spoilt())).tolist()[0] == [UNSEEN, ZERO, NONFINITE]


def test_lines_keep_their_numbers_and_gaps():
    chart = line(n=4)
    chart.curves[0].y[2] = np.nan
    data = packed(chart)
    assert data["curves"][0]["y"][2] is None
    assert data["curves"][0]["y"][0] == pytest.approx(chart.curves[0].y[0], rel=1e-5)
    assert data["curves"][0]["low"] == pytest.approx([y / 2 for y in 3 * 0.97 ** np.arange(1.0, 5)], rel=1e-5)


def test_three_hundred_modules_at_a_thousand_steps_fit_in_three_megabytes():
    maps = [heat(key, 300, 1000, seed) for seed, key in enumerate(("signal", "gradient", "update"))]
    names = tuple(f"backbone.stage{i // 50}.block{i // 5}.conv{i % 5}" for i in range(300))
    lines = [line(key, 2000) for key in ("loss", "learning-rate", "gradient-norm")]
    depth = [line(f"{key}-by-depth", 300, names, section="depth") for key in ("signal", "gradient")]
    page = render_html(ONE_ROOT, charts=Charts((*lines, *maps, *depth)))
    assert len(page.encode()) < 3e6


# ---- doors ----


def test_a_diagnosis_writes_its_page(tmp_path):
    path = tmp_path / "r.html"
    page = ONE_ROOT.to_html(path)
    assert path.read_text(encoding="utf-8") == page == render(ONE_ROOT, "html")
    with pytest.raises(UsageError, match=r"cannot write the page to .*nowhere"):
        ONE_ROOT.to_html(tmp_path / "nowhere" / "r.html")


def test_a_notebook_shows_findings_without_a_script():
    shown = ONE_ROOT._repr_html_()
    page = Parsed(shown)
    assert page.open == []
    assert page.all("script") == []
    assert "×0.166" in page.text
    rules = re.findall(r"(?:^|})\s*([^{}]+){", page.styles[0])
    assert rules
    assert all(part.strip().startswith(".trimtab-report") for rule in rules for part in rule.split(","))


def test_a_prescription_writes_its_page(tmp_path):
    found = Prescription(ONE_ROOT, (Trial(VANISHING.repairs[0], ("initialization",), 0.91, 0.1),), None)
    page = found.to_html(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == page
    assert "no repair proved" in Parsed(page).text
    shown = Parsed(found._repr_html_())
    assert shown.all("script") == []
    assert "no repair proved" in shown.text


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, _ = run(Path(__file__).parents[2] / "docs" / "page.md")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == names["page"]
    assert 'data-chart="signal"' in names["page"]


def test_rows_that_a_finding_names_are_marked():
    chart = heat(rows=3)
    renamed = type(chart)(*[
        ("body.2 Linear", "body.20 Linear", "act") if f == "rows" else getattr(chart, f) for f in chart.__slots__
    ])
    page = Parsed(render_html(ONE_ROOT, charts=Charts((renamed,))))  # it names body.0, body.2, ... body.16
    assert json.loads(page.scripts[0])["charts"][0]["rows"] == ["▸ body.2 Linear", "body.20 Linear", "act"]
    assert "▸ marks what a finding names." in page.text
    assert "▸" not in Parsed(render_html(ALL["healthy"], charts=Charts((renamed,)))).text
