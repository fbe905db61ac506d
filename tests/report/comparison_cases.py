"""Two runs beside each other, as they come and hostile."""

import numpy as np
from charts_cases import HOSTILE as HOSTILE_CHARTS
from charts_cases import MARKUP, heat
from report_cases import CLIPPED, COLLAPSE, EVIL, HOSTILE, RUN, SLOW, VANISHING

from trimtab.report import Comparison, Diagnosis
from trimtab.report.alignment import aligned
from trimtab.report.charts import Charts, Curve, LineChart
from trimtab.report.comparison import LayerChange, Setting, sorted_out
from trimtab.report.side_by_side import paired


def course(key="loss", first=0, n=50, factor=1.0, every=1, section="training"):
    x = np.arange(first, first + n * every, every, dtype=float)
    curve, limit = Curve(key, factor * 3 * 0.97**x), Curve("chance", np.full(n, 2.3), "limit")
    return LineChart(key, section, key.capitalize(), x, (curve, limit), "training step", key, True, (), "A course.")


def points(key="sharpness", first=0, n=5, factor=1.0):
    x = np.arange(first, first + n, dtype=float)
    curve = Curve(key, factor * (x + 1), "points")
    return LineChart(key, "training", key.capitalize(), x, (curve,), "training step", key, False, (), "Points.")


def by_layer(names, factor=1.0, key="signal-by-depth"):
    n = len(names)
    y = factor * 0.5 ** np.arange(n)
    curves = (Curve("predicted", y, "line", y / 3, y * 3), Curve("measured", y * 1.3, "points"))
    x = np.arange(1.0, n + 1)
    return LineChart(
        key, "depth", "Signal by depth", x, curves, "depth", "mean square", True, tuple(names), "By depth."
    )


A = Charts((course(), points(), heat("signal", 6, 20), by_layer(("a", "b", "c"))))
B = Charts((
    course(n=80, factor=0.2),
    points(first=3, factor=10),
    heat("signal", 8, 20, 1),
    by_layer(("a", "n", "b", "c"), 40.0),
))


def compared(a, b, names=("before", "after"), charts=(A, B), settings=(), layers=()):
    gone, new, stay = sorted_out(a.findings, b.findings)
    return Comparison(
        names, a, b, gone, new, stay, settings, layers, draw=lambda: paired(charts[0], charts[1], names, aligned)
    )


LAYERS = (
    LayerChange("body.0", "body.0", "signal", "first", (0, 0), (1.0, 1.0)),
    LayerChange("body.0", "body.0", "gradient", "first", (0, 0), (1e-9, 1e-3)),
    LayerChange("body.0", "body.0", "signal", "last", (550, 550), (1.0, float("inf"))),
    LayerChange("body.2", "body.3", "gradient", "last", (550, 550), (0.0, 1e-3)),
)
SETTINGS = (Setting("optimizer", "lr", "1", "0.01"), Setting("model", "body.1", "", "LayerNorm"))
BEFORE = Diagnosis((VANISHING, COLLAPSE, CLIPPED), RUN)
AFTER = Diagnosis((SLOW, CLIPPED), RUN)
USUAL = compared(BEFORE, AFTER, settings=SETTINGS, layers=LAYERS)
HEALED = compared(Diagnosis((VANISHING,), RUN), Diagnosis((), RUN))
NOTHING = compared(Diagnosis(), Diagnosis(), charts=(Charts(), Charts()))
SPOILT = compared(
    HOSTILE,
    BEFORE,
    (EVIL, MARKUP),
    (HOSTILE_CHARTS, A),
    (Setting("model", EVIL, MARKUP, EVIL),) * 30,
    (LayerChange(EVIL, MARKUP, "signal", "first", (0, 10**9), (1e-300, 1e300)),) * 30,
)
ALL = {"usual": USUAL, "healed": HEALED, "nothing": NOTHING, "hostile": SPOILT}
