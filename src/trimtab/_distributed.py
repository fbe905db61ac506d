"""What this process is to a distributed run. Everything of torch.distributed that trimtab depends on, one function each.

Private names, each with a test:

- `torch.distributed.distributed_c10d._get_default_store`: the key-value store that the ranks met at.
- `DistributedDataParallel._active_ddp_module`: the wrapper whose forward call is running.
- `FSDPModule._get_fsdp_state()._fsdp_param_groups[...].mesh_info.mesh`: the ranks that a sharded module averages over.
"""

import contextlib
import os
from datetime import timedelta
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

PATIENCE = timedelta(seconds=10)
"""How long one request to the store may take before it counts as failed."""


def is_running() -> bool:
    """Whether a process group of several ranks has been made."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The rank of this process: of the process group, before there is one what the launcher says; 0 without either."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    with contextlib.suppress(KeyError, ValueError):
        if int(os.environ["WORLD_SIZE"]) > 1:
            return int(os.environ["RANK"])
    return 0


def world_size() -> int:
    """Number of ranks; 1 without a process group."""
    return dist.get_world_size() if is_running() else 1


def own_store() -> tuple[Any, Any]:
    """A connection of its own to the store that the ranks met at.

    Returns:
        The connection, which others neither wait for nor hold up, and the store itself, which lives as long as it is held.
    """
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    connection: Any = store
    with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
        connection = connection.clone()
        connection.set_timeout(PATIENCE)
    return connection, store


def active_wrapper(module: nn.Module) -> DistributedDataParallel | None:
    """The wrapper for data parallelism that `module` is, compiled or not, or whose forward call is running."""
    module = getattr(module, "_orig_mod", module)
    if isinstance(module, DistributedDataParallel):
        return module
    return DistributedDataParallel._active_ddp_module


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module only wraps another for data parallelism."""
    return isinstance(module, DistributedDataParallel)


def sends_buffers(wrapper: DistributedDataParallel) -> bool:
    """Whether a wrapper sends the first rank's buffers to all at each forward call."""
    return bool(getattr(wrapper, "forward_sync_buffers", False) or vars(wrapper).get("broadcast_buffers", False))


def group(wrapper: DistributedDataParallel) -> tuple[int, int]:
    """Number of ranks whose gradients a wrapper averages, and this rank's place among them."""
    return int(wrapper.process_group.size()), int(wrapper.process_group.rank())


def process_group(module: nn.Module) -> Any:
    """The ranks whose gradients a wrapper for data parallelism averages; None of any other module, or of a rank alone."""
    module = getattr(module, "_orig_mod", module)
    if not is_wrapper(module) or module.process_group.size() == 1:  # type: ignore[operator]
        return None
    return module.process_group


def summed(tensor: Tensor, among: Any) -> Tensor:
    """The sum of what the ranks of a process group hold; every one of them must call it."""
    total = tensor.detach().clone()
    dist.all_reduce(total, group=among)
    return total


def share(module: nn.Module) -> tuple[int, int]:
    """Which share of the data this rank sees, as far as a module tells that `fully_shard` has sharded.

    Args:
        module: Any module.

    Returns:
        Number of ranks whose gradients it averages, and this rank's place among them; (1, 0) of any other module.
    """
    get = getattr(module, "_get_fsdp_state", None)
    if get is not None:
        with contextlib.suppress(AttributeError, AssertionError, RuntimeError):
            for group in get()._fsdp_param_groups:
                mesh = group.mesh_info.mesh
                place = 0
                for size, at in zip(mesh.shape, mesh.get_coordinate(), strict=True):
                    place = place * size + at
                return int(mesh.size()), place
    return 1, 0


def is_spread(tensor: Tensor) -> bool:
    """Whether a tensor is spread over ranks (a DTensor)."""
    return type(tensor) not in {Tensor, nn.Parameter} and hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: its shard of a DTensor, else the tensor itself. No communication."""
    return tensor.to_local() if is_spread(tensor) else tensor  # type: ignore[attr-defined]


def is_sum_pending(tensor: Tensor) -> bool:
    """Whether what the ranks hold of a tensor has yet to be added up, so that no shard of it means anything."""
    return is_spread(tensor) and any(placement.is_partial() for placement in tensor.placements)  # type: ignore[attr-defined]


def is_copy(tensor: Tensor) -> bool:
    """Whether another rank, of a smaller number, holds the very shard of a DTensor that this one holds."""
    if not is_spread(tensor):
        return False
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    here = mesh.get_coordinate()
    if here is None:  # not of this mesh
        return True
    return any(where and place.is_replicate() for where, place in zip(here, tensor.placements, strict=True))  # type: ignore[attr-defined]


def first_holder(tensor: Tensor) -> int:
    """The first of the ranks that a DTensor is spread over."""
    return int(tensor.device_mesh.mesh.min())  # type: ignore[attr-defined]


def is_whole(tensor: Tensor) -> bool:
    """Whether each rank has all of a tensor: one that is not spread, or spread as copies."""
    return not is_spread(tensor) or all(placement.is_replicate() for placement in tensor.placements)  # type: ignore[attr-defined]


def mesh_size(tensor: Tensor) -> int:
    """Number of ranks that a tensor is spread over; 1 for a plain one."""
    return int(tensor.device_mesh.size()) if is_spread(tensor) else 1  # type: ignore[attr-defined]


def own_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module as its author wrote it: `fully_shard` puts one of its own making in its place."""
    cls = type(module)
    bases = cls.__bases__
    if len(bases) == 2 and bases[0].__module__.startswith("torch.distributed.") and issubclass(bases[1], nn.Module):
        return bases[1]
    return cls
