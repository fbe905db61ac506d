"""Figures of charts: they show the data, name what is special, and neither heed nor touch what a user has set of matplotlib."""

import warnings
from itertools import pairwise
from threading import Event, Thread

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.figure import Figure

from trimtab._style import COLUMN, as_bytes, log_ticks, number, own_style, verbatim
from trimtab.errors import UsageError
from trimtab.report.charts import Charts, Curve, HeatMap, LineChart
from trimtab.report.drawing import draw, save_figures
from trimtab.report.drawing.heat import BROKEN, COLOURS, ZERO
from trimtab.report.drawing.words import wrapped

NAN, INF = np.nan, np.inf
WILD = {
    "font.size": 30,
    "font.family": "monospace",
    "axes.facecolor": "black",
    "axes.grid": True,
    "axes.titlelocation": "right",
    "lines.marker": "x",
    "lines.linewidth": 9,
    "xtick.direction": "in",
    "xtick.labelsize": 30,
    "figure.dpi": 31,
    "savefig.dpi": 31,
    "savefig.bbox": "tight",
    "savefig.facecolor": "red",
    "image.cmap": "jet",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.usetex": True,
    "legend.frameon": True,
    "figure.autolayout": True,
}


def lines(
    *curves, x=None, key="loss", title="Loss", section="training", names=(), log=False, x_label="step", y_label="loss"
):
    curves = curves or (Curve("loss", np.array([3.0, 1.0, 2.0])),)
    x = np.arange(len(curves[0].y), dtype=float) if x is None else np.array(x)
    return LineChart(key, section, title, x, curves, x_label, y_label, log=log, names=names)


def heat(values, columns=None, rows=None, log=True, key="signal", title="Signal"):
    values = np.array(values, dtype=np.float32)
    columns = np.arange(values.shape[1], dtype=float) if columns is None else np.array(columns, dtype=float)
    rows = tuple(f"layer{i}" for i in range(len(values))) if rows is None else tuple(rows)
    return HeatMap(key, "flow", title, columns, rows, values, "recorded step", "module", "root mean square", log=log)


def render(axes):
    """Draw it in full, at a resolution that takes no time."""
    axes.figure.set_dpi(40)
    axes.figure.canvas.draw()
    return axes


def ticks(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def legend(axes):
    found = axes.get_legend()
    return [] if found is None else [text.get_text() for text in found.get_texts()]


# ---------------------------------------------------------------------------------------------------- lines


def test_a_figure_of_its_own_is_as_wide_as_a_column():
    axes = draw(lines())
    assert axes.figure.get_figwidth() == COLUMN == 3.3
    assert getattr(axes.figure, "number", None) is None  # pyplot knows nothing of it
    assert (axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()) == ("Loss", "step", "loss")
    assert axes.get_legend() is None, "one curve, named by the title"


def test_curves_are_the_data():
    y, last, low, high = (np.array(v) for v in ([1.0, NAN, 4.0, 8.0], [2.0, 2.0, 0.0, -1.0], [0.5] * 4, [2.0] * 4))
    bound = np.full(4, 3.0)
    chart = lines(
        Curve("predicted", y, "line", low, high),
        Curve("measured", last, "points"),
        Curve("limit", bound, "limit"),
        log=True,
    )
    axes = render(draw(chart))
    predicted, measured, limit = axes.lines
    assert np.array_equal(predicted.get_ydata(), y, equal_nan=True)
    assert np.array_equal(measured.get_ydata(), [2.0, 2.0, NAN, NAN], equal_nan=True), "no place on a logarithmic axis"
    assert np.array_equal(limit.get_ydata(), bound)
    assert (predicted.get_linestyle(), measured.get_linestyle(), limit.get_linestyle()) == ("-", "None", "--")
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].min() == 0.5
    assert corners[:, 1].max() == 2.0
    assert axes.get_yscale() == "log"
    assert legend(axes) == ["predicted", "measured", "limit"]


def test_a_lonely_point_is_seen():
    (line,) = draw(lines(Curve("loss", np.array([1.0, NAN, 2.0, 3.0, NAN, 4.0])))).lines
    assert line.get_marker() == "o"
    assert line.get_markevery() == [0, 5]
    assert draw(lines()).lines[0].get_marker() == "", "no marks where a line goes through"


def test_bands_around_points_are_bars():
    middle, low, high = np.array([1.0, 2.0]), np.array([0.5, NAN]), np.array([1.5, 3.0])
    axes = draw(lines(Curve("median", middle, "points", low, high), names=("a", "b")))
    (bar,) = axes.patches
    assert (bar.get_y(), bar.get_height()) == (0.5, 1.0)
    assert bar.get_x() + bar.get_width() / 2 == 0.0


