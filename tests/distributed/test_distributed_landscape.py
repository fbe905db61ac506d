"""Slices, smoothness and sharpness under DistributedDataParallel: every rank gets the numbers of one process with all batches."""

import pytest
import torch
from curvature_on_ranks import loss, made, same
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel

from trimtab import Setup
from trimtab.curvature import CurvatureError, sharpness, smoothness, surface


def measured(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    setup = Setup(model, optimizer, lambda: batches, loss)
    along, sharp = smoothness(setup, batches=len(batches)), sharpness(setup, tol=1e-8, batches=len(batches))
    return {
        "surface": torch.from_numpy(
            surface(setup, batches=len(batches), points=3, directions=("gradient", "random")).values
        ),
        "losses": torch.from_numpy(along.losses),
        "beta": torch.from_numpy(along.values.copy()),
        "sharpness": torch.tensor([sharp.value]),
    }


def on_one_rank(store):
    model, batches = made()
    own = [batches[torch.distributed.get_rank()]]
    wrapped = DistributedDataParallel(model)
    with pytest.raises(CurvatureError, match="store is for one rank"):
        surface(wrapped, loss, own, points=3, store=store)
    return measured(wrapped, own)


def test_ranks_with_uneven_batches_measure_what_one_process_does(tmp_path):
    whole = measured(*made())
    first, second = on_ranks(tmp_path, on_one_rank, tmp_path / "store.txt")
    assert not (tmp_path / "store.txt").exists()
    same(whole, first, second, 1e-7)
