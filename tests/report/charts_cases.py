"""Charts as runs give them, and hostile ones."""

import numpy as np

from trimtab.report.charts import Charts, Curve, HeatMap, LineChart

MARKUP = '<img src=x onerror="document.title=1"><script>document.title=2</script></script>&amp;{{ 7*7 }}'
"""A name that is markup everywhere: it must be read as text."""


def line(key="loss", n=50, names=(), log=True, section="training", name="loss"):
    x = np.arange(1.0, n + 1)
    y = 3 * 0.97**x
    curves = (
        Curve(name, y, "line", y / 2, y * 2),
        Curve("measured", y * 1.3, "points"),
        Curve("limit", np.full(n, 0.5), "limit"),
    )
    return LineChart(key, section, key.capitalize(), x, curves, "training step", "unit", log, names, "How it is read.")


def heat(key="signal", rows=12, columns=40, seed=0, name="layer"):
    draw = np.random.default_rng(seed)
    values = 10 ** (draw.normal(0, 0.1, (rows, columns)) - np.linspace(0, 6, rows)[:, None])
    values = values.astype(np.float32)
    names = tuple(f"{name}.{i}" for i in range(rows))
    steps = np.arange(columns) * 10.0
    return HeatMap(key, "flow", key.capitalize(), steps, names, values, "recorded step", "module", "rms", True, "Text.")


def spoilt(key="gradient"):
    """Not seen, exactly zero, not finite, and one number."""
    values = np.array([[np.nan, 0.0, np.inf], [1.0, np.nan, 0.0]], dtype=np.float32)
    return HeatMap(key, "flow", "Spoilt", np.array([0.0, 5, 9]), ("a", "b"), values, "step", "module", "rms")


USUAL = Charts((line(), heat(), line("signal-by-depth", 12, tuple(f"body.{i}" for i in range(12)), section="depth")))
HOSTILE = Charts(
    (
        line(f"logged-{MARKUP}", name=MARKUP),
        line("signal-by-depth", 3, (MARKUP, "模块" * 40, "$a_b$"), section="depth"),
        heat(name=MARKUP),
        spoilt(),
        line("nothing", 1, section="curvature"),
        LineChart("gone", "bounds", MARKUP, np.arange(3.0), (Curve("x", np.full(3, np.nan)),), "", "", True),
        LineChart("empty", "bounds", "", np.arange(0.0), (Curve("x", np.zeros(0)),), "", ""),
    ),
    (MARKUP,),
)
