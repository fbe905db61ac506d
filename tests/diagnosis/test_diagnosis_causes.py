"""The table of causes, and the order of reading."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trimtab.diagnosis.causes import EXPLAINS, LATER, RANK, explain
from trimtab.report import SEVERITIES, Finding, codes


def said(code, severity="error", begins=0):
    return Finding(code, severity, ("here",), f"{code}, {severity}, from {begins}"), begins


def explained(*found):
    """Codes in the order of reading, with their causes."""
    return [(f.code, f.causes) for f in explain(found)]


def test_every_code_has_a_rank():
    assert set(RANK) == set(codes())
    assert len(RANK) == len(set(RANK))
    assert set(EXPLAINS) <= set(RANK)
    assert all(effects <= set(RANK) for effects in EXPLAINS.values())
    assert all({cause, effect} <= set(RANK) for cause, effect in LATER)
    assert all(code not in effects for code, effects in EXPLAINS.items())


def test_nothing():
    assert explain([]) == ()


def test_a_symptom_is_folded_under_its_root():
    assert explained(said("learning-rate-too-low"), said("vanishing-gradient")) == [
        ("vanishing-gradient", ()),
        ("learning-rate-too-low", ("vanishing-gradient",)),
    ]


def test_roots_first_graver_first_origin_first():
    order = explained(
        said("clipping-dominates", "warning"),
        said("double-softmax"),
        said("missing-zero-grad", "warning"),
        said("nonfinite-loss", begins=9),
        said("missing-from-optimizer", "note"),
        said("symmetric-init"),
    )
    assert [code for code, _ in order] == [
        "double-softmax",
        "symmetric-init",
        "nonfinite-loss",
        "missing-zero-grad",
        "clipping-dominates",
        "missing-from-optimizer",
    ] or order[2] == ("nonfinite-loss", ("missing-zero-grad",))


def test_two_roots_keep_their_own_symptoms_behind_them():
    order = explained(
        said("unscaled-targets"),
        said("nonfinite-loss", begins=4),
        said("frozen-parameters"),
        said("vanishing-gradient"),
    )
    assert order == [
        ("frozen-parameters", ()),
        ("vanishing-gradient", ("frozen-parameters",)),
        ("unscaled-targets", ()),
        ("nonfinite-loss", ("unscaled-targets",)),
    ]


def test_nonfinite_data_explains_all_that_comes_after_it():
    everything = [said(code, begins=3) for code in RANK]
    found = explained(*everything)
    assert found[0] == ("nonfinite-data", ())
    assert all("nonfinite-data" in causes for _, causes in found[1:])


def test_an_effect_does_not_come_before_its_cause():
    assert explained(said("nonfinite-data", begins=50), said("dead-units", begins=0)) == [
        ("nonfinite-data", ()),
        ("dead-units", ()),
    ]
    assert explained(said("nonfinite-data", begins=50), said("dead-units", begins=50))[1] == (
        "dead-units",
        ("nonfinite-data",),
    )


@pytest.mark.parametrize(("cause", "effect"), sorted(LATER - {("learning-rate-too-high", "exploding-gradient")}))
def test_later_effects(cause, effect):
    """Units that die in training died of the large steps; units that were dead at the start did not."""
    assert dict(explained(said(cause, begins=3), said(effect, begins=9)))[effect] == (cause,)
    assert dict(explained(said(cause, begins=3), said(effect, begins=3)))[effect] == ()
    assert dict(explained(said(cause, begins=3), said(effect, begins=0)))[effect] == ()


def test_a_divergence_explains_a_later_explosion_and_an_explosion_at_the_start_the_divergence():
    assert explained(said("learning-rate-too-high", begins=1), said("exploding-gradient", begins=0)) == [
        ("exploding-gradient", ()),
        ("learning-rate-too-high", ("exploding-gradient",)),
    ]


def test_a_note_explains_nothing_and_needs_no_explanation():
    assert explained(said("vanishing-gradient", "note"), said("learning-rate-too-low")) == [
        ("learning-rate-too-low", ()),
        ("vanishing-gradient", ()),
    ]
    assert explained(said("vanishing-gradient"), said("learning-rate-too-low", "note"))[1] == (
        "learning-rate-too-low",
        (),
    )


def test_a_warning_does_not_explain_an_error():
    assert explained(said("dead-units", "warning"), said("vanishing-gradient")) == [
        ("vanishing-gradient", ()),
        ("dead-units", ()),
    ]
    assert explained(said("dead-units"), said("vanishing-gradient", "warning"))[1] == (
        "vanishing-gradient",
        ("dead-units",),
    )


def test_two_findings_that_explain_each_other_keep_the_one_that_ranks_first():
    assert "frozen-parameters" in EXPLAINS["signal-collapse"]
    assert "signal-collapse" in EXPLAINS["frozen-parameters"]
    assert explained(said("signal-collapse"), said("frozen-parameters")) == [
        ("frozen-parameters", ()),
        ("signal-collapse", ("frozen-parameters",)),
    ]


def test_two_findings_of_one_code_do_not_explain_each_other():
    found = explained(said("dead-units"), said("dead-units", "warning", 5))
    assert found == [("dead-units", ()), ("dead-units", ())]


FOUND = st.tuples(st.sampled_from(RANK), st.sampled_from(SEVERITIES), st.integers(0, 3)).map(lambda t: said(*t))


def causes_of(found):
    """Which finding names which, as pairs of positions."""
    return {i: [j for j, g in enumerate(found) if g.code in f.causes] for i, f in enumerate(found)}


def reaches_itself(graph, start):
    seen, queue = set(), list(graph[start])
    while queue:
        at = queue.pop()
        if at == start:
            return True
        if at not in seen:
            seen.add(at)
            queue += graph[at]
    return False


@example([
    said("missing-from-optimizer"),
    said("stale-running-stats", begins=1),
    said("excessive-weight-decay", begins=1),
    said("signal-collapse"),
])
@given(st.lists(FOUND, max_size=12, unique_by=lambda entry: entry[0].code))
def test_any_set_of_findings_comes_out_complete_roots_first_without_cycles(found):
    ordered = explain(found)
    assert sorted(f.summary for f in ordered) == sorted(f.summary for f, _ in found)
    graph = causes_of(ordered)
    for i, finding in enumerate(ordered):
        assert set(finding.causes) <= {f.code for f in ordered}
        assert not reaches_itself(graph, i), f"{finding.code} explains itself"
        if finding.severity == "note":
            assert not finding.causes
            assert all(f.severity == "note" for f in ordered[i:])
        if finding.causes:  # behind the first of what explains it
            assert any(j < i for j in graph[i])
    if any(f.severity != "note" for f in ordered):
        assert ordered[0].severity != "note"
        assert not ordered[0].causes


@given(st.lists(FOUND, max_size=12))
def test_also_where_a_code_is_found_at_several_places(found):
    ordered = explain(found)
    assert sorted(f.summary for f in ordered) == sorted(f.summary for f, _ in found)
    loud = [f for f in ordered if f.severity != "note"]
    assert ordered[: len(loud)] == tuple(loud)
    if loud:
        assert not loud[0].causes


@given(st.lists(FOUND, max_size=8, unique_by=lambda entry: entry[0].code), st.randoms())
def test_the_order_in_which_the_rules_spoke_does_not_matter(found, random):
    shuffled = random.sample(found, len(found))
    one, other = explain(found), explain(shuffled)
    assert [f.summary for f in one] == [f.summary for f in other]
    assert [set(f.causes) for f in one] == [set(f.causes) for f in other]
