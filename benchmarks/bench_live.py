"""Cost of `trimtab run --live`: the time of a watched training step with the view over the time of the same step without it.

One net is trained and watched by the default schedule, and the view is there in every other turn: turns of at least 50 steps, so that
each has as many recorded ones. It draws on a terminal that another program empties, and looks for findings as `--live` does. While it is
not there its clocks stand still, so that it gets no time of the other turns to spend. Time is CPU time of the thread that trains. The
figure is the sum over all turns with the view, over the sum of those without; beside it the least and the largest round of two turns, and
what the view itself says it took.
"""

import argparse
import contextlib
import fcntl
import os
import pty
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from bench_watch import TOP_PAD
from workloads import WORKLOADS

from trimtab.prediction.riding import Ride
from trimtab.recording import Recorder, Store, journal
from trimtab.runner import display, gauges
from trimtab.runner.between import Between
from trimtab.runner.screen import Screen

SHOWN = ("cnn", "transformer", "mlp", "tiny")
TURN = 50
SECONDS = 1.0
LEAST = 6
BEFORE = 150  # the default schedule is in its long run from here on
COLUMNS, ROWS = 100, 30


class Clock:
    """Time that stands still in the turns without the view."""

    def __init__(self):
        self.skipped = dict.fromkeys(("perf_counter", "process_time"), 0.0)

    def perf_counter(self):
        return time.perf_counter() - self.skipped["perf_counter"]

    def process_time(self):
        return time.process_time() - self.skipped["process_time"]

    thread_time = staticmethod(time.thread_time)
    time = staticmethod(time.time)

    @contextlib.contextmanager
    def stopped(self):
        begin = time.perf_counter(), time.process_time()
        yield
        self.skipped["perf_counter"] += time.perf_counter() - begin[0]
        self.skipped["process_time"] += time.process_time() - begin[1]


class Looking(Between):
    """Counts the CPU seconds of what is done between two steps but for drawing, which is looking."""

    spent = 0.0

    def step_ended(self, step):
        begin, drawn = time.thread_time(), self._shown._spent
        super().step_ended(step)
        self.spent += time.thread_time() - begin - (self._shown._spent - drawn)


class Counted(Screen):
    """A screen that counts its frames."""

    frames = 0

    def draw(self, lines):
        self.frames += 1
        return super().draw(lines)


@contextlib.contextmanager
def terminal():
    """A stream that is a terminal, which another program empties."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    with subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
        os.close(ours)
        with os.fdopen(theirs, "w", encoding="utf-8") as stream:
            yield stream
        reader.terminate()


def measure(workload, seconds, clock):
    torch.manual_seed(0)
    training = WORKLOADS[workload]()
    step = 0

    def train(steps):
        """CPU seconds of so many steps."""
        nonlocal step
        begin = time.thread_time()
        for _ in range(steps):
            x, y = training.at(step)
            training.optimizer.zero_grad()
            training.backward(x, y)
            training.optimizer.step()
            step += 1
        return time.thread_time() - begin

    with tempfile.TemporaryDirectory() as folder, terminal() as stream:
        recorder = Recorder(Store(Path(folder) / "record.db"), board=Ride)
        recorder.add_model(training.model)
        recorder.add_optimizer(training.optimizer)
        screen = Counted(stream)
        shown = display.Panelled(recorder, screen, print)
        between = Looking(recorder, shown, stop_after=None, stop_on=None, every=None, ignore=())
        recorder.start()
        recorder.on_step = between.step_ended
        train(BEFORE)
        once = time.perf_counter()
        train(TURN)
        once = time.perf_counter() - once
        turn = TURN * max(round(SECONDS / once), 1)
        rounds = max(round(seconds / (once * turn / TURN)), LEAST)
        frames, drawn, looked = screen.frames, shown._spent, between.spent
        with_view, without = [], []
        for number in range(rounds):
            for live in (True, False) if number % 2 else (False, True):
                recorder.on_step = between.step_ended if live else None
                with contextlib.nullcontext() if live else clock.stopped():
                    (with_view if live else without).append(train(turn))
        frames, drawn, looked = screen.frames - frames, shown._spent - drawn, between.spent - looked
        shown.close()
        recorder.close()
        recorder.store.close()
    ratios = [a / b for a, b in zip(with_view, without, strict=True)]
    total = sum(with_view)
    return SimpleNamespace(
        ratio=total / sum(without),
        median=statistics.median(ratios),
        least=min(ratios),
        largest=max(ratios),
        frames=frames,
        frame_ms=1e3 * drawn / max(frames, 1),
        drawn=drawn / total,
        looked=looked / total,
        step_ms=1e3 * sum(without) / (turn * rounds),
        rounds=rounds,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40, help="of each side, in turns (default 40)")
    parser.add_argument("--only", choices=WORKLOADS, action="append", help="this workload alone; may be given again")
    arguments = parser.parse_args()
    if sys.platform == "linux" and TOP_PAD[0] not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | dict([TOP_PAD]))
    os.environ["TERM"] = "xterm-256color"
    torch.set_num_threads(1)
    clock = Clock()
    for module in (display, gauges, journal):
        module.time = clock
    print(
        "| net | step, ms | with --live | rounds | median (least-largest) | drawing | looking | frames | a frame, ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for workload in arguments.only or SHOWN:
        found = measure(workload, arguments.seconds, clock)
        print(
            f"| {workload} | {found.step_ms:.2f} | {found.ratio:.4f} "
            f"| {found.rounds} | {found.median:.4f} ({found.least:.3f}-{found.largest:.3f}) | {found.drawn:.2%} | {found.looked:.2%} "
            f"| {found.frames} | {found.frame_ms:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
