"""Inputs without a graph: whose numbers they are, told by where they lie."""

import pytest
import torch
from recording_cases import record_of, watching
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, cut, free=False):
        super().__init__()
        self.a, self.b, self.cut, self.free = nn.Linear(4, 4), nn.Linear(4, 2), cut, free

    def forward(self, x):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.free):
            z = self.a(x)
        return self.b(self.cut(z))


def links(net, x=None):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        F.mse_loss(net(torch.ones(3, 4) if x is None else x), torch.zeros(3, 2)).backward()
        optimizer.step()
    return record_of(recorder).details["links"][0][1]


@pytest.mark.parametrize(
    ("cut", "severed"),
    [
        (lambda z: z, None),
        (F.relu, None),
        (lambda z: z + z.detach(), None),
        (lambda z: z.detach(), "0:a"),
        (lambda z: z.data, "0:a"),
        (lambda z: torch.from_numpy(z.detach().numpy()), "0:a"),
        (lambda z: z.detach().view(3, 2, 2).flatten(1), "0:a"),
        (lambda z: torch.tensor(z.tolist()), ""),
        (lambda z: z.detach() * 2, ""),
    ],
)
def test_where_numbers_come_from(cut, severed):
    found = links(Net(cut))
    assert found["0:b"]["severed"] == severed
    assert found["0:a"]["severed"] is None  # fed
    assert found["0:a"]["graph"] is True


def test_a_part_under_no_grad():
    found = links(Net(lambda z: z, free=True))
    assert found["0:a"]["graph"] is False
    assert found["0:b"]["severed"] is None  # its source is known
    assert found["0:b"]["sources"] == ["0:a"]


def test_memory_that_somebody_else_has_got_since():
    """What lies where an output lay is not that output."""

    class Forgets(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            for _ in range(50):
                at = self.a(x).untyped_storage().data_ptr()
                fresh = torch.ones(3, 4)
                if fresh.untyped_storage().data_ptr() == at:
                    break
            return self.b(fresh) + self.b(self.a(x))

    assert links(Forgets())["0:b"]["severed"] == ""


def test_parts_of_the_input_are_fed():
    class Slices(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            return self.a(x[:, :4]) + self.b(x[:, 4:])

    assert {link["severed"] for link in links(Slices(), torch.ones(3, 8)).values()} == {None}