def test_the_legend_is_clear_of_the_data():
    curves = [Curve(f"curve number {i}", np.full(3, float(i))) for i in range(9)]
    axes = draw(lines(*curves))
    axes.figure.canvas.draw()
    box, title = axes.get_legend().get_window_extent(), axes._left_title.get_window_extent()
    assert box.y0 >= axes.get_window_extent().y1
    assert title.y0 >= box.y1
    assert title.y1 <= axes.figure.bbox.y1
    assert len({line.get_color() + line.get_linestyle() for line in axes.lines}) == 9


def test_layers_by_name():
    names = tuple(f"blocks.{i}.conv" for i in range(4))
    axes = render(draw(lines(Curve("measured", np.ones(4), "points"), x=[1.0, 2.0, 3.0, 4.0], names=names)))
    assert ticks(axes.xaxis) == list(names)
    assert axes.get_xticks().tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("count", [30, 151, 1000])
def test_many_layers_are_named_as_far_as_there_is_room(count):
    names = tuple(f"a.very.long.name.of.a.module.{i}" for i in range(count))
    axes = draw(lines(Curve("measured", np.ones(count), "points"), names=names))
    axes.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.xaxis.get_ticklabels()]
    assert len(boxes) >= 10
    assert all(left.x1 <= right.x0 for left, right in pairwise(boxes))
    for at, text in zip(axes.get_xticks(), ticks(axes.xaxis), strict=True):
        assert names[round(at)].endswith(text.removeprefix("…"))


def test_a_constant_stands_beside_zero():
    axes = draw(lines(Curve("rate", np.full(5, 0.1))))
    assert axes.get_ylim() == (0.0, 0.2)


# ---------------------------------------------------------------------------------------------------- heat maps


def test_the_image_is_the_data():
    values = np.array([[1e-6, 1.0, NAN], [0.0, INF, 10.0]])
    axes = render(draw(heat(values, columns=[0, 50, 1200])))
    usual, zero, broken = axes.images
    shown = usual.get_array()
    assert np.ma.getmaskarray(shown).tolist() == [[False, False, True], [True, True, False]]
    assert shown.compressed() == pytest.approx([1e-6, 1.0, 10.0])
    assert isinstance(usual.norm, LogNorm)
    assert usual.get_clim() == pytest.approx((1e-6, 10.0))
    assert usual.get_cmap().name == COLOURS
    assert np.ma.getmaskarray(zero.get_array()).tolist() == [[True] * 3, [False, True, True]]
    assert np.ma.getmaskarray(broken.get_array()).tolist() == [[True] * 3, [True, False, True]]
    assert legend(axes) == ["zero", "not finite"]
    assert [patch.get_facecolor()[:3] for patch in axes.get_legend().get_patches()] == [to_rgb(ZERO), to_rgb(BROKEN)]
    assert (ticks(axes.xaxis), ticks(axes.yaxis)) == (["0", "50", "1,200"], ["layer0", "layer1"])
    pixels = np.asarray(axes.figure.canvas.buffer_rgba())[..., :3] / 255
    for colour in (ZERO, BROKEN):
        assert (np.abs(pixels - to_rgb(colour)).max(axis=2) < 0.01).any(), "each has cells of its own colour"
    bar = axes.figure.axes[1]
    assert bar.get_xlabel() == "root mean square"
    assert {"$10^{-6}$", "$10^{0}$"} <= set(ticks(bar.xaxis))


def test_the_first_row_is_on_top_and_every_column_equally_wide():
    (image,) = draw(heat(np.ones((3, 7)))).images
    assert tuple(image.get_extent()) == (-0.5, 6.5, 2.5, -0.5)
    assert image.origin == "upper"


def test_without_a_logarithm_zero_and_less_are_numbers():
    axes = draw(heat([[-1.0, 0.0, 3.0]], log=False))
    (image,) = axes.images
    assert type(image.norm) is Normalize
    assert image.get_clim() == (-1.0, 3.0)
    assert legend(axes) == []


