"""Trains in forked children, each of which is killed at a random moment; run as a script by `test_recording_store`.

usage: python recording_kills.py FOLDER RUNS

Writes one line a run: the number of the last step that the child had told of before it died.
"""

import os
import random
import select
import signal
import sqlite3
import sys
import time
from pathlib import Path

import torch
from torch import nn

from trimtab.errors import RecordError
from trimtab.recording import Record, Recorder, Schedule, Store
from trimtab.stats import warm_up


def made():
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return net, torch.optim.SGD(net.parameters(), 0.01)


def train(path, pipe):
    net, optimizer = made()
    recorder = Recorder(Store(path), Schedule(1))
    recorder.add_model(net)
    recorder.add_optimizer(optimizer)
    recorder.on_step = lambda step: os.write(pipe, b"%d\n" % step)
    recorder.start()
    while True:
        optimizer.zero_grad()
        net(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()


def run(path, with_reader):
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        train(path, writes)
    os.close(writes)
    told = os.read(reads, 4096)  # waits for the first step
    deadline = time.monotonic() + random.uniform(0.0, 0.25)
    reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None) if with_reader else None
    if reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM steps").fetchone()  # holds a read transaction until the end
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reads], [], [], left)[0]:
            told += os.read(reads, 4096)
        if reader:
            record = Record.open(path)
            assert record.steps.tolist() == list(range(len(record.steps)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reads, 4096):
        told += more
    os.close(reads)
    if reader:
        Record.open(path)  # also while the other reader is still there
        reader.close()
    return told.rpartition(b"\n")[0].splitlines()[-1].decode()


def main():
    torch.set_num_threads(1)
    warm_up()
    made()  # the first optimizer imports the compiler: once for all children
    folder, runs = Path(sys.argv[1]), int(sys.argv[2])
    for i in range(runs):
        try:
            print(run(folder / f"{i}.db", with_reader=i % 2 == 1), flush=True)
        except RecordError as error:
            print(error, flush=True)


if __name__ == "__main__":
    main()
