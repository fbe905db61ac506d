"""Numbers, places and foreign text as a reader wants them: short, plain and harmless."""

import math
import re
import unicodedata
from collections.abc import Sequence

from trimtab._messages import say
from trimtab.report.finding import Evidence

_PLAIN = str.maketrans({
    "×": "x", "→": "->", "…": "...", "·": "-", "–": "-", "—": "-", "−": "-", "’": "'", "‘": "'", "“": '"', "”": '"',
    "±": "+-", "≈": "~", "≤": "<=", "≥": ">=", "≠": "!=", "√": "sqrt", "∞": "inf", "²": "^2", "³": "^3", "½": "1/2",
    "¼": "1/4", "‖": "|", "∝": "~", "Σ": "sum", "Π": "prod", "∑": "sum", "∏": "prod", "∂": "d", "∇": "grad ",
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "Δ": "Delta", "ε": "eps", "η": "eta", "θ": "theta",
    "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau",
    "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "─": "-", "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": "", "▎": "", "▏": "", "₁": "_1", "\N{NO-BREAK SPACE}": " ",
})  # fmt: skip

_STEERING = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)")


def plain(text: str) -> str:
    """Return the text in ASCII: Greek letters and signs spelled out, anything else as its escape."""
    return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")


def clean(text: str, *, unicode: bool = True, lines: bool = False) -> str:
    """Text of unknown origin without control characters; tabs and line ends become spaces.

    Args:
        text: A module name, a path, a summary.
        unicode: Whether the reader's terminal can show more than ASCII.
        lines: Keep the line ends, and tabs as four spaces (for code).

    Returns:
        Text that can neither steer a terminal nor reorder what stands beside it.
    """
    text = _STEERING.sub("", text).replace("\r\n", "\n")
    text = text.replace("\t", "    ") if lines else " ".join(text.split())
    kept = (c for c in text if (lines and c == "\n") or unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Zl", "Zp"})
    text = "".join(kept)
    return text if unicode else plain(text)


def number(value: float | str) -> str:
    """Return three significant digits; whole numbers whole; words where there is no number.

    >>> number(0.16667), number(2.3), number(1.6666e-8), number(1234.5), number(64)
    ('0.167', '2.30', '1.67e-08', '1230', '64')
    """
    if isinstance(value, str):
        return value
    value = float(value)
    if math.isnan(value):
        return say("not a number")
    if math.isinf(value):
        return say("infinity") if value > 0 else say("minus infinity")
    if value.is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    scientific = f"{value:.2e}"
    rounded = float(scientific)
    if 1e-3 <= abs(rounded) < 1e5:
        return f"{rounded:#.3g}".rstrip(".") if abs(rounded) < 1e3 else f"{rounded:.0f}"
    return scientific


def short(value: float | str) -> str:
    """Return the number as `number` does, without zeros that tell nothing: "0.05"."""
    text = number(value)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text and not isinstance(value, str) else text


def share(value: float) -> str:
    """Return a share as a percentage, "3.10 %"."""
    return f"{number(value * 100)} %" if math.isfinite(value) else number(value)


def quantity(value: float | str, unit: str) -> str:
    """Return the number with its unit: "×0.167" for a ratio, "12.3 ms", "0.167"."""
    return _with_unit(number(value), value, unit)


def _with_unit(text: str, value: float | str, unit: str) -> str:
    if not unit or isinstance(value, str) or not math.isfinite(value):
        return text
    return f"×{text}" if unit == "x" else f"{text} {unit}"


def expectation(evidence: Evidence) -> str:
    """Return what was expected, with its tolerance; "" where nothing was."""
    if evidence.expected is None:
        return ""
    expected = short(evidence.expected)
    if isinstance(evidence.expected, str) or not math.isfinite(evidence.expected) or evidence.tolerance is None:
        return _with_unit(expected, evidence.expected, evidence.unit)
    tolerance = short(evidence.tolerance)
    if evidence.unit == "x":
        return say("×{expected} (within ×{tolerance})", expected=expected, tolerance=tolerance)
    return f"{expected} ± {tolerance} {evidence.unit}".rstrip()


def measurement(evidence: Evidence) -> str:
    """Return what was measured and, where the evidence says so, at which place and step."""
    if evidence.site and evidence.step is not None:
        return say("{name} ({site}, step {step})", name=evidence.name, site=evidence.site, step=evidence.step)
    if evidence.site:
        return f"{evidence.name} ({evidence.site})"
    if evidence.step is not None:
        return say("{name} (step {step})", name=evidence.name, step=evidence.step)
    return evidence.name


def shortened(text: str, most: int) -> str:
    """Return the text with its middle cut out where it is longer than `most` characters."""
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}…{text[head + 1 - most :]}"


def places(where: Sequence[str], most: int = 3) -> str:
    """Return the places in one phrase: "a, b", or "body.0 … body.18 (10 places)" for a long list."""
    names = [shortened(clean(name), 60) for name in where]
    if len(names) <= most:
        return ", ".join(names)
    return say("{first} … {last} ({count} places)", first=names[0], last=names[-1], count=len(names))


def in_words(code: str) -> str:
    """Return a code as a phrase: "vanishing gradient"."""
    return code.replace("-", " ")
