"""Turn the normalizations of a model into another kind, carry what can be carried, and say what changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import refuse, require_function, require_names, require_values, require_whole
from trimtab.norms._groups import require_groups
from trimtab.norms._kinds import BATCH_KINDS, kind_of, names_of, replace
from trimtab.norms._passes import Batches, Forward, copy_of, feed, fresh_passes
from trimtab.norms.converting._batches import Change, fit, input_shapes, measure
from trimtab.norms.converting._source import Skipped, Source, describe
from trimtab.norms.converting._target import TARGETS, Target, build
from trimtab.norms.layers._batch import BatchNormBase
from trimtab.norms.layers.masked_batch import MaskedBatchNorm1d, MaskedBatchNorm2d, MaskedBatchNorm3d

_PLAIN = {name.replace("_", ""): name for name in TARGETS}
_SHORT = _PLAIN | {plain.replace("batchnorm", "bn"): name for plain, name in _PLAIN.items()}  # FrozenBN, SyncBN


@dataclass(frozen=True, slots=True)
class LayerChange:
    """What became of one layer.

    Attributes:
        names: Its names; more than one for a shared layer, which stays shared.
        before: Class of the old layer.
        after: Class of the new one.
        exact: Whether the new layer computes the same function, in the mode it is in; never said of a good fit.
        note: What was carried over, and what is different.
        elements: Values per statistic of the new layer, None where it takes none of its input or that is not known.
        fitted: Whether weight and bias were fitted to the old output.
        max_change: Largest |new - old| of the layer's output for the same input, in evaluation mode; None without
            batches.
        rms_change: Root of the mean square of new - old.
        rms_output: Root of the mean square of the old output, to judge the change by.
    """

    names: tuple[str, ...]
    before: str
    after: str
    exact: bool
    note: str
    elements: int | None
    fitted: bool = False
    max_change: float | None = None
    rms_change: float | None = None
    rms_output: float | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """A model with other normalizations.

    Attributes:
        model: The new model; the old one is untouched, and an optimizer of the old one knows nothing of this one.
        changes: One for each layer that was converted.
        skipped: Name and reason for each normalization that was left as it is.
        max_change: Largest |new(x) - old(x)| of the whole model on the batches, in evaluation mode; None without batches.
        rms_change: Root of the mean square of new(x) - old(x).
        rms_output: Root of the mean square of old(x).
    """

    model: nn.Module
    changes: tuple[LayerChange, ...]
    skipped: tuple[tuple[str, str], ...]
    max_change: float | None = None
    rms_change: float | None = None
    rms_output: float | None = None

    @property
    def exact(self) -> bool:
        """Whether every layer computes what it computed before."""
        return all(change.exact for change in self.changes)


def convert(
    model: nn.Module,
    to: str,
    batches: Batches | None = None,
    groups: int | None = None,
    *,
    layers: Sequence[str] | None = None,
    forward: Forward = feed,
) -> Converted:
    """Turn normalizations into another kind.

    Weight, bias and eps are carried over, running statistics where both kinds have them; so are device, dtype, mode,
    `requires_grad` and sharing. A layer without affine part stays without. On batches, weight and bias of every layer
    whose function changes are fitted per channel to its old output by least squares (in evaluation mode, with the
    inputs that the old model gives it), running statistics that are new are pooled, and the change of each layer and of
    the model is measured. A conversion that is not exact is never called so, however small the change on the batches.
    Hooks run meanwhile, and what they note is taken back.

    trimtab's own batch layers become PyTorch's by "batch_norm"; in evaluation mode that is exact.

    "layer_norm" and "rms_norm" normalize over the channels at each position; for all positions of a sample together
    ask for "group_norm" with `groups=1`. "none" leaves a scale and a shift per channel.

    Args:
        model: The model; a copy of it is converted.
        to: "batch_norm", "group_norm", "layer_norm", "instance_norm", "rms_norm", "frozen_batch_norm",
            "sync_batch_norm" or "none".
        batches: A DataLoader, a list or a function that returns a fresh iterable; None for none.
        groups: Number of groups of a GroupNorm; None for the largest divisor of the channels up to 32 that leaves
            4 channels to a group, or 16 values where batches show how many positions there are.
        layers: Names of the layers to convert; None for all.
        forward: `forward(model, batch)` calls the model; by default with the batch, its first element if it is a tuple
            or list, or its items as keyword arguments.

    Returns:
        The new model and what changed.

    Raises:
        NormalizationError: If the model cannot be copied, the kind or a layer is unknown, `groups` does not divide a layer's
            channels or is given for another kind, or there is no batch in `batches` or no sample in those.
    """
    kind = _target(to)
    if groups is not None:
        require_whole(groups=groups)
    if kind != "group_norm" and groups is not None:
        raise NormalizationError(f"groups is {groups}, but {kind} has no groups; leave it out, or ask for 'group_norm'")
    require_function("forward", forward, "forward(model, batch)")
    old, new = copy_of(model), copy_of(model)
    names = _chosen(old, kind, groups, layers)
    if batches is not None:
        require_values(old)
    one_pass = None if batches is None else fresh_passes(batches, several=True)
    shapes, masked = ({}, set()) if one_pass is None else input_shapes(old, names, one_pass, forward)
    like = next(chain(old.parameters(), old.buffers()), None)
    sources: dict[str, Source] = {}
    targets: dict[str, Target] = {}
    skipped: list[tuple[str, str]] = []
    for name in names:
        try:
            _refuse_unfit(old, name, name in masked)
            sources[name] = describe(old.get_submodule(name), shapes.get(name), like)
            if kind == "group_norm" and groups is not None:
                require_groups(groups, sources[name].channels, name)
            targets[name] = build(sources[name], kind, groups)
        except Skipped as reason:
            skipped.append((name, str(reason)))
            sources.pop(name, None)
    fitted: set[str] = set()
    if one_pass is not None:
        fitted = fit(old, sources, targets, one_pass, forward)
    else:
        skipped += _drop_open(targets, kind)
    for name, target in targets.items():
        for each in names_of(old, old.get_submodule(name)):
            new = replace(new, each, target.module)
    changes: dict[str, Change] = {}
    whole = Change()
    if one_pass is not None:
        changes, whole = measure(old, new, targets, one_pass, forward)
    told = tuple(
        _change(old, name, target, name in fitted, changes.get(name, Change())) for name, target in targets.items()
    )
    return Converted(new, told, tuple(skipped), whole.largest, whole.rms, whole.rms_output)


def _target(to: str) -> str:
    plain = (to if isinstance(to, str) else "").lower().replace("_", "").replace("-", "").replace(" ", "")
    found = _SHORT.get(plain)
    if found is None:
        refuse("to", to, f"known are {', '.join(map(repr, TARGETS))}")
    return found


def _chosen(model: nn.Module, kind: str, groups: int | None, layers: Sequence[str] | None) -> list[str]:
    """Returns the normalizations to convert, each once."""
    there = {name: module for name, module in model.named_modules() if kind_of(module) is not None}
    if layers is not None:
        layers = require_names("layers", layers, "modules")
        every = {name: m for name, m in model.named_modules(remove_duplicate=False) if kind_of(m) is not None}
        if unknown := [name for name in layers if name not in every]:
            raise NormalizationError(
                f"layers holds {unknown[0]!r}, which is no normalization of the model: {', '.join(every)}"
            )
        there = {name: m for name, m in there.items() if any(every[asked] is m for asked in layers)}
    return [name for name, module in there.items() if not _is_already(module, kind, groups)]


def _is_already(module: nn.Module, kind: str, groups: int | None) -> bool:
    if kind_of(module) != kind or isinstance(module, BatchNormBase):  # trimtab's batch layers become PyTorch's
        return False
    return not (kind == "group_norm" and groups is not None and module.num_groups != groups)


def _refuse_unfit(model: nn.Module, name: str, masked: bool) -> None:
    if masked:
        raise Skipped("it is called with more than one argument: a layer of another kind has no use for a mask")
    parent = model.get_submodule(name.rpartition(".")[0]) if name else model
    if isinstance(parent, nn.TransformerEncoderLayer):
        raise Skipped(
            "nn.TransformerEncoderLayer computes LayerNorm by itself in evaluation mode, whatever stands there"
        )


def _drop_open(targets: dict[str, Target], kind: str) -> list[tuple[str, str]]:
    """Returns, and removes, layers whose fixed statistics nobody knows."""
    if kind != "frozen_batch_norm":
        return []
    without = [name for name, target in targets.items() if target.open_statistics]
    for name in without:
        del targets[name]
    return [(name, "it has no running statistics to freeze; give batches") for name in without]


def _change(model: nn.Module, name: str, target: Target, fitted: bool, change: Change) -> LayerChange:
    module = model.get_submodule(name)
    note = target.note
    if isinstance(module, (MaskedBatchNorm1d, MaskedBatchNorm2d, MaskedBatchNorm3d)):
        note += "; it takes no mask"
    if target.open_statistics and change.largest is None:
        note = "no statistics are known: they start at mean 0 and variance 1; give batches"
    seen: Any = getattr(module, "num_batches_tracked", None)
    if kind_of(module) in BATCH_KINDS and torch.is_tensor(seen) and not seen.is_meta and int(seen) == 0:
        note += "; the running statistics of the old layer were never updated"
    return LayerChange(
        names_of(model, module),
        type(module).__name__,
        type(target.module).__name__ if target.module is target.norm else f"ChannelsLast({type(target.norm).__name__})",
        target.exact,
        note,
        target.elements,
        fitted,
        change.largest,
        change.rms,
        change.rms_output,
    )
