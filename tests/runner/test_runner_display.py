"""`trimtab run --live`: every way to end leaves the terminal clean, the run is the same to the last bit, and it keeps within its share."""

import itertools
import os
import pty
import re
import struct
import sys
import termios
import threading
import time
from fcntl import ioctl

import pytest

from trimtab.recording import Record, Recorder, Store
from trimtab.report import Finding
from trimtab.runner import display
from trimtab.runner.screen import LET_GO, Screen, frame

SLOW = """
import os, signal, sys, time
from trimtab.runner import display
display.SHARE, display.APART = 0.2, 0.05  # as often as a test wants
for parameter in model[2].parameters():
    parameter.requires_grad_(os.environ.get("SICK") is None)
def slowly(seconds):
    end = time.time() + seconds
    while time.time() < end:
        train(1)
        time.sleep(0.002)
"""

ENDS = {
    "the end": ("", 0),
    "an error": ("raise ValueError('mine')", 1),
    "an exit": ("sys.exit(4)", 4),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)", -2),
    "SIGTERM, handled": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)",
        7,
    ),
}
GUARDED = {
    "os._exit": ("os._exit(3)", 3),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)", -15),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)", -9),
}


REGION = re.compile(r"\x1b\[1;\d+r")
"""Where a frame begins."""


def opened(columns=80, rows=24):
    """Both ends of a terminal."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return ours, theirs


class Terminal:
    """A terminal, and all that has been written to it."""

    def __init__(self):
        self.ours, self.theirs = opened()
        self.name = os.ttyname(self.theirs)
        self.written = b""
        self.open = True
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while self.open:
            try:
                self.written += os.read(self.ours, 65536)
            except OSError:
                return

    def wait_for(self, text, seconds=20):
        end = time.monotonic() + seconds
        while text.encode() not in self.written and time.monotonic() < end:
            time.sleep(0.01)
        return text.encode() in self.written

    @property
    def text(self):
        """What was written, without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.written.decode(errors="replace").replace("\r\n", "\n"))

    def close(self):
        self.open = False
        os.close(self.theirs)
        self.reader.join(5)
        os.close(self.ours)


@pytest.fixture
def terminal():
    made = Terminal()
    yield made
    made.close()


def run(shell, terminal, *arguments, environment=()):
    """The exit status of `trimtab run` on the terminal, of `s.py` where no script is named."""
    if "s.py" not in arguments:
        arguments = (*arguments, "s.py")
    environment = {"TERM": "xterm-256color", **dict(environment)}
    status = shell.on_terminal(terminal.name, "run", *arguments, env=environment)
    time.sleep(0.05)  # what it has written comes to us
    return status


def lines_of(text):
    """What of a terminal's text is no escape sequence and no line of a panel."""
    frames = re.compile(r"(\x1b7(?:\x1b\[r\x1b8(?:\x1bD)*\x1b\[\d+A\x1b7\x1b\[B\r\x1b\[J)?\x1b\[1;\d+r.*?\x1b8)", re.S)
    return frames.sub("", text).replace(LET_GO, "")


@pytest.mark.parametrize("end", ENDS)
def test_every_end_that_python_sees_leaves_the_terminal_clean(shell, net, terminal, end):
    shell.write("s.py", net, SLOW, "print('before')\nslowly(0.5)\nprint('after')", ENDS[end][0])
    assert run(shell, terminal, "--live") == ENDS[end][1]
    text = terminal.text
    assert REGION.search(text), "a panel was drawn"
    assert "gradient" in text
    head, _, tail = text.rpartition(LET_GO)
    assert REGION.search(head)
    assert not REGION.search(tail), "nothing is drawn once it has been cleared"
    assert "─ Run ─" in tail, "the report comes after"
    if end == "an error":
        assert tail.index("─ Run ─") < tail.index("ValueError: mine")
    rest = lines_of(text)
    assert rest.index("trimtab: watching") < rest.index("after")
    assert "signal" not in rest.partition("─ Run ─")[0], "every line of the panel belongs to a frame"
    assert Record.open(shell.records[0]).finished


@pytest.mark.parametrize("end", GUARDED)
def test_an_end_that_python_does_not_see_is_cleared_up_behind_it(shell, net, terminal, end):
    shell.write("s.py", net, SLOW, "slowly(0.5)", GUARDED[end][0])
    assert run(shell, terminal, "--live") == GUARDED[end][1]
    assert terminal.wait_for(LET_GO)
    assert not REGION.search(terminal.text.rpartition(LET_GO)[2])
    assert Record.open(shell.records[0]).step_count > 10


def test_nothing_is_cleared_where_nothing_was_drawn(shell, terminal):
    shell.write("s.py", "import os\nprint('mine', flush=True)\nos._exit(3)")
    assert run(shell, terminal, "--live") == 3
    assert terminal.wait_for("mine")
    time.sleep(0.2)
    assert terminal.text == "mine\n"


