"""A run that trains step by step as it is told, and a viewer that follows it."""

import json
import subprocess
import sys
import threading
from contextlib import contextmanager

import trimtab
from trimtab.runner.serving import Viewer

NET = """
import torch
from torch import nn
import trimtab
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(64, 8)
y = (x @ torch.randn(8, 3)).argmax(1)
def train(steps):
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RUN = (
    NET
    + """
import json, sys, time
torch.set_num_threads(1)
with trimtab.watch(model, optimizer, store=sys.argv[1], every=1, name="told"):
    for line in sys.stdin:
        train(int(line))
        if int(line) == 0:
            with torch.no_grad():
                model[2].weight.mul_(1e30)
        print(json.dumps({"at": time.time()}), flush=True)
print(json.dumps({"at": time.time()}), flush=True)
"""
)


class Run:
    """The process. A step is committed when the next one begins, so the last one told is not in the record yet."""

    def __init__(self, record):
        self.record = record
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(record)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def train(self, steps):
        """Train so many steps, and say when the last of them was done; none breaks the weights of a layer."""
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["at"]

    def end(self):
        self.process.stdin.close()
        return json.loads(self.process.stdout.readline())["at"]

    def close(self):
        if not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@contextmanager
def training(record):
    """The same run in this process: a function that trains so many steps."""
    names = {}
    exec(NET, names)
    with trimtab.watch(names["model"], names["optimizer"], store=record, every=1, name="told"):
        yield names["train"]


@contextmanager
def running(record):
    """The run in a process of its own."""
    run = Run(record)
    try:
        yield run
    finally:
        run.close()


@contextmanager
def serving(record, **more):
    """A viewer in a thread."""
    viewer = Viewer(record, **more)
    thread = threading.Thread(target=viewer.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield viewer
    finally:
        viewer.shutdown()
        thread.join()
        viewer.server_close()
