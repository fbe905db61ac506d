"""Curvature under DistributedDataParallel: each rank has batches of its own, and every rank gets the products of all of them."""

import torch
from curvature_on_ranks import loss, made, same
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel

from trimtab.curvature import eigenvalues, fisher, ggn, ggn_trace, hessian, problem, trace


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
    same(whole, first, second, 1e-10)
