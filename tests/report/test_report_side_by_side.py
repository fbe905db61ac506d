"""Charts of two runs on common scales: equal axes, equal colours, every number where it was."""

from dataclasses import replace

import numpy as np
import pytest
from charts_cases import HOSTILE as HOSTILE_CHARTS
from charts_cases import heat
from comparison_cases import A, B, by_layer, course, points
from hypothesis import given
from hypothesis import strategies as st

from trimtab.report.alignment import aligned
from trimtab.report.charts import Charts, Curve
from trimtab.report.side_by_side import paired

NAMES = ("before", "after")


def both(a, b):
    return paired(Charts((a,)) if a else Charts(), Charts((b,)) if b else Charts(), NAMES, aligned).panels[0]


def test_order_and_keys():
    found = paired(A, B, NAMES, aligned)
    assert [panel.key for panel in found] == ["loss", "sharpness", "signal", "signal-by-depth"]
    assert [panel.key for panel in found.of("depth")] == ["signal-by-depth"]
    assert found["signal"].section == "flow"
    with pytest.raises(KeyError):
        found["nonsense"]


def test_notes_are_told_once_where_they_are_the_same():
    assert paired(Charts((), ("x",)), Charts((), ("x",)), NAMES, aligned).notes == ("x",)
    assert paired(Charts((), ("x",)), Charts((), ("y",)), NAMES, aligned).notes == ("before: x", "after: y")


# ---------------------------------------------------------------------------------------------------- one chart for both

STEPS = st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True).map(sorted)


@given(STEPS, STEPS)
def test_an_overlaid_curve_keeps_its_numbers_at_its_places(a, b):
    charts = [
        replace(course(n=len(x)), x=np.array(x, float), curves=(Curve("loss", np.arange(len(x)) + k + 0.5),))
        for k, x in enumerate((a, b))
    ]
    panel = both(*charts)
    (fitted,) = panel.runs
    assert fitted.chart.x.tolist() == sorted({*a, *b})
    assert [curve.name for curve in fitted.chart.curves] == ["before", "after"]
    for chart, curve, places in zip(charts, fitted.chart.curves, fitted.places, strict=True):
        assert fitted.chart.x[places].tolist() == chart.x.tolist()
        assert curve.y[places].tolist() == chart.curves[0].y.tolist()
        assert np.isnan(np.delete(curve.y, places)).all()


def test_a_common_limit_is_drawn_once_over_all_steps():
    (fitted,) = both(course(), course(n=80)).runs
    assert [curve.name for curve in fitted.chart.curves] == ["before", "after", "chance"]
    assert fitted.chart.curves[2].y.tolist() == [2.3] * 80


def test_limits_that_differ_are_told_apart():
    other = course()
    other = replace(other, curves=(other.curves[0], Curve("chance", np.full(50, 4.6), "limit")))
    (fitted,) = both(course(), other).runs
    assert [curve.name for curve in fitted.chart.curves] == ["before", "after", "before: chance", "after: chance"]


def test_runs_keep_their_colours_where_they_have_several_curves():
    several = replace(course(), curves=(Curve("raw", np.ones(50)), Curve("used", np.ones(50))))
    (fitted,) = both(several, course()).runs
    assert [curve.name for curve in fitted.chart.curves if curve.look == "line"] == [
        "before: raw",
        "after",
        "before: used",
    ]


def test_a_course_that_one_run_lacks():
    panel = both(None, course())
    assert len(panel.runs) == 1
    assert "“before” has none of it." in panel.caption


def test_an_axis_is_logarithmic_where_that_loses_nothing():
    flat, wide = (
        replace(course(), log=log, curves=(Curve("loss", y),))
        for log, y in ((False, np.ones(50)), (True, np.geomspace(1, 100, 50)))
    )
    negative = replace(flat, curves=(Curve("loss", np.linspace(-1, 1, 50)),))
    assert both(flat, wide).runs[0].chart.log
    assert not both(negative, wide).runs[0].chart.log
    assert not both(flat, flat).runs[0].chart.log
    assert (
        both(flat, replace(flat, curves=(Curve("loss", np.full(50, 100.0)),))).runs[0].chart.log
    )  # wide only together


# ---------------------------------------------------------------------------------------------------- side by side


def test_points_stand_on_one_range_of_steps_and_numbers():
    panel = both(points(), points(first=3, factor=10))
    assert panel.x_range == (0.0, 7.0)
    assert panel.y_range == (1.0, 80.0)
    assert len(panel.runs) == 2


def test_layers_stand_below_each_other():
    panel = both(by_layer(("a", "b", "c")), by_layer(("a", "n", "b", "c"), 40.0))
    one, other = (fitted.chart for fitted in panel.runs)
    assert one.names == other.names == ("a", "n", "b", "c")
    assert one.x.tolist() == other.x.tolist() == [1, 2, 3, 4]
    assert np.isnan(one.curves[0].y).tolist() == [False, True, False, False]
    assert one.curves[0].y[[0, 2, 3]].tolist() == [1.0, 0.5, 0.25]
    assert panel.y_range == (0.25 / 3, 120.0)  # with the bands


def test_maps_share_rows_and_columns():
    panel = both(heat("signal", 6, 20), heat("signal", 8, 30, 1))
    one, other = (fitted.chart for fitted in panel.runs)
    assert one.rows == other.rows == tuple(f"layer.{i}" for i in range(8))
    assert one.columns.tolist() == other.columns.tolist() == (np.arange(30) * 10.0).tolist()
    np.testing.assert_array_equal(one.values[:6, :20], heat("signal", 6, 20).values)
    assert np.isnan(one.values[6:]).all()
    assert np.isnan(one.values[:, 20:]).all()  # the run had ended
    assert "empty row" in panel.caption
    assert "the last step before" not in panel.caption


@given(STEPS, STEPS)
def test_a_step_of_the_other_run_shows_the_last_one_before(a, b):
    maps = [
        replace(heat("signal", 1, len(x)), columns=np.array(x, float), values=np.array([x], np.float32)) for x in (a, b)
    ]
    panel = both(*maps)
    for own, fitted in zip((a, b), panel.runs, strict=True):
        for step, value in zip(fitted.chart.columns, fitted.chart.values[0], strict=True):
            before = [s for s in own if s <= step]
            if not before or step > own[-1]:
                assert np.isnan(value)
            else:
                assert value == before[-1]
    inside = any(own[0] < s < own[-1] and s not in own for own, other in ((a, b), (b, a)) for s in other)
    assert ("the last step before" in panel.caption) == inside


def test_a_chart_that_one_run_lacks():
    panel = both(heat(), None)
    assert panel.runs[0] is not None
    assert panel.runs[1] is None


def test_hostile_charts_are_paired():
    for pair in ((HOSTILE_CHARTS, A), (HOSTILE_CHARTS, HOSTILE_CHARTS), (Charts(), HOSTILE_CHARTS)):
        assert {panel.key for panel in paired(*pair, NAMES, aligned)} == {c.key for charts in pair for c in charts}
