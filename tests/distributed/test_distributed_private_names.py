"""One test for each private name of torch.distributed: a release that drops one is seen here."""

import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from trainings import ddp, fsdp_cpu, hsdp, net

from trimtab import _distributed


def the_store():
    connection, store = _distributed.own_store()
    connection.set(f"from {dist.get_rank()}", b"word")
    dist.barrier()
    return connection is not store, connection.check([f"from {1 - dist.get_rank()}"])


def test_the_store_is_reached_by_a_connection_of_its_own(tmp_path):
    assert on_ranks(tmp_path, the_store) == [(True, True)] * 2


def the_wrapper():
    inner = net()
    seen = []
    inner.first.register_forward_pre_hook(lambda module, args: seen.append(_distributed.active_wrapper(module)))
    model = ddp(inner)
    x = torch.ones(2, 10, dtype=torch.float64)
    inner(x)
    model(x)
    inner(x)
    return [wrapper is model for wrapper in seen], _distributed.group(model), _distributed.sends_buffers(model)


def test_the_wrapper_whose_forward_runs(tmp_path):
    for rank, (seen, group, sends) in enumerate(on_ranks(tmp_path, the_wrapper)):
        assert seen == [False, True, False]
        assert group == (2, rank)
        assert sends


def the_shares():
    plain, sharded, copied = net(), fsdp_cpu(net()), hsdp(net())
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    partly = fully_shard(net(), mesh=mesh["data"])
    return [_distributed.share(model) for model in (plain, sharded, copied, partly)]


def test_the_ranks_that_a_sharded_module_averages_over(tmp_path):
    for rank, shares in enumerate(on_ranks(tmp_path, the_shares, size=4)):
        assert shares == [(1, 0), (4, rank), (4, rank), (2, rank // 2)]


def the_tensors():
    mesh = init_device_mesh("cpu", (2, 2))
    whole = torch.arange(12.0).reshape(4, 3)
    both = distribute_tensor(whole, mesh, [Replicate(), Shard(0)])
    same = distribute_tensor(whole, mesh, [Replicate(), Replicate()])
    sums = DTensor.from_local(whole, mesh, [Replicate(), Partial()])
    return [
        (
            _distributed.is_spread(t),
            _distributed.is_whole(t),
            _distributed.is_copy(t),
            _distributed.is_sum_pending(t),
            _distributed.mesh_size(t),
            tuple(_distributed.local(t).shape),
        )
        for t in (whole, nn.Parameter(whole), both, same, sums)
    ]


def test_what_a_rank_holds_of_a_tensor(tmp_path):
    for rank, (plain, parameter, both, same, sums) in enumerate(on_ranks(tmp_path, the_tensors, size=4)):
        assert plain == parameter == (False, True, False, False, 1, (4, 3))
        assert both == (True, False, rank >= 2, False, 4, (2, 3))
        assert same == (True, True, rank > 0, False, 4, (4, 3))
        assert sums[3]


def test_the_class_as_its_author_wrote_it(tmp_path):
    assert on_ranks(tmp_path, the_class) == [("Net", "Linear")] * 2
    assert _distributed.own_class(net()).__name__ == "Net"


def the_class():
    model = fsdp_cpu(net())
    return _distributed.own_class(model).__name__, _distributed.own_class(model.first).__name__


def test_a_process_that_is_alone(monkeypatch):
    assert not _distributed.is_running()
    assert (_distributed.rank(), _distributed.world_size()) == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert _distributed.rank() == 3
    monkeypatch.setenv("RANK", "none")
    assert _distributed.rank() == 0
