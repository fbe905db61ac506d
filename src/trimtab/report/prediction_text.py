"""A prediction as a table of 80 columns."""

import math

from trimtab._messages import say
from trimtab.report.prediction import Prediction, Site
from trimtab.report.words import clean, shortened

WIDTH = 80
NAME = 22


def render_prediction(prediction: Prediction) -> str:
    """The prediction as text: a row for each site, then what no rule covered.

    Args:
        prediction: What to render.

    Returns:
        The table, no line wider than 80 columns, ending in one line end.
    """
    lines = [_head(prediction), ""]
    group = f"{'':{NAME + 5}}{say('signal'):^26}{say('gradient'):^26}"
    columns = f"{say('predicted'):>10}{say('measured'):>9}{say('within'):>7}"
    lines += [group.rstrip(), f"{'':>4} {say('site'):<{NAME}}{columns}{columns}".rstrip()]
    lines += [_row(site) for site in prediction.sites]
    lines.append("")
    lines += _attentions(prediction)
    lines += _feet(prediction)
    return "\n".join(lines) + "\n"


def _head(prediction: Prediction) -> str:
    odd = len(prediction.odd)
    right = say("{n} of {all} sites odd", n=odd, all=len(prediction.sites)) if odd else say("as predicted")
    left = f"trimtab predict {shortened(clean(prediction.name), 40)} "
    return f"{left}{'─' * max(WIDTH - len(left) - len(right) - 1, 3)} {right}"


def _row(site: Site) -> str:
    mark = {"": " ", "prediction": "P", "measurement": "M"}[site.odd]
    name = shortened(clean(site.name), NAME - 1)
    signal = _moments(site.forward, site.forward_measured, site.forward_tolerance)
    gradient = _moments(site.backward, site.backward_measured, site.backward_tolerance)
    covered = mark if site.covered or site.odd else "~"
    return f"{site.depth:>3}{covered} {name:<{NAME}}{signal}{gradient}".rstrip()


def _moments(predicted: float, measured: float, tolerance: float) -> str:
    within = "" if not math.isfinite(tolerance) else f"×{tolerance:.2f}" if tolerance < 100 else f"×{tolerance:.0e}"
    return f"{_short(predicted):>10}{_short(measured):>9}{within.replace('e+0', 'e').replace('e+', 'e'):>7}"


def _attentions(prediction: Prediction) -> list[str]:
    """A row for each softmax over scores."""
    if not prediction.attention:
        return []
    columns = f"{say('predicted'):>10}{say('measured'):>9}{say('within'):>7}"
    head = f"{say('scale'):>9}{columns}{say('squares'):>9}{say('uniform'):>8}"
    lines = [
        f"{'':>33}{say('variance of the logits'):^32}{say('of the weights'):>14}".rstrip(),
        f"  {say('attention before'):<20}{say('d'):>5}{head}",
    ]
    for item in prediction.attention:
        logits = _moments(item.variance, item.variance_measured, item.variance_tolerance)
        shown = item.squares_measured if math.isfinite(item.squares_measured) else item.squares
        name = shortened(clean(item.name), 19)
        weights = f"{_short(shown):>9}{_short(item.squares_uniform):>8}"
        lines.append(f"  {name:<20}{item.dimension:>5}{_short(item.scale):>9}{logits}{weights}")
    return [*lines, ""]


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.3g}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"


def _feet(prediction: Prediction) -> list[str]:
    covered = say(
        "{share:.0f} % of the sites are covered by rules ({n} operations).",
        share=100 * prediction.coverage,
        n=prediction.operations,
    )
    lines = [covered]
    kinds = {site.odd for site in prediction.sites}
    if "prediction" in kinds:
        lines.append(say("P: the prediction itself is bad (initialization or architecture)."))
    if "measurement" in kinds:
        lines.append(say("M: the measurement leaves the prediction (wiring, dead units, misuse)."))
    if prediction.uncovered:
        lines.append(say("~: a measured value was passed on, for want of a rule:"))
        lines += [f"   {count} × {clean(name)}" for name, count in sorted(prediction.uncovered.items())]
    return [*lines, *(clean(note) for note in prediction.notes)]
