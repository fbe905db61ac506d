"""Moments over the ranks of a `torch.distributed` group."""

from typing import Any

import torch.distributed as dist

from trimtab.errors import NormalizationError


def gather(state: Any, group: Any = None) -> list[Any]:
    """What every rank of a group holds, in the order of ranks and so merged to the same bits everywhere.

    Moments are few numbers (48 bytes a feature), so that they travel whole; sums of centred moments could not be added by an
    all-reduce.

    Args:
        state: This rank's object, picklable.
        group: A process group; None for the default one.

    Returns:
        One object a rank.

    Raises:
        NormalizationError: If there is no process group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise NormalizationError(
            "merge_ranks needs a process group: call torch.distributed.init_process_group first, "
            "or merge standardizers of one process with merge(...)"
        )
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, state, group=group)
    return gathered
