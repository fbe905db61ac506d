"""The live panel: what it says, that it fits any window, and that no name can break it."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.style import Style
from torch import nn

from trimtab.recording import Recorder, Store
from trimtab.report import Finding
from trimtab.runner.gauges import BUCKETS, Course, Flow, Gauges, Reading, odd
from trimtab.runner.panel import BARS, Panel

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = ("\x1b[31mred", "a\r\nb", "\x1b]0;title\x07t", "红色" * 9, "x" * 200, "", "‮back", "<b>[bold]")


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for kept in (
        Style.parse,
        Style._add,
    ):  # rich keeps the codes of a style as it first wrote them, for whatever terminal that was
        kept.cache_clear()


def flow(signal, names=None, gradient=None, update=None):
    names = names or [str(i) for i in range(len(signal))]
    return Flow(7, tuple(names), {"signal": signal, "gradient": gradient or signal, "update": update or signal})


def reading(**values):
    usual = {"loss": 0.5, "losses": [1.0, 0.7, 0.5], "rate": 0.05, "speed": 95.2, "watching": 0.021, "recorded": 34}
    return Reading(412, **{**usual, "seconds": 83.0, **values})


def shown(reading, findings=(), columns=100, rows=30, **more):
    lines = Panel("digits", **more).lines(reading, findings, columns, rows)
    return [COLOURS.sub("", line) for line in lines]


def row(lines, label):
    return next(line for line in lines if line.startswith(f" {label} "))


def finding(code="dead-units", severity="error", where=("2",), summary="They give nothing."):
    return Finding(code, severity, where, summary)


def test_what_it_says():
    lines = shown(reading(flow=flow([1.0, 0.1, 0.01, 1.0])), [finding()])
    assert "step 412 · 95.2 steps/s · rate 0.05 · watching 2.10 % · 34 recorded · 1:23" in lines[0]
    assert row(lines, "loss").endswith("  0.500")
    assert row(lines, "signal").endswith("0.0100 … 1")
    assert row(lines, "layer").split() == ["layer", "0", "1", "2", "3", "at", "step", "7"]
    assert lines[-1].startswith(" × dead-units  2  They give nothing.")


def test_a_decade_is_two_heights_and_the_largest_is_the_highest():
    sizes = [10.0**-k for k in (0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5)]
    strip = row(shown(reading(flow=flow(sizes))), "signal")
    assert [cell[0] for cell in strip.split()[1:9]] == list(reversed(BARS[0]))
    assert row(shown(reading(flow=flow([s * 1e-6 for s in sizes]))), "signal").split()[1:9] == strip.split()[1:9]


def test_zero_and_what_is_not_finite_are_no_heights():
    strip = row(shown(reading(flow=flow([1.0, 0.0, math.nan, None, 1.0]))), "signal")
    assert strip.split()[1:5] == ["█" * 7, "0" * 7, "×" * 7, "█" * 7]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number(loss):
    line = row(shown(reading(loss=loss, losses=[1.0, 0.5, math.nan])), "loss")
    assert "×" in line
    assert line.rstrip().endswith("not a number" if math.isnan(loss) else "infinity")


def test_the_course_of_the_loss():
    falling = row(shown(reading(losses=list(np.geomspace(100, 0.01, 8)))), "loss").split()[1]
    assert falling == BARS[0][::-1]
    still = row(shown(reading(losses=[2.303, 2.301, 2.304, 2.302])), "loss").split()[1]
    assert len(set(still)) == 1
    below_zero = row(shown(reading(losses=[-1.0, -2.0, -3.0])), "loss").split()[1]
    assert (below_zero[0], below_zero[-1]) == ("█", "▁")
    assert row(shown(reading(losses=[-1.7e308, 0.0, 1.7e308])), "loss").split()[1] == "▁▅█"
    assert row(shown(reading(losses=[math.nan] * 3, flow=flow([5e-324, 1.7e308]))), "loss").split()[1] == "×××"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1.0, 1.0, 1e-3, 1.0], [2]),
        ([1e3, 1.0, 1.0, 1.0], [0]),
        ([10.0**-k for k in range(12)], []),  # a slope has no layer that stands out
        ([1.0, 1.0, 1e-4, 1e-4], []),  # nor has a step
        ([1.0, 0.0, 1.0], [1]),
        ([1.0, math.inf, None, 1.0], [1]),
        ([1.7e308, 5e-324, 1.7e308], [1]),
        ([1.0, 1e-9], []),  # of two, which one?
    ],
)
def test_which_layers_stand_out(sizes, expected):
    assert [i for i, stands in enumerate(odd(sizes)) if stands] == expected


def test_layers_that_stand_out_are_marked_and_named():
    lines = shown(reading(flow=flow([1.0, 1.0, 1e-3, 1.0], names=["in", "a", "b", "out"])))
    mark = row(lines, "odd")
    assert mark.index("^") == row(lines, "layer").index("b")
    assert mark.split()[1:] == ["^", "b"]
    healthy = shown(reading(flow=flow([1.0, 1.0, 1.0])), [finding(where=("1.weight",))])
    assert row(healthy, "odd").split() == ["odd", "^", "1"]


def test_the_row_of_marks_stays_once_it_is_there():
    panel = Panel("n")
    ill, well = (reading(flow=flow(sizes)) for sizes in ([1.0, 0.0], [1.0, 1.0]))
    heights = [len(panel.lines(one, (), 100, 30)) for one in (well, ill, well)]
    assert heights[1] == heights[2] == heights[0] + 1


def test_names_lose_what_all_have_in_common_and_stand_where_there_is_room():
    names = [f"model.layers.{i}.attention.out" for i in range(40)]
    lines = shown(reading(flow=flow([1.0] * 40, names=names)))
    assert row(lines, "layer").split()[1] == "0.attention.out"
    assert len(row(lines, "signal").split()[1]) == 40


def test_more_layers_than_cells_share_them_and_none_that_stands_out_is_lost():
    sizes = [1.0] * 500
    sizes[333] = 0.0
    lines = shown(reading(flow=flow(sizes)))
    assert row(lines, "signal").split()[1].count("0") == 1
    assert "333" in row(lines, "odd")


def test_many_findings_leave_the_last_four():
    lines = shown(reading(), [finding(code=f"code-{i}", severity="warning") for i in range(9)])
    assert [line.split()[:2] for line in lines[-4:]] == [["!", f"code-{i}"] for i in range(5, 9)]


SIZES = [(20, 4), (20, 5), (21, 8), (39, 10), (63, 12), (64, 12), (65, 24), (80, 24), (100, 30), (300, 90)]


@pytest.mark.parametrize(("columns", "rows"), SIZES)
@pytest.mark.parametrize("unicode", [True, False])
def test_it_fits_every_window_with_any_names(columns, rows, unicode):
    sizes = [1.0, math.nan, 0.0, 1e-12, None, 3.0, 1e9, 1.0]
    for count in (1, 3, 8, 200):
        names = [name for name, _ in zip(itertools.cycle(HOSTILE), range(count), strict=False)]
        measured = flow([sizes[i % 8] for i in range(count)], names=names)
        findings = [finding(where=HOSTILE, summary="\x1b[2Jgone\n" * 40)] * 3
        panel = Panel("\x1b[2J" + "n" * 300, unicode=unicode)
        lines = panel.lines(reading(flow=measured, loss=-1.234e-300), findings, columns, rows)
        assert 1 <= len(lines) <= rows // 2
        for line in lines:
            plain = COLOURS.sub("", line)
            assert cell_len(plain) < columns
            assert plain.isprintable()
            assert unicode or plain.isascii()


@pytest.mark.parametrize(("columns", "rows"), [(19, 30), (100, 3), (0, 0)])
def test_where_there_is_no_room_there_is_none(columns, rows):
    assert shown(reading(), columns=columns, rows=rows) == []


def test_colours_only_where_they_are_wanted(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    told = reading(flow=flow([1.0, 1e-3]))
    assert "\x1b[38;5;208m" in "".join(Panel("n").lines(told, (), 100, 30))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[(?:[0-9;]*;)?[34][0-9]", "".join(Panel("n").lines(told, (), 100, 30)))


# ------------------------------------------------------------------------------------------------ what is read


@pytest.mark.parametrize("pieces", [[7] * 300, [1, 2000, 3], [1] * 50])
def test_the_course_is_the_mean_of_equally_many(pieces):
    values = list(np.random.default_rng(0).normal(size=sum(pieces)))
    course = Course()
    left = iter(values)
    for piece in pieces:
        course.add(list(itertools.islice(left, piece)))
    each = course.each
    assert len(course.means) <= BUCKETS
    assert each == 1 or len(course.means) > BUCKETS // 2 - 1
    expected = [np.mean(values[i : i + each]) for i in range(0, len(values), each)]
    assert course.points == pytest.approx(expected, rel=1e-12)


def test_the_course_leaves_out_what_is_not_finite():
    course = Course(each=2)
    course.add([1.0, math.nan, math.inf, math.nan, 3.0, 5.0])
    assert course.points[0] == 1.0
    assert math.isnan(course.points[1])
    assert course.points[2] == 4.0


class Ordinary(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 2)  # first in the list, last in the pass
        self.first = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).tanh())


def by_hand(model, x, rate):
    """The three quantities of each layer in float64, from autograd and nothing else."""
    model = model.double()
    kept = {}
    for name in ("first", "last"):

        def keep(module, args, output, name=name):
            output.retain_grad()
            kept[name] = output

        getattr(model, name).register_forward_hook(keep)
    model(x.double()).square().mean().backward()
    size = {}
    for name, output in kept.items():
        weight = getattr(model, name).weight
        rms = [t.detach().square().mean().sqrt().item() for t in (output, output.grad, rate * weight.grad, weight)]
        size[name] = (rms[0], rms[1], rms[2] / rms[3])
    return size


def test_gauges_read_what_autograd_gives_in_the_order_of_the_pass():
    model, x, rate = Ordinary(), torch.randn(5, 3), 0.25
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    twin = Ordinary()
    twin.load_state_dict(model.state_dict())
    expected = by_hand(twin, x, rate)
    recorder = Recorder(Store())
    recorder.add_model(model)
    recorder.add_optimizer(optimizer)
    gauges = Gauges(recorder)
    read = []
    recorder.on_step = lambda step: (gauges.step_ended(step), read.append(gauges.read(step)))
    recorder.start()
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    recorder.close()
    assert read[0].flow is None  # the step is written when the next one begins
    assert read[1].flow.names == ("first", "last")
    for i, name in enumerate(read[1].flow.names):
        found = [read[1].flow.sizes[quantity][i] for quantity in ("signal", "gradient", "update")]
        assert found == pytest.approx(expected[name], rel=1e-5)
    assert [one.loss for one in read] == losses
    assert read[-1].losses == pytest.approx(losses[:11])  # as far as they are written
    assert (read[-1].steps, read[-1].recorded, read[-1].rate) == (12, 12, rate)  # 10, and 11 as a power of √2
    assert read[-1].speed > 0
    assert 0 < read[-1].watching < 1


def test_a_layer_that_did_not_run_is_shown_as_it_was():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (first, second)]
    recorder = Recorder(Store())
    for layer, optimizer in zip((first, second), optimizers, strict=True):
        recorder.add_model(layer)
        recorder.add_optimizer(optimizer)
    gauges = Gauges(recorder)
    recorder.start()
    x = torch.randn(4, 3)
    flows = []
    for step in range(6):  # they take turns
        layer, optimizer = (first, second)[step % 2], optimizers[step % 2]
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
        flows.append(gauges.read(step).flow)
    recorder.close()
    now, before = flows[-1].sizes["signal"], flows[-2].sizes["signal"]
    assert all(now + before)
    assert sum(a == b for a, b in zip(now, before, strict=True)) == 1
