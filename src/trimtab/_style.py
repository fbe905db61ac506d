"""How every figure looks: without global state, in colours that the colour-blind tell apart, readable at the width of a column."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from io import BytesIO
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK = COLOURS = (  # Okabe and Ito
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
INK, GREY, FAINT = "#222222", "#888888", "#D9D9D9"
COLUMN = 3.3
"""Inches of a paper's column."""
DPI = 300
TITLE, LABEL, SMALL, TICK = 9, 8, 7.5, 7
"""Points of letters: a title, the label of an axis, a legend, a tick."""
FORMATS = {"png": None, "svg": "Date", "pdf": "CreationDate"}
"""Forms of a file, and what each calls the day on which it was written."""

FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Microsoft YaHei", "PingFang SC", "Malgun Gothic")
"""The first comes with matplotlib; the others lend it the letters it lacks where they are installed."""


_alone = RLock()
"""Settings are of the process: two threads that leave in another order than they came would leave ours behind."""


@contextmanager
def own_style() -> Iterator[None]:
    """Matplotlib as it comes, whatever the user has set; afterwards all is as it was."""
    import matplotlib
    from matplotlib.font_manager import fontManager

    there = set(fontManager.get_font_names())
    settings: dict[Any, Any] = {
        name: value
        for name, value in matplotlib.rcParamsDefault.items()
        if not name.startswith(("backend", "interactive", "toolbar", "keymap", "timezone", "webagg", "tk", "macosx"))
    }
    settings["font.family"] = [name for name in FONTS if name in there]
    settings["svg.hashsalt"] = "trimtab"
    with _alone, matplotlib.rc_context(settings):
        yield


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """The function, with what a user has set of matplotlib out of the way."""

    @wraps(draw)
    def inner(*arguments: P.args, **named: P.kwargs) -> T:
        with own_style():
            return draw(*arguments, **named)

    return inner


def empty(width: float, height: float) -> "Figure":
    """A figure of so many inches that belongs to nobody."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def quiet(axes: "Axes") -> None:
    """No frame above and to the right, small grey ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=GREY, linewidth=0.8)
    axes.tick_params(labelsize=TICK, color=GREY, labelcolor=INK, length=3, width=0.8)


def ruled(axes: "Axes", axis: str = "y") -> None:
    """A faint grid behind what is drawn."""
    axes.set_axisbelow(True)
    axes.grid(axis=axis, color=FAINT, linewidth=0.6)  # type: ignore[arg-type]


def roomy(axes: "Axes", least: float = 100.0) -> None:
    """A logarithmic axis of two decades or more, so that a flat line looks flat; few ticks."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < least * low:
        middle = low**0.5 * high**0.5
        low, high = axes.set_ylim(middle / least**0.5, middle * least**0.5)
    axes.set_yticks(*log_ticks(low, high))
    axes.yaxis.minorticks_off()


def log_ticks(low: float, high: float, most: int = 5) -> tuple[list[float], list[str]]:
    """Ticks of a logarithmic axis: 1, 2 and 5 of each decade where it spans few, else powers of ten an even step apart.

    Args:
        low: Where the axis begins, above 0.
        high: Where it ends.
        most: Ticks, at most; one more may fit in.

    Returns:
        The places and their labels.
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first < 3:
        places = [float(f"{m}e{n}") for n in range(first - 1, last + 1) for m in (1, 2, 5)]
        places = [place for place in places if low * (1 - 1e-9) <= place <= high * (1 + 1e-9)]
        if len(places) <= most:
            return places, [number(place) for place in places]
    step = next(s for s in (1, 2, 3, 5, 10, 20, 50, 100, 200) if (last - first) // s <= most)
    powers = range(-(-first // step) * step, last + 1, step)
    return [float(f"1e{n}") for n in powers], [f"$10^{{{n}}}$" for n in powers]


def number(value: float, _: object = None) -> str:
    """A number of an axis: 12,000 or 3e−5."""
    if value == 0 or 1e-4 <= abs(value) < 1e7:
        return f"{value:,.10g}".replace("-", "−")
    mantissa, _, exponent = f"{value:.10g}".partition("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−") if exponent else mantissa.replace("-", "−")


def verbatim(text: str) -> str:
    r"""Text that matplotlib shows letter by letter: no formula, no line of its own; "\u2603" for what its font cannot show."""
    known = _fonts(tuple(_families()))
    shown = (c if c.isprintable() and _has(c, known) else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(shown).replace("$", r"\$")


def shortened(text: str, most: int) -> str:
    """The end of a long name, which tells it apart from its neighbours."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def saved(figure: "Figure", path: str | Path | None) -> "Figure":
    """The figure, written where a path is given: as SVG or PDF where the name ends so, else as PNG."""
    if path is not None:
        form = Path(path).suffix.lower().lstrip(".")
        Path(path).write_bytes(as_bytes(figure, form if form in FORMATS else "png"))
    return figure


def as_bytes(figure: "Figure", form: str) -> bytes:
    """A file's content, the same each time: no date, no random identifiers."""
    stream = BytesIO()
    date = FORMATS[form]
    with own_style():
        figure.savefig(stream, format=form, dpi=DPI, metadata={date: None} if date else {})
    return stream.getvalue()


def _families() -> Iterator[str]:
    """The fonts in force, the best first."""
    import matplotlib

    settings: dict[str, Any] = matplotlib.rcParams  # type: ignore[assignment]
    for family in settings["font.family"]:
        if family in {"serif", "sans-serif", "monospace", "cursive", "fantasy"}:
            yield from settings[f"font.{family}"]
        else:
            yield family


@lru_cache(maxsize=16)
def _fonts(families: tuple[str, ...]) -> tuple[str, ...]:
    from matplotlib.font_manager import findfont, fontManager

    there = set(fontManager.get_font_names())
    found = [findfont(name) for name in families if name in there]
    return tuple(found) or (findfont(FONTS[0]),)


@lru_cache(maxsize=4096)
def _has(letter: str, fonts: tuple[str, ...]) -> bool:
    from matplotlib.font_manager import get_font

    return any(get_font(path).get_char_index(ord(letter)) for path in fonts)