def test_not_one_bit_of_the_run_changes(shell, net, terminal):
    script = """
        import random
        import numpy as np
        values = []
        for _ in range(250):
            values.append(train(1).hex())
            model[0].weight.data.add_(torch.randn(8, 4) * 1e-3)
            time.sleep(0.004)
        drawn = torch.rand(3).tolist(), random.Random(0).random(), random.getstate(), str(np.random.get_state())
        open(sys.argv[1], "w").write(repr((values, drawn, [p.tolist() for p in model.parameters()])))
    """
    shell.write("s.py", net, "import random, numpy\nrandom.seed(0)\nnumpy.random.seed(0)", SLOW, script)
    assert shell.plain("s.py", "plain").status == 0
    assert run(shell, terminal, "--live", "--every", "1", "s.py", "live") == 0
    assert terminal.text.count("gradient") > 1
    assert (shell.folder / "plain").read_text() == (shell.folder / "live").read_text()


def test_stop_on_and_live_share_the_looks(shell, net, terminal):
    shell.write("s.py", net, SLOW, "slowly(30)")
    options = ("--live", "--stop-on", "warning", "--every", "1", "--diagnose-every", "20")
    assert run(shell, terminal, *options, environment={"SICK": "1"}) == 1
    text = terminal.text
    assert re.search(r"trimtab: stopped at step \d+ for frozen-parameters", text)
    assert not REGION.search(text.rpartition(LET_GO)[2])


def test_a_child_of_the_script_neither_draws_nor_clears(shell, net, terminal):
    child = """
        slowly(0.5)
        child = os.fork()
        slowly(0.8)
        if child == 0:
            print("child", flush=True)
            sys.exit(0)
        os.waitpid(child, 0)
        print("parent", flush=True)
        slowly(0.8)
    """
    shell.write("s.py", net, SLOW, child)
    assert run(shell, terminal, "--live") == 0
    text = terminal.text
    assert text.count(LET_GO) == 1
    assert text.index("child") < text.index("parent") < text.index(LET_GO)
    steps = [int(step.replace(",", "")) for step in re.findall(r"step ([\d,]+) ·", text)]
    assert len(steps) > 2
    assert steps == sorted(steps), "two processes would take turns"


@pytest.mark.parametrize("name", ["dumb", ""])
def test_a_terminal_that_cannot_be_steered_is_not_drawn_on(shell, net, terminal, name):
    shell.write("s.py", net, SLOW, "slowly(0.8)\nprint('mine')")
    assert run(shell, terminal, "--live", "--no-store", environment={"TERM": name}) == 0
    text = terminal.text
    assert text.startswith("trimtab: --live needs standard error to be a terminal")
    assert not REGION.search(text)
    assert LET_GO not in text


def test_without_a_terminal_findings_are_lines(shell, net):
    shell.write("s.py", net, SLOW, "train(60)\nprint('mine')")
    options = ("--live", "--every", "1", "--diagnose-every", "20", "--no-store")
    done = shell.trimtab("run", *options, "s.py", env={"SICK": "1"})
    assert (done.status, done.out) == (0, "mine\n")
    lines = done.err.splitlines()
    assert lines[0].startswith("trimtab: --live needs standard error to be a terminal")
    told = [line for line in lines if line.startswith("trimtab: found at step")]
    assert len(told) == 1
    assert "warning: frozen-parameters at 2" in told[0] or "error: frozen-parameters at 2" in told[0]
    assert "\x1b" not in done.err


# ------------------------------------------------------------------------------------------------ how often


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.waited = 0.0
        for clock in ("perf_counter", "thread_time", "process_time"):
            waits = clock == "perf_counter"
            monkeypatch.setattr(display.time, clock, lambda waits=waits: self.now + self.waited * waits)

    def work(self, seconds):
        self.now += seconds


class Drawn:
    """A screen that takes a while."""

    encoding = "utf-8"

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.at = clock, seconds, []

    def size(self):
        return 80, 24

    def follow(self):
        pass

    def draw(self, lines):
        self.at.append(self.clock.now)
        self.clock.work(self.seconds() if callable(self.seconds) else self.seconds)
        return True

    def close(self):
        self.closed = True


@pytest.mark.parametrize(("cost", "apart"), [(0.0001, 0.5), (0.001, 0.5), (0.006, 2.0), (0.06, 20.0)])
def test_frames_take_their_share_and_no_more(monkeypatch, cost, apart):
    clock = Clock(monkeypatch)
    screen = Drawn(clock, cost)
    recorder = Recorder(Store())
    shown = display.Panelled(recorder, screen, None)
    steps = 20_000
    for step in range(steps):
        clock.work(0.01)
        shown.step_ended(step)
    distances = [b - a for a, b in itertools.pairwise(screen.at)]
    assert min(distances) >= 0.5
    assert sum(distances[1:]) / len(distances[1:]) == pytest.approx(apart, rel=0.05)
    frames = len(screen.at)
    clock.waited += 1000  # for something else than a processor
    for step in range(500):
        clock.work(0.01)
        shown.step_ended(steps + step)
    assert len(screen.at) - frames <= 5 / apart + 1
    for drawn, now in enumerate(screen.at[1:], 1):  # of the first frame nobody knows what it will take
        assert (drawn + 1) * cost <= display.SHARE * now * (1 + 1e-9)
    assert recorder.spent == pytest.approx(cost * len(screen.at))


