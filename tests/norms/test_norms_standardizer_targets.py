"""Targets: a standardization of what a network predicts, folded into its last layer."""

import numpy as np
import pytest
import torch
from torch import nn

from trimtab.norms.standardizer import FoldError, Standardizer

EXACT = 1e-11


@pytest.fixture(autouse=True)
def _double():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def fitted(d):
    return Standardizer().fit(torch.randn(100, d) * torch.arange(1, d + 1) * 20 + 300)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("example", [True, False])
def test_linear(bias, example):
    x, targets = torch.randn(10, 4), fitted(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 3, bias=bias), nn.Identity()))
    folded = targets.fold_targets_into(model, x if example else None)
    torch.testing.assert_close(folded(x), targets.inverse_transform(model(x)), rtol=0, atol=EXACT)
    assert folded.fold_report.layers == ("2.0",)
    assert folded.fold_report.difference < EXACT
    w = model[2][0].weight.detach().numpy()
    np.testing.assert_allclose(folded[2][0].weight.detach(), w * targets.scale_[:, None], rtol=1e-14)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv1d(2, 6, 3, groups=2),
        lambda: nn.Conv2d(2, 6, 3, padding=1, bias=False),
        lambda: nn.ConvTranspose1d(2, 6, 3),
        lambda: nn.ConvTranspose2d(2, 6, 3, stride=2, groups=2),
        lambda: nn.ConvTranspose3d(2, 6, 2, bias=False),
    ],
)
def test_convolutions(layer):
    conv, targets = layer(), fitted(6)
    x = torch.randn(3, 2, *[5] * len(conv.kernel_size))
    torch.testing.assert_close(
        targets.fold_targets_into(conv)(x), targets.inverse_transform(conv(x)), rtol=0, atol=EXACT
    )


def test_inputs_and_targets_together():
    x, y = torch.randn(200, 3) * torch.tensor([1.0, 100.0, 0.01]) + 50, torch.randn(200) * 7 - 1000
    inputs, targets = Standardizer().fit(x), Standardizer().fit(y)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))
    raw = targets.fold_targets_into(inputs.fold_into(model, x), x)
    torch.testing.assert_close(raw(x), targets.inverse_transform(model(inputs.transform(x))), rtol=0, atol=EXACT)


class Squared(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(2, 2)

    def forward(self, x):
        return self.last(x).square()


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (Squared, {}, "cannot be told from its structure"),
        (Squared, {"layer": "last", "example": torch.ones(3, 2)}, "the model differs by"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), {}, "cannot be told from its structure"),
        (lambda: nn.Linear(2, 3), {}, "has 3 outputs, the standardizer was fitted on 2 targets"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), {"layer": "1"}, "1 is a ReLU"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), {"layer": "lost"}, "'lost', which is no module"),
    ],
)
def test_what_is_not_exact_is_refused(make, options, words):
    with pytest.raises(FoldError, match=words):
        fitted(2).fold_targets_into(make(), **options)


def test_tied_weights_are_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    with pytest.raises(FoldError, match="is shared with"):
        fitted(2).fold_targets_into(model)
