"""Exported and compiled forms of the layers agree with the eager ones: outputs, gradients and buffers."""

import copy
import shutil

import pytest
import torch
from torch import nn

from trimtab.norms import layers
from trimtab.norms.layers._kernels import NO_NUMBA

MASK = torch.arange(9) < torch.tensor([9, 4, 6, 7, 9, 2, 5, 8])[:, None]
CASES = {
    "masked": (lambda: layers.MaskedBatchNorm1d(6), (8, 6, 9), {"mask": MASK}),
    "masked without": (lambda: layers.MaskedBatchNorm1d(6), (8, 6, 9), {}),
    "masked 2d": (lambda: layers.MaskedBatchNorm2d(6), (8, 6, 3, 3), {"mask": MASK.view(8, 3, 3)}),
    "ghost": (lambda: layers.GhostBatchNorm1d(6, ghost_size=4), (8, 6, 9), {}),
    "ghost unequal": (lambda: layers.GhostBatchNorm2d(6, ghost_size=3), (8, 6, 3, 3), {}),
    "renorm": (lambda: layers.BatchRenorm1d(6, warm_up=(0, 0, 0)), (8, 6), {}),
    "checkpointed": (lambda: layers.CheckpointedBatchNorm2d(6), (8, 6, 3, 3), {}),
    "rms": (lambda: layers.RMSNorm([3, 3], 1e-3), (8, 6, 3, 3), {}),
    "conv1": (lambda: layers.WSConv1d(6, 4, 3, padding=1), (8, 6, 9), {}),
    "conv2": (
        lambda: layers.WSConv2d(6, 4, 3, scaled=True, gain=True, padding_mode="circular", padding=1),
        (8, 6, 3, 3),
        {},
    ),
    "conv3": (lambda: layers.WSConv3d(6, 4, 2), (8, 6, 3, 3, 3), {}),
    "linear": (lambda: layers.WSLinear(9, 4), (8, 6, 9), {}),
}


def prepared(name, training):
    make, shape, keywords = CASES[name]
    torch.manual_seed(0)
    layer = make().train(training)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_()
    for name_, buffer in layer.named_buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 2)
        else:
            assert name_ == "num_batches_tracked"
            buffer.fill_(3)
    return layer, torch.randn(shape), keywords


def run(function, layer, x, keywords):
    x = x.clone().requires_grad_()
    y = function(x, **keywords)
    dy = torch.linspace(-1, 1, y.numel()).view(y.shape)
    return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], dy), *layer.buffers()]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", CASES)
def test_compiled(name, training, monkeypatch):
    monkeypatch.setenv(NO_NUMBA, "1")
    torch.compiler.reset()
    layer, x, keywords = prepared(name, training)
    other = copy.deepcopy(layer)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        expected = run(layer, layer, x, keywords)
        found = run(compiled, other, x, keywords)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", CASES)
def test_exported(name, training):
    layer, x, keywords = prepared(name, training)
    exported = torch.export.export(copy.deepcopy(layer), (x,), keywords).module()
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(exported(x, **keywords), layer(x, **keywords), rtol=1e-5, atol=2e-5)
    for a, b in zip(exported.buffers(), layer.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_exported_programs_need_no_trimtab():
    """A program that someone loads elsewhere holds operations of PyTorch alone."""
    for name in CASES:
        for training in (True, False):
            layer, x, keywords = prepared(name, training)
            program = torch.export.export(layer, (x,), keywords)
            targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
            assert targets
            assert not [t for t in targets if "trimtab" in t]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own scripts, which inductor imports
@pytest.mark.parametrize("name", ["masked", "checkpointed", "ghost", "renorm", "rms"])
def test_compiled_by_inductor(name):
    torch.compiler.reset()
    layer, x, keywords = prepared(name, True)
    other = copy.deepcopy(layer)
    compiled = torch.compile(other, fullgraph=True)
    for _ in range(2):
        expected = run(layer, layer, x, keywords)
        torch.testing.assert_close(run(compiled, other, x, keywords), expected, rtol=1e-4, atol=1e-4)


def test_a_dynamic_batch_of_sequences():
    torch.compiler.reset()
    layer = layers.MaskedBatchNorm1d(6)
    other = copy.deepcopy(layer)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True, dynamic=True)
    for n, length in ((4, 9), (7, 12), (3, 5)):
        x, mask = torch.randn(n, 6, length), torch.rand(n, length) < 0.7
        torch.testing.assert_close(compiled(x, mask), layer(x, mask), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(list(other.buffers()), list(layer.buffers()))


def test_converting_to_sync_and_freezing_see_batch_norm():
    """PyTorch's tools look for its classes."""
    for kind in (
        layers.MaskedBatchNorm2d,
        layers.GhostBatchNorm2d,
        layers.BatchRenorm2d,
        layers.CheckpointedBatchNorm2d,
    ):
        assert isinstance(kind(3), nn.BatchNorm2d)
        synced = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(kind(3, momentum=0.3)))
        assert type(synced[0]) is nn.SyncBatchNorm
        assert synced[0].momentum == 0.3
