"""Trainings that run on one rank or on several, and what of them is compared."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import trimtab

STEPS = 12
BATCH = 48
"""Samples of the global batch; 2, 3 and 4 divide it."""

Wrap = Callable[[nn.Module], nn.Module]


class Net(nn.Module):
    """A bottleneck, a norm, a residual connection; 17 and 5 are sizes that ranks cannot share out evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 17)
        self.norm = nn.LayerNorm(17)
        self.body = nn.Sequential(nn.Linear(17, 32), nn.GELU(), nn.Linear(32, 17))
        self.head = nn.Linear(17, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        return self.head(x + self.body(x))


def net(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return Net().to(dtype)


def plain(model: nn.Module) -> nn.Module:
    return model


def ddp(model: nn.Module, **options: Any) -> nn.Module:
    return DistributedDataParallel(model, **options)


def fsdp(model: nn.Module, mesh: Any = None, **options: Any) -> nn.Module:
    for part in (model.first, *model.body):
        if isinstance(part, nn.Linear):
            fully_shard(part, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fsdp_offloaded(model: nn.Module) -> nn.Module:
    return fsdp(
        model, init_device_mesh("cpu", (dist.get_world_size(),)), offload_policy=CPUOffloadPolicy(pin_memory=False)
    )


def fsdp_half(model: nn.Module) -> nn.Module:
    return fsdp(model.float(), cpu_mesh(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


def fsdp_cpu(model: nn.Module) -> nn.Module:
    return fsdp(model, cpu_mesh())


def hsdp(model: nn.Module) -> nn.Module:
    return fsdp(model, init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copies", "shards")))


def tensor_parallel(model: nn.Module) -> nn.Module:
    plan = {"body.0": ColwiseParallel(), "body.2": RowwiseParallel()}
    return parallelize_module(model, cpu_mesh(), plan)


def both_parallel(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"body.0": ColwiseParallel(), "body.2": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["data"])


def cpu_mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


@dataclass
class Outcome:
    """What a training leaves on one rank."""

    losses: list[float]
    weights: list[Tensor]
    random: Tensor
    rows: dict[tuple[str, str], Any] = field(default_factory=dict)
    recorded: list[float] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    info: list[dict[str, Any]] = field(default_factory=list)
    words: str = ""


def data(steps: int = STEPS) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(steps, BATCH, 10, generator=drawn, dtype=torch.float64)
    return x, torch.randint(0, 5, (steps, BATCH), generator=drawn)


def train(
    wrap: Wrap = plain,
    *,
    watched: bool = True,
    share: int = 0,
    accumulate: int = 1,
    clip: bool = True,
    steps: int = STEPS,
    every: int | None = 1,
    store: str | None = None,
    before: Callable[[nn.Module, int], None] | None = None,
    batch: Callable[[Tensor, int], Tensor] | None = None,
) -> Outcome:
    """Train on this rank's share of the batch.

    Args:
        wrap: Makes the model distributed.
        watched: Whether trimtab watches.
        share: Ranks that see one share of the batch; 0: each its own.
        accumulate: Micro-batches of a step.
        clip: Whether the gradient is clipped; torch cannot where plain and distributed parameters stand side by side.
        steps: Steps.
        every: As for `trimtab.watch`.
        store: Likewise.
        before: Called with the model and the step before each step.
        batch: Picks this rank's samples of a tensor, by step.
    """
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if share:
        rank, size = rank // share, size // share
    model = wrap(net())
    dtype = torch.float32 if wrap is fsdp_half else torch.float64
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = data(steps)
    pick = batch or (lambda tensor, step: tensor[rank::size])
    losses = []
    around = trimtab.watch(model, optimizer, every=every, store=store) if watched else contextlib.nullcontext()
    with around as watch:
        for step in range(steps):
            if before is not None:
                before(model, step)
            optimizer.zero_grad()
            inputs, targets = pick(x[step], step).to(dtype), pick(y[step], step)
            total = 0.0
            for a, b in zip(inputs.chunk(accumulate), targets.chunk(accumulate), strict=True):
                loss = nn.functional.cross_entropy(model(a), b) / accumulate
                loss.backward()
                total += loss.item()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(total)
    weights = [
        p.detach().to_local().clone() if hasattr(p, "to_local") else p.detach().clone() for p in model.parameters()
    ]
    outcome = Outcome(losses, weights, torch.get_rng_state())
    if watched:
        record = watch.record
        for site in record.sites:
            series = record.series(site)
            outcome.rows[site.name, site.kind] = (series.steps, series.rows)
        outcome.recorded = record.losses.tolist()
        outcome.facts = record.facts
        outcome.info = record.info
        diagnosis = watch.diagnose()
        outcome.codes = [finding.code for finding in diagnosis.findings]
        outcome.words = " ".join(str(diagnosis).split())
    return outcome
