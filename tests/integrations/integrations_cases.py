"""A small run for every tracker, and a reader of what wandb leaves behind offline."""

import json
import struct

import torch
from torch import nn

BLOCK = 32768


class Run:
    """A net of two layers, its optimizer and a batch."""

    def __init__(self, seed=0, rate=0.1):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.x, self.y = torch.randn(16, 4), torch.randint(0, 2, (16,))

    def loss(self):
        return nn.functional.cross_entropy(self.model(self.x), self.y)

    def train(self, steps=1):
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            self.optimizer.step()
        return loss


def wandb_records(path):
    """The records of a run's file: pieces in blocks of 32 KiB, each with its checksum, length and kind, as in a log of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    place, whole, found = 7, b"", []
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:  # too little for a piece: filled up
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        if kind == 0:
            place += BLOCK - place % BLOCK
            continue
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


def wandb_rows(path):
    """The history of a run: one dictionary a row."""
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(path)
        if record.WhichOneof("record_type") == "history"
    ]
