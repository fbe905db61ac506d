"""`trimtab run --live` in a real terminal: the screen is looked at, keys are pressed, the window changes its size."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import pytest

from trimtab.recording import Record

pytestmark = pytest.mark.skipif(
    shutil.which("tmux") is None and not os.environ.get("TRIMTAB_WHOLE_MACHINE"),
    reason="tmux, a terminal that a program can look at, is not installed",
)

SCRIPT = """
import signal, sys, time
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
print("it begins", flush=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
model[2].requires_grad_(False)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
signal.signal(signal.SIGWINCH, lambda *_: print("resized", flush=True))
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(100_000):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.004)
    if step % 25 == 0:
        print(f"line {step}", flush=True)
"""


class Window:
    """A window of a terminal with a shell in it."""

    def __init__(self, tmux, name):
        self.tmux, self.name = tmux, name

    @property
    def screen(self):
        return self.tmux("capture-pane", "-p", "-t", self.name).splitlines()

    @property
    def everything(self):
        """The screen and what has scrolled off it, long lines whole."""
        return self.tmux("capture-pane", "-p", "-J", "-S", "-", "-t", self.name).splitlines()

    def type(self, text):
        self.tmux("send-keys", "-t", self.name, "-l", text)
        self.tmux("send-keys", "-t", self.name, "Enter")

    def press(self, key):
        self.tmux("send-keys", "-t", self.name, key)

    def resize(self, columns, rows):
        self.tmux("resize-window", "-t", self.name, "-x", str(columns), "-y", str(rows))

    def told(self, variable):
        return self.tmux("display-message", "-p", "-t", self.name, f"#{{{variable}}}").strip()

    def wait(self, holds, seconds=60):
        """Until something holds for the lines of the screen, which come back."""
        end = time.monotonic() + seconds
        while True:
            lines = self.screen
            if holds(lines):
                return lines
            assert time.monotonic() < end, "\n".join(["never seen; the screen is", *lines])
            time.sleep(0.05)

    def is_clean(self, rows):
        """Whether nothing of a panel is left, and the shell has the whole window again."""
        lower = int(self.told("scroll_region_lower")), int(self.told("scroll_region_upper"))
        return not any(map(is_panel, self.screen)) and lower == (rows - 1, 0) and self.told("cursor_flag") == "1"


def is_panel(line):
    return bool(re.match(r"─+ (trimtab|step) | (loss|signal|gradient|update|layer|odd) ", line))


def has(text):
    return lambda lines: any(text in line for line in lines)


def at_prompt(lines):
    return ["", *filter(None, lines)][-1] == "$"


def steps(lines):
    """The number of steps that the panel tells."""
    return int(re.search(r" step ([\d,]+) ", "\n".join(lines))[1].replace(",", ""))


def panel_stands(lines):
    return any(line.startswith(" gradient ") for line in lines) and any(line.startswith(" loss ") for line in lines)


@pytest.fixture(scope="module")
def tmux():
    """A server of our own, with a shell that nobody has set up."""
    socket = f"trimtab-test-{os.getpid()}"

    def call(*arguments):
        command = ["tmux", "-u", "-L", socket, "-f", os.devnull, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

    call("new-session", "-d", "-s", "first", "sleep 3600")
    call("set-option", "-g", "history-limit", "10000")
    yield call
    call("kill-server")


@pytest.fixture
def window(tmux, tmp_path, request):
    """A window of 100 by 30 in a folder of the test's own, which has the script."""
    (tmp_path / "s.py").write_text(SCRIPT)
    name = f"test{len(request.node.name)}"
    paths = os.pathsep.join(filter(None, sys.path))
    shell = f"exec env PS1='$ ' PYTHONPATH={shlex.quote(paths)} OMP_NUM_THREADS=1 LC_ALL=C.UTF-8 /bin/sh"
    tmux("new-session", "-d", "-s", name, "-x", "100", "-y", "30", "-c", str(tmp_path), shell)
    made = Window(tmux, name)
    made.wait(at_prompt)
    yield made
    tmux("kill-session", "-t", name)


