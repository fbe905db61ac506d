"""The standardization of targets folded into a model's last layer, so that it answers in the original units: y = s y' + mean."""

from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norms._arguments import refuse, require_module, require_values
from trimtab.norms._passes import copy_of
from trimtab.norms.standardizer._first import refuse_shared
from trimtab.norms.standardizer._inputs import example_of
from trimtab.norms.standardizer._layers import refuse_unready
from trimtab.norms.standardizer._verify import device_of, dtype_of, example_shape, measure, refuse_if_wrong
from trimtab.norms.standardizer.columns import Floats
from trimtab.norms.standardizer.errors import FoldError
from trimtab.norms.standardizer.folding import FoldReport
from trimtab.norms.standardizer.padded import Conv, ConvTranspose

_LAST = (nn.Linear, Conv, ConvTranspose)


def fold_targets(
    model: nn.Module, mean: Floats, scale: Floats, example: Any = None, *, layer: str | None = None
) -> nn.Module:
    """Fold y = s y' + mean into the last layer: W = s W', b = s b' + mean, per output.

    Args:
        model: Predicts standardized targets. It is not changed.
        mean: Of the targets, shape (d,).
        scale: Of the targets, shape (d,).
        example: A batch of the model's inputs, to compare the whole model on; without it the last layer alone is compared.
        layer: Name of the last layer; found by itself in a layer or nested `nn.Sequential`s.

    Returns:
        A changed copy, with the `FoldReport` as its attribute `fold_report`.

    Raises:
        FoldError: If there is no such layer, it has another number of outputs, is used elsewhere too, or the two models differ by
            more than rounding when run.
    """
    require_module("model", model)
    require_values(model)
    if layer is not None and not isinstance(layer, str):
        refuse("layer", layer, "the name of a module of the model, or None, is needed")
    name = _last(model, "") if layer is None else layer
    if name is None:
        raise FoldError(
            f"the last layer of a {type(model).__name__} cannot be told from its structure; give its name (layer=...) and an example"
        )
    try:
        last = model.get_submodule(name)
    except AttributeError as error:
        raise FoldError(f"layer is {name!r}, which is no module of the model; see named_modules()") from error
    if not isinstance(last, _LAST):
        raise FoldError(
            f"{name or 'the model'} is a {type(last).__name__}; Linear, Conv and ConvTranspose can take targets"
        )
    refuse_unready(last, name or "the model")
    refuse_shared(model, name)
    width = last.out_features if isinstance(last, nn.Linear) else last.out_channels
    if width != len(mean):
        raise FoldError(
            f"{name or 'the model'} has {width} outputs, the standardizer was fitted on {len(mean)} targets"
        )
    device = device_of(model)
    middle, spread = (torch.tensor(one, dtype=torch.float64, device=device) for one in (mean, scale))

    def fold(part: nn.Module, place: str) -> nn.Module:
        _rescale(part.get_submodule(place), middle, spread)
        return part

    folded = fold(copy_of(model), name)
    if example is None:
        shape, _ = example_shape(last)
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
        measured = measure(
            _Raw(last, middle, spread),
            folded.get_submodule(name),
            lambda raw: fold(raw.get_submodule("model"), ""),
            x,
            x,
        )
    else:
        x = example_of(example).to(device)
        measured = measure(
            _Raw(model, middle, spread), folded, lambda raw: fold(raw.get_submodule("model"), name), x, x
        )
    refuse_if_wrong(measured, [name], 0.0, dtype_of(model))
    report = FoldReport(
        (name,), measured.difference, measured.exact, measured.size, "layer" if example is None else "model"
    )
    folded.fold_report = report  # type: ignore[assignment]
    return folded


class _Raw(nn.Module):
    """A model followed by the inverse standardization."""

    model: nn.Module
    mean: Tensor
    scale: Tensor

    def __init__(self, model: nn.Module, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        y = self.model(x)
        shape = [-1] if self.mean.numel() == 1 else [-1 if place == 1 else 1 for place in range(y.dim())]
        return (y * self.scale.view(shape) + self.mean.view(shape)).to(y.dtype)  # type: ignore[no-any-return]


def _last(model: nn.Module, name: str) -> str | None:
    """Returns the name of the last layer of a layer or of nested Sequentials."""
    if isinstance(model, _LAST):
        return name
    if not isinstance(model, nn.Sequential):
        return None
    for key, child in reversed(list(model.named_children())):
        if not isinstance(child, nn.Identity | nn.Flatten):
            return _last(child, f"{name}.{key}" if name else key)
    return None


def _rescale(layer: nn.Module, mean: Tensor, scale: Tensor) -> None:
    """Writes s W and s b + mean."""
    assert isinstance(layer, _LAST)
    weight = layer.weight.detach().double()
    with torch.no_grad():
        if isinstance(layer, ConvTranspose):  # (C_in, C_out / groups, *kernel)
            grouped = weight.view(layer.groups, -1, *weight.shape[1:])
            factor = scale.view(layer.groups, 1, -1, *[1] * len(layer.kernel_size))
            layer.weight.copy_((grouped * factor).flatten(0, 1))
        else:
            layer.weight.copy_(weight * scale.view(-1, *[1] * (weight.dim() - 1)))
        if layer.bias is not None:
            layer.bias.copy_(layer.bias.double() * scale + mean)
        elif mean.any():
            layer.bias = nn.Parameter(mean.to(layer.weight), requires_grad=layer.weight.requires_grad)
