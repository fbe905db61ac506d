"""BatchNorm under activation checkpointing: buffers as without it, gradients too, in both modes of checkpoint."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from trimtab.errors import NormalizationError
from trimtab.norms.layers import (
    CheckpointedBatchNorm1d,
    CheckpointedBatchNorm2d,
    CheckpointedBatchNorm3d,
)

KINDS = {
    2: (CheckpointedBatchNorm1d, nn.BatchNorm1d),
    3: (CheckpointedBatchNorm1d, nn.BatchNorm1d),
    4: (CheckpointedBatchNorm2d, nn.BatchNorm2d),
    5: (CheckpointedBatchNorm3d, nn.BatchNorm3d),
}


def net(norm):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), norm, nn.ReLU(), nn.Linear(8, 3))


def trained(model, run, steps=4, momentum=0.1):
    """Buffers and parameters after a few steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(7, 6, generator=generator).requires_grad_()
        optimizer.zero_grad()
        run(model, x).square().mean().backward()
        optimizer.step()
    return list(model.state_dict().values())


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_step_counts_once(reentrant, momentum):
    def plain(model, x):
        return model(x)

    def saved(model, x):
        return checkpoint(model, x, use_reentrant=reentrant)

    expected = trained(net(nn.BatchNorm1d(8, momentum=momentum)), plain)
    for found, true in zip(trained(net(CheckpointedBatchNorm1d(8, momentum=momentum)), saved), expected, strict=True):
        assert torch.equal(found, true)
    # What it repairs (pytorch#96136): PyTorch's layer counts every step twice.
    twice = net(nn.BatchNorm1d(8, momentum=momentum))
    trained(twice, saved)
    assert int(twice[1].num_batches_tracked) == 8


def test_pain_8_the_mean_moves_1_9_times_as_far():
    x = torch.randn(20, 8) + 3
    layers = [nn.BatchNorm1d(8), CheckpointedBatchNorm1d(8)]
    for layer in layers:
        checkpoint(layer, x.clone().requires_grad_(), use_reentrant=False).sum().backward()
    torch.testing.assert_close(layers[1].running_mean, 0.1 * x.mean(0))
    torch.testing.assert_close(layers[0].running_mean, 1.9 * layers[1].running_mean)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 6), (2, 3, 4, 4), (2, 3, 2, 2, 2)])
def test_without_checkpointing_it_is_pytorchs(shape):
    ours, theirs = (kind(3) for kind in KINDS[len(shape)])
    x = torch.randn(shape)
    for _ in range(3):
        assert torch.equal(ours(x), theirs(x))
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("reentrant", [True, False])
def test_nested_and_in_a_sequence(reentrant):
    def nested(model, x):
        def inner(x):
            return checkpoint(model[:3], x, use_reentrant=reentrant)

        return model[3:](checkpoint(inner, x, use_reentrant=reentrant))

    def sequence(model, x):
        return checkpoint_sequential(model, 2, x, use_reentrant=reentrant)

    expected = trained(net(nn.BatchNorm1d(8)), lambda model, x: model(x))
    for run in (nested, sequence):
        for found, true in zip(trained(net(CheckpointedBatchNorm1d(8)), run), expected, strict=True):
            assert torch.equal(found, true)


def test_several_backward_passes_of_one_forward():
    layer, x = CheckpointedBatchNorm1d(8), torch.randn(5, 8, requires_grad=True)
    y = checkpoint(layer, x, use_reentrant=False)
    y.sum().backward(retain_graph=True)
    y.square().sum().backward()
    assert int(layer.num_batches_tracked) == 1
    layer(x)  # a forward call of the next step counts
    assert int(layer.num_batches_tracked) == 2


def test_a_batch_that_is_not_finite_is_counted_once_too():
    layer, x = CheckpointedBatchNorm1d(2), torch.randn(5, 2)
    x[0, 0] = float("inf")
    checkpoint(layer, x.requires_grad_(), use_reentrant=False).sum().backward()
    assert int(layer.num_batches_tracked) == 1
    assert bool(layer.running_mean[1].isfinite())


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_compiled_inside_and_outside(reentrant, momentum):
    """The compiled forward pass runs again in the backward pass and must ask then."""
    torch.compiler.reset()
    expected = trained(net(nn.BatchNorm1d(8, momentum=momentum)), lambda model, x: model(x))
    model = net(CheckpointedBatchNorm1d(8, momentum=momentum))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = trained(model, lambda _, x: checkpoint(compiled, x, use_reentrant=reentrant))
    torch.testing.assert_close(found, expected)
    if not reentrant:  # PyTorch compiles no reentrant checkpoint
        torch.compiler.reset()
        model = net(CheckpointedBatchNorm1d(8, momentum=momentum))
        around = torch.compile(lambda x: checkpoint(model, x, use_reentrant=False), backend="aot_eager")
        torch.testing.assert_close(trained(model, lambda _, x: around(x)), expected)


def test_wrong_inputs():
    with pytest.raises(NormalizationError, match="CheckpointedBatchNorm2d: expected 4D input"):
        CheckpointedBatchNorm2d(3)(torch.randn(4, 3))
    with pytest.raises(NormalizationError, match="needs 3"):
        CheckpointedBatchNorm1d(3)(torch.randn(4, 5))
