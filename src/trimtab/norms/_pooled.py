"""The values that one BatchNorm sees, pooled over batches and ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from trimtab.errors import NormalizationError
from trimtab.norms._channel_moments import ChannelMoments, channel_moments, merge
from trimtab.norms.layers.batch_renorm import BatchRenorm1d, BatchRenorm2d, BatchRenorm3d

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Pool:
    """Pooled moments of the inputs of a layer, and its running statistics before and after.

    Args:
        name: The layer's name.
        module: A BatchNorm with running statistics.
        group: Process group to pool over, None for this process alone.
    """

    def __init__(self, name: str, module: nn.Module, group: "ProcessGroup | None") -> None:
        mean, var = module.running_mean, module.running_var
        assert isinstance(mean, Tensor)
        assert isinstance(var, Tensor)
        self.name, self.module, self.group = name, module, group
        self.running_mean, self.running_var = mean, var
        self.old_mean, self.old_variance = (t.detach().to(torch.float64, copy=True) for t in (mean, var))
        self._saved = [
            (t, t.detach().clone()) for t in (mean, var, module.num_batches_tracked) if isinstance(t, Tensor)
        ]
        # Of batch renormalization the count is the clock of its limits, and stays.
        self._keeps_count = isinstance(module, (BatchRenorm1d, BatchRenorm2d, BatchRenorm3d))
        self.moments: ChannelMoments | None = None
        self.calls = 0
        self._variances = torch.zeros_like(self.old_mean)
        self._with_variance = 0
        self._handle: RemovableHandle | None = None

    @property
    def mean_of_variances(self) -> Tensor:
        """Mean over the calls of the unbiased variances; nan where no call had two values."""
        return self._variances / self._with_variance if self._with_variance else self._variances * torch.nan

    def start(self, stop: type[BaseException] | None, own_batch: bool) -> None:
        """Take in what the layer is called with from now on.

        Args:
            stop: What to raise at the call, None to let it go on.
            own_batch: Whether the layer normalizes by the statistics of the batch meanwhile, as in training.
        """

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
                return
            self._add(args[0])
            if stop is not None:
                raise stop

        self._handle = self.module.register_forward_pre_hook(before, with_kwargs=True)
        if own_batch:
            self.module.train()  # its running statistics move; `write` or `restore` has the last word

    def stop(self) -> None:
        """Take in nothing more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
            self.module.eval()

    @contextmanager
    def listening(self, stop: type[BaseException] | None, own_batch: bool) -> Iterator[None]:
        """Take in what the layer is called with inside.

        Args:
            stop: As for `start`.
            own_batch: As for `start`.

        Yields:
            Nothing.
        """
        self.start(stop, own_batch)
        try:
            yield
        finally:
            self.stop()

    def finish(self) -> None:
        """Pool over the ranks.

        Raises:
            NormalizationError: If there were no two values per channel, or one was not finite.
        """
        if self.group is not None:
            self._gather(self.group)
        moments = self.moments
        label = self.name or "the model itself"
        if moments is None or moments.count < 2:
            found = 0 if moments is None else moments.count
            raise NormalizationError(
                f"{label} got {found} values per channel from the batches; at least 2 are needed for a variance"
            )
        if not bool((torch.isfinite(moments.mean) & torch.isfinite(moments.m2)).all()):
            raise NormalizationError(
                f"the input of {label} is not finite in some batch; no statistics were changed: look at the data and at "
                "the layers before it"
            )

    def write(self) -> None:
        """Make the pooled moments the running statistics."""
        assert self.moments is not None
        self.running_mean.copy_(self.moments.mean)
        self.running_var.copy_(self.moments.variance)
        if isinstance(seen := self.module.num_batches_tracked, Tensor):
            old = next(value for tensor, value in self._saved if tensor is seen)
            seen.copy_(old) if self._keeps_count else seen.fill_(self.calls)

    def restore(self) -> None:
        """Put the old running statistics back."""
        with torch.no_grad():
            for tensor, value in self._saved:
                tensor.copy_(value)

    def _add(self, x: Tensor) -> None:
        found = channel_moments(x)
        self.calls += 1
        if found.count > 1:
            self._variances = self._variances + found.variance
            self._with_variance += 1
        self.moments = found if self.moments is None else merge(self.moments, found)

    def _gather(self, group: "ProcessGroup") -> None:
        """Merge the moments of all ranks, in the order of the ranks, so that all get the same to the last bit."""
        mine = self.moments or ChannelMoments(0, torch.zeros_like(self.old_mean), torch.zeros_like(self.old_mean))
        counts = mine.mean.new_tensor([mine.count, self.calls, self._with_variance])
        block = torch.cat([counts, mine.mean, mine.m2, self._variances])
        blocks = [torch.empty_like(block) for _ in range(dist.get_world_size(group))]
        dist.all_gather(blocks, block, group=group)
        channels = len(mine.mean)
        self.moments, self.calls, self._with_variance = None, 0, 0
        self._variances = torch.zeros_like(self._variances)
        for other in blocks:
            count, calls, with_variance = (round(v) for v in other[:3].tolist())
            if not count:
                continue
            mean, m2, variances = torch.split(other[3:], channels)
            found = ChannelMoments(count, mean, m2)
            self.moments = found if self.moments is None else merge(self.moments, found)
            self.calls += calls
            self._with_variance += with_variance
            self._variances = self._variances + variances