def test_a_fault_of_the_view_ends_the_view_alone(monkeypatch):
    clock = Clock(monkeypatch)

    def fails():
        raise ZeroDivisionError("ours")

    screen, said = Drawn(clock, fails), []
    shown = display.Panelled(Recorder(Store()), screen, said.append)
    for step in range(1000):
        clock.work(0.01)
        shown.step_ended(step)
    assert screen.closed
    assert len(screen.at) == len(said) == 1
    assert "ZeroDivisionError: ours" in said[0]


def test_lines_of_a_log_grow_rarer(monkeypatch):
    clock, said = Clock(monkeypatch), []
    recorder = Recorder(Store())
    lines = display.Lines(recorder, lambda text: said.append((clock.now, text)))
    for step in range(7 * 24 * 360):
        clock.work(10)
        lines.step_ended(step)
    at = [now for now, _ in said]
    assert 60 <= at[0] <= 80
    assert all(b - a >= max(60, 0.1 * a) for a, b in itertools.pairwise(at))
    assert 60 < len(at) < 110
    assert re.fullmatch(r"trimtab: step [\d,]+, [\d.]+ steps/s, watching [\d.]+ %, [\d,]+ recorded", said[-1][1])


def test_a_finding_in_a_log_cannot_steer_the_terminal():
    said = []
    display.Lines(Recorder(Store()), said.append).found(Finding("c", "error", ("\x1b[2Ja",), "b\x1b[2J\nc"), 3)
    assert said == ["trimtab: found at step 3: error: c at a: b c"]


# ------------------------------------------------------------------------------------------------ the screen itself


def test_a_terminal_that_is_stopped_is_not_waited_for(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = opened()  # which nobody reads
    with os.fdopen(theirs, "w") as stream:
        screen = Screen(stream)
        lines = ["x" * 70] * 10
        begin = time.monotonic()
        taken = [screen.draw(lines) for _ in range(2000)]
        screen.close()
        assert time.monotonic() - begin < 5
        assert taken[0]
        assert not taken[-1]
    os.close(ours)


def test_what_is_left_of_a_frame_goes_first(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = opened()
    with os.fdopen(theirs, "w") as stream:
        screen = Screen(stream)
        while screen.draw(["x" * 70] * 10):
            pass
        written = b""
        while b"yyy" not in written:
            written += os.read(ours, 65536)
            screen.draw(["yyy"])
        frames = written.split(b"\x1b7")
        first = frame(["x" * 70] * 10, 24, anew=False).encode().removeprefix(b"\x1b7")
        assert len({f for f in frames[4:-3] if b"xxx" in f} - {first}) == 0, "no frame is cut short by the next one"
        screen.close()
    os.close(ours)


@pytest.mark.parametrize("rows", [4, 24])
def test_a_frame_ends_where_it_began(rows):
    for anew in (True, False):
        text = frame(["one", "two"], rows, anew=anew)
        assert text.startswith("\x1b7")
        assert text.endswith("\x1b8")
        assert f"\x1b[1;{rows - 2}r" in text
        assert f"\x1b[{rows - 1};1H\x1b[0mone" in text
        assert f"\x1b[{rows};1H\x1b[0mtwo" in text


def test_neither_sigwinch_nor_the_streams_are_touched(monkeypatch):
    import signal

    monkeypatch.setenv("TERM", "xterm")
    before = {s: signal.getsignal(s) for s in signal.valid_signals()}
    streams = sys.stdout, sys.stderr
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        screen = Screen(stream)
        now = {s: signal.getsignal(s) for s in signal.valid_signals()}
        assert {s for s in now if now[s] != before[s]} <= {signal.SIGTSTP}
        screen.draw(["x"])
        screen.close()
        screen.close()
        assert os.isatty(stream.fileno()), "the program's own stream stays open"
    assert {s: signal.getsignal(s) for s in signal.valid_signals()} == before
    assert (sys.stdout, sys.stderr) == streams
    os.close(ours)


def test_a_recorder_that_fails_takes_the_view_with_it():
    recorder = Recorder(Store())
    ended = []
    recorder.on_fault = lambda: ended.append(True)
    with pytest.warns(RuntimeWarning, match="stopped watching"):
        recorder.fail(ValueError("ours"))
    assert ended == [True]