def test_one_spoilt_step_of_a_thousand_is_seen():
    """More columns than pixels: each pixel is a mean, none is left out."""
    values = np.ones((300, 1000))
    values[:, 777] = INF
    axes = render(draw(heat(values)))
    pixels = np.asarray(axes.figure.canvas.buffer_rgba())[..., :3].astype(float)
    box = axes.get_window_extent()
    height = axes.figure.canvas.buffer_rgba().shape[0]
    inside = pixels[int(height - box.y1) + 3 : int(height - box.y0) - 3, int(box.x0) + 3 : int(box.x1) - 3]
    redness = inside[..., 0] - inside[..., 1]
    assert np.argmax(redness.mean(axis=0)) / redness.shape[1] == pytest.approx(0.777, abs=0.03)
    assert redness.mean(axis=0).max() > redness.mean(axis=0).min() + 20
    assert np.ptp(redness, axis=0).max() < 1, "rows are alike and not mixed with anything"


@pytest.mark.parametrize("rows", [1, 2, 29, 301])
def test_modules_are_named_without_overlap(rows):
    names = [f"model.encoder.layers.{i}.attention" for i in range(rows)]
    axes = draw(heat(np.ones((rows, 4)), rows=names))
    axes.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.yaxis.get_ticklabels()]
    assert all(lower.y1 <= upper.y0 for upper, lower in pairwise(boxes))
    assert min(box.x0 for box in boxes) >= 0
    assert len(boxes) == rows or len(boxes) > 15
    for at, text in zip(axes.get_yticks(), ticks(axes.yaxis), strict=True):
        assert names[round(at)].endswith(text.removeprefix("…"))


