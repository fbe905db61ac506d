"""What every test begins with; fixtures that run trimtab's command line, and scripts, in processes of their own."""

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).with_name("launcher.py")


def pytest_collection_finish():
    """Torch and the tests are there for good: no search for garbage need look through them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """One thread a process: the tests themselves run side by side."""
    import torch  # not above: the process that hands the tests out needs none

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    """Which test ran before in this process must not matter."""
    import torch

    torch.manual_seed(0)


@dataclass
class Ended:
    """What a process has left."""

    status: int
    out: str
    err: str

    @property
    def frames(self):
        """File names of the frames of its tracebacks, and the functions."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip().startswith("File ")]
        return [line.split('"')[1] for line in lines]


class Launcher:
    """A process that forks itself for each command."""

    def __init__(self):
        self.process = None

    def __call__(self, request):
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, str(LAUNCHER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()


def _heed_ctrl_c():
    """A test run in a shell's background ignores SIGINT, and its children would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Shell:
    """A folder in which commands are run.

    `trimtab(...)` and `plain(...)` fork a process that has torch already; with `real=True` Python itself is started.
    """

    def __init__(self, folder, launcher):
        self.folder = folder
        self.launcher = launcher
        self.count = 0

    def write(self, name, *parts):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(map(textwrap.dedent, parts)))
        return path

    def trimtab(self, *arguments, real=False, env=None, **more):
        command = [sys.executable, "-m", "trimtab", *map(str, arguments)]
        return self._real(command, env, **more) if real else self._forked(arguments, False, env)

    def plain(self, *arguments, real=False, env=None, **more):
        return (
            self._real([sys.executable, *map(str, arguments)], env, **more)
            if real
            else self._forked(arguments, True, env)
        )

    def both(self, *arguments, options=(), **more):
        """The same script with Python and under `trimtab run`."""
        return self.plain(*arguments, **more), self.trimtab("run", *options, *arguments, **more)

    def start(self, *arguments, **more):
        """A real process, running; also without trimtab in front."""
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_heed_ctrl_c,
            **more,
        )

    @property
    def records(self):
        return sorted((self.folder / ".trimtab").glob("*.db"))

    def _real(self, command, env, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=300, env=os.environ | (env or {}), **more
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def on_terminal(self, terminal, *arguments, env=None):
        """The exit status of a command whose output goes to the terminal of this name."""
        return self._launched(arguments, False, env, terminal, terminal)

    def _forked(self, arguments, plain, env):
        self.count += 1
        out, err = (self.folder / f".{name}-{self.count}" for name in ("out", "err"))
        status = self._launched(arguments, plain, env, out, err)
        return Ended(status, out.read_bytes().decode(errors="replace"), err.read_bytes().decode(errors="replace"))

    def _launched(self, arguments, plain, env, out, err):
        return self.launcher({
            "arguments": [str(a) for a in arguments],
            "plain": plain,
            "folder": str(self.folder),
            "environment": env or {},
            "stdin": os.devnull,
            "stdout": str(out),
            "stderr": str(err),
        })


@pytest.fixture(scope="session")
def _launcher():
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture
def shell(tmp_path, _launcher):
    """Run commands in a folder of the test's own."""
    return Shell(tmp_path, _launcher)


NET = """
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(16, 4), torch.randint(0, 2, (16,))
def train(steps=3):
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
"""


@pytest.fixture
def net():
    """The beginning of a script: a small net, its optimizer, and `train(steps)`."""
    return NET