RUN = f"{shlex.quote(sys.executable)} -m trimtab run --live --every 5 --diagnose-every 5 s.py"


def test_a_run_is_watched_paused_and_broken_off(window, tmp_path):
    window.type("seq 101 140")  # it begins in the last line
    window.wait(
        lambda lines: has("140")(lines) and at_prompt(lines)
    )  # what is typed ahead leaves the prompt on the next line
    window.type(RUN)
    lines = window.wait(lambda lines: panel_stands(lines) and has("frozen-parameters")(lines))
    first = next(i for i, line in enumerate(lines) if line.startswith("── trimtab"))
    below = lines[first:]
    assert re.search(r"step [\d,]+ · \S+ steps/s · rate 0.05 · watching \S+ % · ", below[0])
    assert below[1].startswith(" loss ")
    assert re.search(r"  [01]\.\d+$", below[1])
    assert next(line for line in below if line.startswith(" layer ")).split()[1:4] == ["0", "2", "4"]
    assert next(line for line in below if line.startswith(" odd ")).split() == ["odd", "^", "2"]
    assert sum("frozen-parameters" in line for line in below) == 1
    assert all(line.strip() for line in below), "the panel ends with the window"
    assert len(below) <= 15
    assert not any(map(is_panel, lines[:first])), "one panel, and no leftovers"
    before = steps(lines)
    window.wait(lambda lines: steps(lines) > before)

    window.press("C-z")
    window.wait(has("Stopped"))
    window.wait(at_prompt)
    assert window.is_clean(30)
    window.type("fg")
    window.wait(panel_stands)

    window.press("C-c")
    lines = window.wait(has("KeyboardInterrupt"))
    window.wait(at_prompt)
    assert window.is_clean(30)
    everything = window.everything
    printed = [line for line in everything if re.match(r"line \d+$", line)]
    assert printed == [f"line {25 * i}" for i in range(len(printed))], (
        "all that the script printed, in order, and whole"
    )
    assert len(printed) > 5
    before_it = [line for line in everything if re.fullmatch(r"1[0-4]\d", line)]
    assert before_it == [*map(str, range(101, 141))], "what stood there before is still there"
    assert {"it begins"} < set(everything)
    assert sum(line.startswith("trimtab: watching model") for line in everything) == 1
    assert not any(line.startswith((" signal ", " gradient ", " odd ")) for line in everything)
    window.type("seq 1 60; echo end")
    window.wait(has("end"))
    assert [line for line in window.screen if line][-29:-1] == [*map(str, range(34, 61)), "end"]
    records = list((tmp_path / ".trimtab").glob("*.db"))
    assert len(records) == 1
    record = Record.open(records[0])
    assert record.finished
    assert record.facts["how"].startswith("KeyboardInterrupt")
    assert record.step_count > before


def test_the_window_changes_its_size_and_the_run_is_killed(window):
    window.type(RUN)
    window.wait(panel_stands)
    for columns, rows in ((60, 12), (20, 5), (120, 40), (19, 3), (100, 30)):
        window.resize(columns, rows)

        def fits(lines, columns=columns, rows=rows):
            panel = [line for line in lines if is_panel(line)]
            if columns < 20:
                return not panel and window.is_clean(rows)
            stands = panel_stands(lines) if rows > 5 else any(line.startswith(" loss ") for line in lines)
            return stands and lines[-1].strip() and all(len(line) < columns for line in panel)

        lines = window.wait(fits)
        assert sum(line.startswith(" loss ") for line in lines) == int(columns >= 20)
        assert sum(is_panel(line) for line in lines) <= rows // 2
    assert sum(line == "resized" for line in window.everything) >= 5, "the script's own handler is called"
    window.press("C-\\")  # which ends Python at once
    window.wait(has("Quit"))
    window.wait(lambda lines: window.is_clean(30))
    window.type("echo still $((20 + 3))")
    window.wait(has("still 23"))
