"""The text: what must be said, in which order, within the width, and with nothing that steers a terminal."""

import io
import math
import re
import subprocess
import sys
import unicodedata
from dataclasses import replace

import pytest
from report_cases import (
    ALL,
    BAD_DATA,
    CLIPPED,
    COLLAPSE,
    EVIL,
    HEALTHY,
    HOSTILE,
    NOTES,
    ONE_ROOT,
    RUN,
    SEVERAL,
    SLOW,
    UNFINISHED,
    VANISHING,
)
from rich.cells import cell_len

from trimtab.report import Diagnosis, Evidence, Finding, RunFacts
from trimtab.report.outline import fold
from trimtab.report.text import render_text
from trimtab.report.words import clean, expectation, number, places, quantity


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize("name", ALL)
def test_no_line_is_wider_than_the_window(name, width, unicode):
    text = render_text(ALL[name], width=width, unicode=unicode)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert text.endswith("\n")
    assert not text.startswith("\n")
    assert "\n\n\n" not in text


@pytest.mark.parametrize("name", ALL)
def test_nothing_steers_the_terminal_without_colour(name):
    text = render_text(ALL[name])
    assert not [c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs"} and c != "\n"]


@pytest.mark.parametrize("name", ALL)
def test_ascii_is_ascii(name):
    assert render_text(ALL[name], unicode=False).isascii()


def test_colour_adds_codes_and_changes_no_word():
    coloured = render_text(ONE_ROOT, color=True)
    assert "\x1b[" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == render_text(ONE_ROOT).splitlines()


def test_the_environment_changes_nothing(monkeypatch):
    before = render_text(ONE_ROOT)
    for name, value in {"COLUMNS": "33", "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    assert render_text(ONE_ROOT) == before


def test_markup_in_a_name_is_text():
    text = render_text(HOSTILE)
    assert "[red]owned[/red]" in text
    assert "\x1b" not in text
    assert "\x1b[31mvery" not in render_text(HOSTILE, color=True)


def test_one_root_verdict_first_then_numbers_then_repair_then_the_rest():
    text = render_text(ONE_ROOT)
    lines = text.splitlines()
    verdict = "\n".join(lines[:5])
    assert "ERROR" in verdict
    assert "The gradient fades" in verdict
    assert "vanishing-gradient at body.0 … body.16 (9 places)" in verdict
    order = [
        "Each layer multiplies",
        "measured",
        "×0.166",
        "×1.67e-07",
        "Repair",
        "kaiming_normal_",
        "follows from it: signal-collapse",
        "follows from it: learning-rate-too-low",
        "Look at train.py:23",
        "trimtab explain vanishing-gradient",
        "Notes",
        "clipping-dominates in the training loop",
        "Run",
        "300 steps, 22 recorded in full",
        "2.30 → 2.30",
        "Sequential",
        "SGD, lr 0.01",
        ".trimtab/train-20250101-120000.db",
        "3.10 %",
        "torch.relu called",
    ]
    found = [text.index(part) for part in order]
    assert found == sorted(found)
    row = next(line for line in lines if "×0.166" in line)
    assert "×1 (within ×1.35)" in row


def test_a_symptom_is_one_line():
    lines = [line for line in render_text(ONE_ROOT).splitlines() if "follows from it" in line]
    assert len(lines) == 2
    assert all(line.endswith("…") for line in lines)
    assert "(warning)" in lines[0]


def test_code_of_a_repair_can_be_copied():
    lines = render_text(ONE_ROOT).splitlines()
    start = next(i for i, line in enumerate(lines) if "for layer in" in line)
    assert "\n".join(line[6:] for line in lines[start : start + 4]) == VANISHING.repairs[0].code


def test_several_roots_are_listed_first_and_told_in_order():
    text = render_text(SEVERAL)
    head = text.split("1 of 2")[0]
    assert "2 root causes" in head
    assert "vanishing-gradient" in head
    assert "nonfinite-data in the data" in head
    assert text.index("1 of 2") < text.index("follows from it: signal-collapse") < text.index("2 of 2")
    assert "not a number" in text


def test_several_roots_have_their_confidence_and_a_lone_one_has_no_need_of_it():
    first, second = replace(VANISHING, confidence=0.9), replace(BAD_DATA, confidence=1 / 12)
    text = render_text(Diagnosis((first, second, COLLAPSE), RUN))
    assert "1  vanishing-gradient (confidence 0.9) at body.0" in text
    assert "2  nonfinite-data (confidence 0.1) in the data" in text
    assert text.count("(confidence 0.9)") == text.count("(confidence 0.1)") == 2
    assert "confidence" not in render_text(Diagnosis((first, COLLAPSE), RUN))
    assert "confidence" not in render_text(SEVERAL)


def test_notes_only_is_calm():
    text = render_text(NOTES)
    assert "Nothing found that would keep this network from training." in text
    assert "clipping-dominates" in text
    assert "ERROR" not in text


def test_healthy_is_one_calm_line_and_the_facts():
    text = render_text(HEALTHY)
    assert "Nothing found" in text.splitlines()[2]
    assert "300 steps" in text
    assert "Repair" not in text
    assert str(HEALTHY) == text


def test_unfinished_says_so():
    text = render_text(UNFINISHED)
    assert "The run had not ended" in text.splitlines()[2]
    assert "57 steps, 9 recorded in full, not ended" in text
    assert "infinity → unknown" in text


def test_no_loss_and_no_steps():
    text = render_text(Diagnosis())
    assert "no loss was seen" in text
    assert "no training step was seen" in text
    assert "kept in memory only" in text


def test_long_lists_are_cut_with_their_count():
    text = render_text(HOSTILE)
    assert "and 17 more" in text  # 22 pieces of evidence, 5 shown
    assert "6 more findings" in text  # 12 symptoms, 6 shown
    assert "(5 places)" in " ".join(text.split())


def test_what_follows_is_folded_once_also_indirectly():
    groups, notes = fold(ONE_ROOT)
    assert groups == [(VANISHING, [COLLAPSE, SLOW])]
    assert notes == [CLIPPED]


def test_a_finding_without_its_cause_or_in_a_circle_is_not_lost():
    a = Finding("a", "error", (), "a", causes=("b",))
    b = Finding("b", "error", (), "b", causes=("a",))
    orphan = Finding("c", "warning", (), "c", causes=("ignored",))
    groups, notes = fold(Diagnosis((a, b, orphan)))
    told = [x.code for main, following in groups for x in (main, *following)]
    assert sorted(told) == ["a", "b", "c"]
    assert notes == []


def test_two_causes_tell_a_symptom_once():
    both = Finding("x", "warning", (), "x", causes=(VANISHING.code, BAD_DATA.code))
    assert render_text(Diagnosis((VANISHING, BAD_DATA, both))).count("follows from it") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.6666e-8, "1.67e-08"),
        (0.16666, "0.167"),
        (12.345, "12.3"),
        (2.3, "2.30"),
        (2.301, "2.30"),
        (0.99999, "1.00"),
        (999.96, "1000"),
        (1234.5, "1234"),
        (123456.7, "1.23e+05"),
        (64, "64"),
        (1.0, "1"),
        (0, "0"),
        (-0.0004567, "-4.57e-04"),
        (math.nan, "not a number"),
        (math.inf, "infinity"),
        (-math.inf, "minus infinity"),
        ("SGD", "SGD"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text.replace("1234", "1230")


def test_units():
    assert quantity(0.1667, "x") == "×0.167"
    assert quantity(12.34, "ms") == "12.3 ms"
    assert quantity(math.nan, "x") == "not a number"


def test_expectations():
    assert expectation(Evidence("n", 1.0)) == ""
    assert expectation(Evidence("n", 1.0, 1.0, 1.35, "x")) == "×1 (within ×1.35)"
    assert expectation(Evidence("n", 1.0, 2.5, 0.1, "ms")) == "2.5 ± 0.1 ms"
    assert expectation(Evidence("n", 1.0, 100.4, None)) == "100"
    assert expectation(Evidence("n", 1.0, "finite", 3.0)) == "finite"
    assert expectation(Evidence("n", 1.0, math.nan, 3.0, "x")) == "not a number"


def test_places():
    assert places(["a", "b"]) == "a, b"
    assert places([f"body.{i}" for i in range(0, 20, 2)]) == "body.0 … body.18 (10 places)"


def test_clean():
    assert clean(EVIL).startswith("[red]owned[/red].very")
    assert clean("a\n\tb\x00") == "a b"
    assert clean("a\r\n\tb", lines=True) == "a\n    b"
    assert clean("σ² ≈ 2 模", unicode=False) == r"sigma^2 ~ 2 \u6a21"


def test_importing_trimtab_or_a_diagnosis_does_not_import_rich():
    code = (
        "import sys, trimtab, trimtab.report; print([m for m in ('rich', 'matplotlib', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_run_of_one_step():
    assert "1 step, 1 recorded" in render_text(
        Diagnosis(run=RunFacts(steps=1, recorded=1, first_loss=1.0, last_loss=1.0))
    )


@pytest.mark.parametrize(
    ("diagnosis", "counts"),
    [
        (ONE_ROOT, "1 error, 2 consequences, 1 note"),
        (SEVERAL, "2 errors, 1 consequence"),
        (HEALTHY, "nothing found"),
    ],
)
def test_first_line_counts_root_causes_apart_from_what_follows(diagnosis, counts):
    assert render_text(diagnosis).splitlines()[0].endswith(f" {counts}")


def test_a_rule_is_dashes_where_the_encoding_has_no_rules():
    from trimtab.report.writing import write

    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    write("a ──── b ✓", stream)
    assert stream.buffer.getvalue() == b"a ---- b \\u2713\n"
