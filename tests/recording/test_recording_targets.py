"""What of a batch counts as a target: what no model was fed with, where something of the batch was."""

import pytest
import torch
from recording_cases import record_of, seen, watching
from torch import nn


def targets(batch, feed):
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(1))
    net(feed(batch).float())
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with watching(net, optimizer) as recorder:
        recorder.batch(batch)
        net(feed(batch)).sum().backward()
        optimizer.step()
    return seen(record_of(recorder), "target")


X, Y = torch.randn(8, 2, 3), torch.randn(8, 1)
BOTH = torch.randn(8, 7)


@pytest.mark.parametrize(
    ("batch", "feed", "found"),
    [
        ((X, Y), lambda b: b[0], ["batch[1]"]),
        ((X, Y), lambda b: b[0].flatten(1), ["batch[1]"]),
        ((X, Y), lambda b: b[0][:, 1:], ["batch[1]"]),
        ((X, Y), lambda b: b[0] / 255, []),
        (BOTH, lambda b: b[:, 1:], []),
        ((BOTH[:, :6], BOTH[:, 6:]), lambda b: b[0].view(8, 6), ["batch[1]"]),
        ({"x": X, "y": Y}, lambda b: b["x"].detach(), ["batch[1]"]),
    ],
)
def test_a_view_of_the_input_is_no_target(batch, feed, found):
    assert targets(batch, feed) == found


def test_targets_beside_whole_numbers():
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    ids = torch.randint(9, (8, 3))
    with watching(net, optimizer) as recorder:
        recorder.batch((ids, Y))
        net(ids).sum().backward()
        optimizer.step()
    assert seen(record_of(recorder), "target") == ["batch[0]"]
