"""A plain net as a table of 80 columns."""

import math
from typing import TYPE_CHECKING

import numpy as np

from trimtab._messages import say

if TYPE_CHECKING:
    from trimtab.propagation.plain import PlainNet

WIDTH, ROWS, BAR = 80, 11, 8
EIGHTHS = " ▏▎▍▌▋▊▉█"


def plain_text(net: "PlainNet") -> str:
    """The net as text: what it is, where it stands, and eleven of its layers.

    Args:
        net: What to show.

    Returns:
        Lines of at most 80 columns.
    """
    return "\n".join([*_head(net), "", *_state(net), "", *_layers(net)])


def _head(net: "PlainNet") -> list[str]:
    phases = {
        "ordered": say("ordered: gradients vanish, inputs grow alike"),
        "chaotic": say("chaotic: gradients explode, inputs part"),
        "edge": say("edge of chaos: gradients keep their size"),
    }
    left, right = f"trimtab predict {net.activation} ", f" {phases[net.phase]}"
    rule = "─" * max(WIDTH - len(left) - len(right), 3)
    what = say(
        "depth {depth}, width {width}, weight variance {weight:.4g} / fan-in, bias variance {bias:.4g}",
        depth=net.depth, width=net.width, weight=net.weight_var, bias=net.bias_var,
    )  # fmt: skip
    return [f"{left}{rule}{right}", what]


def _state(net: "PlainNet") -> list[str]:
    rows = [("χ₁", f"{net.chi_1:.4g}", say("a squared gradient changes by this factor per layer"))]
    if net.limit == math.inf:
        rows.append(("q*", "-", say("no stable fixed point ahead: the signal grows without bound")))
    elif net.scales is None:
        rows.append(("q*", "0", say("the signal dies out")))
    else:
        settles = _layers_of(net.scales.xi_q)
        rows.append(("q*", f"{net.limit:.4g}", say("stable; deviations fall by e in ξ_q = {xi}", xi=settles)))
        if net.scales.xi_q == math.inf:
            rows[-1] = ("q*", f"{net.limit:.4g}", say("neutral: the signal keeps the size that it has"))
        reach = _layers_of(net.scales.xi_c)
        rows.append(("c*", f"{net.scales.c:.4g}", say("stable; deviations fall by e in ξ_c = {xi}", xi=reach)))
        if net.scales.xi_c < math.inf:
            rows.append((
                "6 ξ_c",
                f"{6 * net.scales.xi_c:.3g}",
                say("layers to which nets train (Schoenholz et al. 2017)"),
            ))
    rows += [
        ("q", f"{point.value:.4g}", say("unstable fixed point: the signal leaves it"))
        for point in net.fixed_points
        if not point.stable
    ]
    rows += [
        ("c", f"{point.value:.4g}", say("unstable fixed point: inputs leave it"))
        for point in net.correlation_points
        if not point.stable
    ]
    rows.append(_critical(net))
    return [f"  {name:<7}{value:<9}{text}" for name, value, text in rows]


def _critical(net: "PlainNet") -> tuple[str, str, str]:
    if net.critical is None:
        return "edge", "-", say("no weight variance is critical at this bias variance")
    point = net.critical
    where = say("every q") if point.any_q else f"q* {point.q:.4g}"
    stable = "" if point.stable else say(", unstable")
    factor = point.weight_var / net.weight_var
    text = say(
        "critical weight variance, {factor:.3g} × this ({where}{stable})", factor=factor, where=where, stable=stable
    )
    return "edge", f"{point.weight_var:.4g}", text


def _layers_of(scale: float) -> str:
    return "∞" if scale == math.inf else say("{n:.3g} layers", n=scale)


def _layers(net: "PlainNet") -> list[str]:
    band = say("3 sigma")
    lines = [
        f"{say('layer'):>5}{'q':>9}  {band:<18}{say('corr.'):>7}{say('gradient'):>10}  {band:<18}{say('log scale'):>9}".rstrip()
    ]
    rows = sorted({round(k) for k in np.linspace(0, net.depth - 1, min(ROWS, net.depth))})
    logs = net.course.log_gradient
    low, high = float(logs.min()), float(logs.max())
    for k in rows:
        share = (float(logs[k]) - low) / (high - low) if high - low > 0.05 else 1.0
        lines.append(
            f"{k + 1:>5}{_value(math.log(net.course.q[k])):>9}  "
            f"{_range(_log(net.q_low[k]), _log(net.q_high[k])):<18}{_near_zero(net.course.c[k]):>7.3f}"
            f"{_value(float(logs[k])):>10}  "
            f"{_range(net.log_gradient_low[k], net.log_gradient_high[k]) if k + 1 < net.depth else '':<18}{_bar(share)}".rstrip()
        )
    return [*lines, say("q before φ; squared gradient over the last layer's; bands: chance at this width")]


def _near_zero(value: float) -> float:
    return 0.0 if abs(value) < 5e-4 else float(value)  # or -0.000


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


def _range(low: float, high: float) -> str:
    return f"{_value(low, 2)} to {_value(high, 2)}"


def _value(log: float, digits: int = 3) -> str:
    """A positive number of this natural log, which may be too large for a float."""
    if not math.isfinite(log):
        return "0" if log < 0.0 else "∞"
    if math.log(1e-3) <= log < math.log(999.5):
        value = math.exp(log)
        return f"{value:.0f}" if value >= 100.0 else f"{value:#.{digits}g}".rstrip(".")
    exponent = math.floor(log / math.log(10.0))
    mantissa = f"{math.exp(log - exponent * math.log(10.0)):.{digits - 2}f}"
    if mantissa.startswith("10"):
        mantissa, exponent = f"{1:.{digits - 2}f}", exponent + 1
    return f"{mantissa}e{exponent:+03d}"


def _bar(share: float) -> str:
    whole, rest = divmod(round(share * BAR * 8), 8)
    return ("█" * whole + EIGHTHS[rest].strip()) or "▏"
