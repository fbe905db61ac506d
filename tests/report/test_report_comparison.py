"""Two runs beside each other as data and as text: nothing lost, nothing told twice, within the width, harmless."""

import json
import pickle
import unicodedata
from dataclasses import replace

import pytest
from comparison_cases import ALL, HEALED, NOTHING, USUAL, compared
from hypothesis import given
from hypothesis import strategies as st
from report_cases import CLIPPED, COLLAPSE, RUN, VANISHING
from rich.cells import cell_len

from trimtab.report import Diagnosis, Finding
from trimtab.report.comparison import LayerChange, sorted_out
from trimtab.report.comparison_text import render_comparison

FINDINGS = st.lists(
    st.builds(
        Finding,
        code=st.sampled_from(["dead-units", "frozen-parameters", "loss-spike"]),
        severity=st.sampled_from(["error", "warning", "note"]),
        where=st.lists(st.sampled_from("abc"), max_size=2, unique=True).map(tuple),
        summary=st.just("Something."),
    ),
    max_size=6,
)


@given(FINDINGS, FINDINGS)
def test_gone_one_way_is_new_the_other_way(a, b):
    gone, new, stay = sorted_out(a, b)
    back = sorted_out(b, a)
    assert (gone, new) == (back[1], back[0])
    assert sorted(map(repr, stay)) == sorted(repr((old, now)) for now, old in back[2])


@given(FINDINGS, FINDINGS)
def test_no_finding_is_lost_or_told_twice(a, b):
    gone, new, stay = sorted_out(a, b)
    assert sorted(map(repr, a)) == sorted(map(repr, [*gone, *(old for old, _ in stay)]))
    assert sorted(map(repr, b)) == sorted(map(repr, [*new, *(now for _, now in stay)]))
    assert all(old.code == now.code for old, now in stay)
    assert not {f.code for f in gone} & {f.code for f in new}


@given(FINDINGS)
def test_a_run_beside_itself_has_nothing_new(found):
    assert sorted_out(found, found) == ((), (), tuple((f, f) for f in found))


def test_equal_places_belong_together():
    here, there = replace(CLIPPED, where=("a",)), replace(CLIPPED, where=("b",))
    assert sorted_out([here, there], [there]) == ((here,), (), ((there, there),))


@pytest.mark.parametrize(
    ("values", "ratio"),
    [((1.0, 2.0), 2.0), ((0.0, 1.0), float("inf")), ((1.0, 0.0), 0.0), ((0.0, 0.0), 1.0), ((float("inf"), 1.0), None)],
)
def test_ratio_of_a_layer(values, ratio):
    found = LayerChange("a", "a", "signal", "first", (0, 0), values).ratio
    assert found == ratio if ratio is not None else found != found


# ---------------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", ALL)
def test_no_line_is_wider_than_the_window(name, width, unicode):
    text = render_comparison(ALL[name], width=width, unicode=unicode)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "\n\n\n" not in text
    assert text.isascii() or unicode


@pytest.mark.parametrize("name", ALL)
def test_nothing_steers_the_terminal(name):
    text = str(ALL[name])
    assert not [c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs"} and c != "\n"]


def test_what_the_text_says():
    text = str(USUAL)
    assert text.startswith("trimtab compare before → after ─")
    assert text.splitlines()[0].endswith(" 2 gone, 1 new, 1 still there")
    words = " ".join(text.split())
    for told in (
        "gone error vanishing-gradient at body.0 … body.16 (9 places)",
        "gone warning signal-collapse",
        "new warning learning-rate-too-low in the optimizer",
        "still there note clipping-dominates in the training loop",
        "loss, first → last 2.30 → 2.30 2.30 → 2.30",
        "optimizer: lr 1 0.01",
        "model: body.1 – LayerNorm",
        "gradient body.0 1.00e-09 0.00100 ×1.00e+06",
        "signal body.0 1 not finite",
        "gradient body.2 / body.3 0 0.00100",
    ):
        assert told in words, told


def test_what_has_changed_of_a_finding_that_stays():
    worse = replace(CLIPPED, severity="error", where=("data",))
    words = " ".join(str(compared(Diagnosis((CLIPPED,), RUN), Diagnosis((worse,), RUN))).split())
    assert "still there error clipping-dominates in the data (was: note) (was in the training loop)" in words


def test_calm_words():
    assert "healthy: nothing found" in str(HEALED)
    assert HEALED.gone == (VANISHING,)
    assert "no findings" in str(NOTHING).splitlines()[0]
    assert "no training step was seen" in str(NOTHING)
    assert "Neither run has any." in str(NOTHING)


# ---------------------------------------------------------------------------------------------------- json and pickles


@pytest.mark.parametrize("name", ALL)
def test_json_is_strict_and_whole(name):
    found = json.loads(ALL[name].to_json(), parse_constant=lambda word: pytest.fail(word))
    assert found["schema"] == 1
    assert [f["code"] for f in found["gone"]] == [f.code for f in ALL[name].gone]
    assert [[f["code"] for f in run["findings"]] for run in found["runs"]] == [
        [f.code for f in run] for run in (ALL[name].a, ALL[name].b)
    ]


def test_json_of_what_is_not_finite():
    layers = json.loads(USUAL.to_json())["layers"]
    assert [layer["ratio"] for layer in layers] == [1.0, 1e6, "nan", "inf"]
    assert layers[2]["values"] == [1.0, "inf"]


def test_a_pickle_has_the_charts():
    copy = pickle.loads(pickle.dumps(USUAL))
    assert copy == USUAL
    assert [panel.key for panel in copy.charts] == [panel.key for panel in USUAL.charts]
    assert COLLAPSE in copy.gone
