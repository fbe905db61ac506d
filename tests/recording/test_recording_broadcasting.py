"""Shapes that a loss stretches against each other: read from the graph, beside what numpy's rules of broadcasting say."""

import numpy as np
import pytest
import torch
from recording_cases import record_of, watching
from torch import nn
from torch.nn import functional as F

from trimtab.recording.broadcasting import broadcasts, stretched_axes

N = 6


def facts(loss, prediction):
    """The tables that a loss makes of a module's output of this shape."""
    made = torch.randn(prediction, requires_grad=True) * 1.0  # the output of a module
    return broadcasts(loss(made), {made.grad_fn._sequence_nr(): "0:net"})


HAND = {
    "squares": lambda p, y: (p - y).pow(2).mean(),
    "absolute": lambda p, y: (y - p).abs().mean(),
    "product": lambda p, y: (y * F.logsigmoid(p)).mean(),
    "log cosh": lambda p, y: torch.log(torch.cosh(p - y)).mean(),
    "ratio": lambda p, y: (p / y).mean(),
}
NAMED = {
    "mse": F.mse_loss, "l1": F.l1_loss, "smooth": F.smooth_l1_loss, "huber": F.huber_loss,
    "poisson": F.poisson_nll_loss,
    "gaussian": lambda p, y: F.gaussian_nll_loss(p, y, torch.ones(p.shape)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
@pytest.mark.parametrize("loss", [*HAND.values(), *NAMED.values()], ids=[*HAND, *NAMED])
@pytest.mark.parametrize(("prediction", "target"), [((N, 1), (N,)), ((N,), (N, 1)), ((N, N), (N, N, 1))])
def test_both_sides_are_stretched(loss, prediction, target):
    found = facts(lambda p: loss(p, torch.randn(target)), prediction)
    assert len(found) >= 1
    first = found[-1]  # next to the module
    assert first["prediction"] == list(prediction)
    assert first["target"] == list(target)
    assert tuple(first["result"]) == np.broadcast_shapes(prediction, target)
    assert first["sources"] == ["0:net"]
    assert not first["laid_out"]


@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
@pytest.mark.parametrize("loss", [*HAND.values(), *NAMED.values()], ids=[*HAND, *NAMED])
@pytest.mark.parametrize(
    ("prediction", "target"), [((N, 1), (N, 1)), ((N, 3), (N, 1)), ((N, 3), (3,)), ((N, 1), ()), ((N,), (1, N))]
)
def test_one_side_alone_is_no_table_of_pairs(loss, prediction, target):
    assert facts(lambda p: loss(p, torch.randn(target)), prediction) == []


def test_a_whole_table_of_targets_is_not_stretched():
    assert facts(lambda p: (p - torch.randn(N, N)).pow(2).mean(), (N, 1)) == []
    assert facts(lambda p: (p * torch.randn(N, N)).mean(), (N, 1)) == []
    assert len(facts(lambda p: (p - torch.randn(N)).mean(), (N, 1))) == 1  # nothing is kept that would tell
    assert facts(lambda p: (p - torch.randn(N)).mean(), (N, 1))[0]["target"] is None


@pytest.mark.parametrize(
    "loss",
    [
        lambda p: torch.exp(-((p[:, None] - p[None]) ** 2)).mean(),
        lambda p: F.softplus(p - p.T).mean(),
        lambda p: (p.squeeze(1)[:, None] - torch.randn(N)).pow(2).mean(),
        lambda p: (p * torch.randn(N, 1).T).mean(),
    ],
)
def test_axes_that_were_made_for_pairs(loss):
    found = facts(loss, (N, 1))
    assert found
    assert all(each["laid_out"] and not each["named"] for each in found)


def test_what_lies_behind_a_modules_output_is_not_looked_at():
    inside = torch.randn(N, 1, requires_grad=True) - torch.randn(N)
    assert broadcasts(inside.pow(2).mean(), {inside.grad_fn._sequence_nr(): "0:net"}) == []


def test_stretched_axes():
    assert stretched_axes([N, 1], [N, N]) == [-1]
    assert stretched_axes([N], [N, N]) == [-2]
    assert stretched_axes([], [2, 3]) == [-2, -1]
    assert stretched_axes([1, 1], [1, 1]) == []


def test_the_record_holds_them():
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        (net(torch.randn(N, 3)) - torch.randn(N)).pow(2).mean().backward()
        optimizer.step()
    (found,) = record_of(recorder).details["loss"][0][1]["broadcasts"]
    assert (found["prediction"], found["target"], found["result"]) == ([N, 1], [N], [N, N])
    assert found["sources"] == ["0:"]