def test_columns_are_told_by_their_steps():
    steps = [*range(10), *range(10, 100, 10), *range(100, 5000, 50)]
    axes = draw(heat(np.ones((2, len(steps))), columns=steps))
    axes.figure.canvas.draw()
    for at, text in zip(axes.get_xticks(), ticks(axes.xaxis), strict=True):
        assert float(text.replace(",", "")) == steps[round(at)]
    boxes = [text.get_window_extent() for text in axes.xaxis.get_ticklabels()]
    assert len(boxes) >= 4
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def lab(linear):
    """CIE 1976 L*a*b* of linear RGB, white D65."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.clip(linear, 0, 1) @ np.transpose(to_xyz) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], -1)


@pytest.mark.parametrize(
    "seen",
    [
        np.eye(3),
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ],
    ids=["all colours", "no red", "no green", "no blue"],
)
def test_special_cells_are_told_from_every_other_by_the_colour_blind(seen):
    """Dichromats as simulated by Machado, Oliveira & Fernandes 2009 (severity 1); a difference of 2.3 is just seen, we ask for 10."""

    def as_seen(colours):
        colours = np.asarray(colours, dtype=float)
        linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
        return lab(linear @ np.transpose(seen))

    usual = as_seen(matplotlib.colormaps[COLOURS](np.linspace(0, 1, 256))[:, :3])
    zero, broken, blank = (as_seen(to_rgb(colour)) for colour in (ZERO, BROKEN, "white"))
    for special in (zero, broken):
        assert np.linalg.norm(usual - special, axis=1).min() > 10
        assert np.linalg.norm(special - blank) > 10
    assert np.linalg.norm(zero - broken) > 10


# ---------------------------------------------------------------------------------------------------- names


HOSTILE = [
    "$x^2$",
    "a$b",
    r"\$",
    r"$\frac{1}",
    "<img src=x>",
    "_hidden",
    "{braces}",
    "%s %d",
    "层",
    "\u202e",
    "a\nb",
    "",
    "x" * 200,
    "\x00",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_shown_letter_by_letter(name):
    chart = lines(
        Curve(name, np.ones(2)), Curve("other", np.ones(2)), names=(name, "b"), title=name, x_label=name, y_label=name
    )
    axes = render(draw(chart))
    shown = verbatim(name if len(name) <= 20 else f"…{name[-19:]}")
    assert ticks(axes.xaxis)[0] == shown
    assert legend(axes)[0].endswith(shown[-12:])
    render(draw(heat([[1.0]], rows=[name], title=name)))
    assert b"<parsererror" not in as_bytes(axes.figure, "svg")


@pytest.mark.parametrize(
    ("name", "shown"), [("$x^2$", r"\$x^2\$"), ("a$b", r"a\$b"), ("a\nb", r"a\nb"), ("é", "é"), ("x_1", "x_1")]
)
def test_what_matplotlib_is_given(name, shown):
    from matplotlib.cbook import is_math_text

    assert verbatim(name) == shown
    assert not is_math_text(verbatim(name))


def test_letters_that_the_font_lacks_are_spelt_out():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert verbatim("a\ue000") == r"a\ue000"
        assert verbatim("\t") == r"\t"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss", ["loss"]),
        ("norm of the update / norm of the weights", ["norm of the update /", "norm of the weights"]),
        ("train/some/very_long.name-of/metric", ["train/some/very_", "long.name-of/metric"]),
        ("x" * 45, ["x" * 23, "x" * 22]),
        ("one " * 40, ["one one one one one one", "one one one one one on…"]),
        ("", []),
    ],
)
def test_long_words_go_over_two_lines_evenly(text, shown):
    room = 23.5 * 8 * 0.58 / 72  # of 23 letters
    assert wrapped(text, 8, room).splitlines() == shown


def test_no_title_is_cut_off_by_wide_names():
    axes = draw(heat(np.ones((4, 3)), rows=["W" * 30] * 4, title="How large the outputs of the layers are"))
    axes.figure.canvas.draw()
    assert axes._left_title.get_window_extent().x1 <= axes.figure.bbox.x1
    assert min(text.get_window_extent().x0 for text in axes.yaxis.get_ticklabels()) >= 0
    assert axes.get_title("left").replace("\n", " ") == "How large the outputs of the layers are"


# ---------------------------------------------------------------------------------------------------- matplotlib's settings


def set_by_now():
    """The settings as they are; to read them one by one would choose a backend."""
    return dict(dict.items(matplotlib.rcParams))


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
@pytest.mark.parametrize(
    "chart", [lines(Curve("a", np.ones(3)), Curve("b", np.arange(3.0))), heat([[1.0, 0.0], [INF, 5.0]])]
)
def test_settings_of_the_user_change_nothing_and_are_not_changed(chart, form):
    plain = as_bytes(draw(chart).figure, form)
    before = set_by_now()
    with matplotlib.rc_context(WILD):
        mine = set_by_now()
        assert as_bytes(draw(chart).figure, form) == plain, "the same bytes, whatever is set, each time"
        assert set_by_now() == mine
    assert set_by_now() == before


def test_threads_leave_the_settings_as_they_were():
    """The first to come is the first to leave: with nothing but rc_context, the settings of the second would stay."""
    came, go = Event(), Event()

    def first():
        with own_style():
            came.set()
            go.wait(10)

    def second():
        with own_style():
            pass

    before = set_by_now()
    one, two = Thread(target=first), Thread(target=second)
    with matplotlib.rc_context(WILD):
        mine = set_by_now()
        one.start()
        came.wait(10)
        two.start()
        go.set()
        one.join()
        two.join()
        assert set_by_now() == mine
    assert set_by_now() == before


def test_axes_of_the_user():
    figure = Figure(figsize=(7, 3))
    left, right = figure.subplots(1, 2)
    assert draw(lines(), left, title=False) is left
    assert left.get_title("left") == ""
    assert draw(heat([[1.0, 0.0]]), right, legend=False) is right
    assert right.get_legend() is None
    assert len(figure.axes) == 2, "no bar of colours"
    with matplotlib.rc_context({"font.family": "monospace"}):
        axes = draw(lines(), Figure().subplots())
        axes.figure.canvas.draw()
        assert axes.get_xaxis().label.get_fontfamily() == ["monospace"], "in axes of the user's, fonts are the user's"


def test_axes_of_a_part_of_a_figure():
    part, _ = Figure(layout="constrained").subfigures(1, 2)
    render(draw(heat([[1.0, 0.0]]), part.subplots()))


@pytest.mark.parametrize("ax", [Figure(), "ax", 3])
def test_what_is_no_axes_is_refused(ax):
    with pytest.raises(TypeError, match=f"ax must be axes of matplotlib.*not {type(ax).__name__}"):
        draw(lines(), ax)


# ---------------------------------------------------------------------------------------------------- files


def test_files_by_the_keys_of_the_charts(tmp_path):
    charts = Charts((lines(key="loss"), heat([[1.0]], key="signal")))
    files = charts.save(tmp_path / "new" / "figures")
    assert [path.name for path in files] == ["loss.png", "loss.svg", "signal.png", "signal.svg"]
    assert all(path.read_bytes()[:4] == (b"\x89PNG" if path.suffix == ".png" else b"<?xm") for path in files)
    first = [path.read_bytes() for path in files]
    assert [path.read_bytes() for path in charts.save(tmp_path / "new" / "figures")] == first
    assert b"<dc:date" not in first[1]
    (pdf,) = charts.save(tmp_path, "pdf")[:1]
    assert pdf.read_bytes().startswith(b"%PDF")


def test_hostile_keys_stay_in_the_folder_and_apart(tmp_path):
    keys = [
        "logged-../../x",
        "logged-a/b",
        "logged-a-b",
        "LOGGED-A-B",
        "logged-a-b-2",
        "/etc/passwd",
        "..",
        "",
        "\x00",
        "é" * 300,
        ".",
        "con:x",
    ]
    folder = tmp_path / "deep" / "figures"
    files = save_figures([lines(key=key) for key in keys], folder, ["png"])
    assert len({path.name.casefold() for path in files}) == len(keys)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(files)
    assert all(path.parent == folder for path in files)
    assert [path.name for path in files[:3]] == ["logged-..-..-x.png", "logged-a-b.png", "logged-a-b-2.png"]


def test_a_link_in_the_folder_is_replaced_and_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "loss.png").symlink_to(precious)
    save_figures([lines()], tmp_path / "figures", ["png"])
    assert precious.read_text() == "mine"


def test_what_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "loss.png").mkdir(parents=True)
    for folder, why in (
        ("file", "file: File exists"),
        ("file/x", "file/x: Not a directory"),
        ("folder", "loss.png: Is a directory"),
    ):
        with pytest.raises(UsageError, match=f"cannot write .*{why}; name a folder"):
            save_figures([lines()], tmp_path / folder)
    with pytest.raises(UsageError, match=r"formats is \['gif'\]; choose from png, svg, pdf"):
        save_figures([lines()], tmp_path, ["gif"])
    with pytest.raises(UsageError, match="formats is"):
        save_figures([lines()], tmp_path, [])


def test_a_chart_by_its_key():
    charts = Charts((lines(key="loss"),))
    assert charts.draw("loss", legend=False).get_title("left") == "Loss"
    with pytest.raises(UsageError, match="no chart 'lose'; the charts of this run: loss"):
        charts.draw("lose")
    with pytest.raises(UsageError, match="the charts of this run: none"):
        Charts().draw("loss")


# ---------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.08, 2.5, ["0.1", "0.2", "0.5", "1", "2"]),
        (1.0, 10.0, ["1", "2", "5", "10"]),
        (1e-4, 1.0, [f"$10^{{{n}}}$" for n in (-4, -3, -2, -1, 0)]),
        (1e-60, 1e3, [f"$10^{{{n}}}$" for n in (-60, -40, -20, 0)]),
        (0.4, 0.6, ["0.5"]),
    ],
)
def test_ticks_of_a_logarithmic_axis(low, high, labels):
    places, texts = log_ticks(low, high)
    assert texts == labels
    assert all(low * 0.999 <= place <= high * 1.001 for place in places)


@given(st.floats(-300, 299), st.floats(0.41, 600))
def test_every_logarithmic_axis_has_a_few_ticks(low, decades):
    high = min(low + decades, 300.0)
    if high - low > 0.41:
        places, texts = log_ticks(10.0**low, 10.0**high)
        assert 1 <= len(places) == len(set(texts)) <= 7
        assert places == sorted(places)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.1 + 0.2, "0.3"), (-0.05, "−0.05"), (12000.0, "12,000"), (3e-5, "3e−5"), (1e12, "1e12")],
)
def test_numbers_of_an_axis(value, text):
    assert number(value) == text


ODD = st.one_of(
    st.floats(width=64),
    st.sampled_from([NAN, INF, -INF, 0.0, -0.0, -1.0, 5e-324, 1e-308, 1.7e308, -1.7e308, 1.0, 1e-30]),
)


@st.composite
def odd_charts(draw_):
    n = draw_(st.integers(0, 4))
    log = draw_(st.booleans())
    if draw_(st.booleans()):
        rows = draw_(st.integers(0, 3))
        with np.errstate(over="ignore"):
            values = draw_(hnp.arrays(np.float64, (rows, n), elements=ODD)).astype(np.float32)
        return heat(values.reshape(rows, n), log=log)
    numbers = hnp.arrays(np.float64, n, elements=ODD)
    curves = []
    for look in draw_(st.lists(st.sampled_from(["line", "points", "limit"]), min_size=1, max_size=3)):
        band = draw_(st.booleans())
        curves.append(
            Curve(look, draw_(numbers), look, draw_(numbers) if band else None, draw_(numbers) if band else None)
        )
    names = tuple("abcd"[:n]) if draw_(st.booleans()) else ()
    return lines(
        *curves, x=np.arange(float(n)), names=names, log=log, section=draw_(st.sampled_from(["depth", "training"]))
    )


@settings(max_examples=40, deadline=None)
@given(odd_charts())
def test_whatever_the_numbers_a_chart_is_drawn(chart):
    render(draw(chart))  # warnings are errors


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(odd_charts())
def test_whatever_the_numbers_a_chart_is_drawn_at_length(chart):
    render(draw(chart))
