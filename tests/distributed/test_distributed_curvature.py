"""Curvature under DistributedDataParallel: each rank has batches of its own, and every rank gets the products of all of them."""

import torch
from ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab.curvature import eigenvalues, fisher, ggn, ggn_trace, hessian, problem, trace

SIZES = (24, 7)


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double()
    batches = [(torch.randn(n, 6, dtype=torch.float64), torch.randint(3, (n,))) for n in SIZES]
    return model, batches


def measured(model, batches):
    own = problem(model, loss, batches)
    v = torch.linspace(-1, 1, own.size, dtype=torch.float64)
    h = hessian(own)
    return {
        "loss": torch.tensor([own.value()]),
        "gradient": own.gradient()[1],
        "hessian": h @ v,
        "gauss-newton": ggn(own) @ v,
        "fisher": fisher(own, method="recompute") @ v,
        "eigenvalues": torch.from_numpy(eigenvalues(h, 3).values.copy()),
        "trace": torch.tensor([trace(h, 24).value]),
        "ggn_trace": torch.tensor([ggn_trace(own).value]),
    }


def on_one_rank():
    model, batches = made()
    rank = torch.distributed.get_rank()
    return measured(DistributedDataParallel(model), [batches[rank]])


def test_ranks_with_uneven_batches_measure_what_one_process_does(tmp_path):
    whole = measured(*made())
    first, second = on_ranks(tmp_path, on_one_rank)
    for name, value in whole.items():
        assert torch.equal(first[name], second[name]), "the ranks must go the same way"
        assert float((first[name] - value).norm()) <= 1e-10 * float(value.norm()), name
