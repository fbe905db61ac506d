"""Running statistics move as those of PyTorch's modules do, also where a transform or a compiler looks on."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab.norms import functional as f


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def buffers(channels=4, dtype=torch.float64):
    return [torch.zeros(channels, dtype=dtype), torch.ones(channels, dtype=dtype)]


def same(ours, theirs, tolerance=1e-14):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


BATCHES = [draw(n, 4, 3, seed=n) * n for n in (2, 7, 3, 1)]


@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, None])
def test_batch_norm_moves_them_as_the_module_does(momentum):
    module = nn.BatchNorm1d(4, momentum=momentum, dtype=torch.float64)
    ours, tracked = buffers(), torch.tensor(0)
    for batch in BATCHES:
        module(batch)
        f.batch_norm(batch, *ours, training=True, momentum=momentum, num_batches_tracked=tracked)
    same(ours, (module.running_mean, module.running_var))
    assert int(tracked) == int(module.num_batches_tracked) == 4


def test_variance_is_the_unbiased_one():
    """Batch 0, 1, 2, 5 from the start (0, 1) at momentum 0.1: 1.3667, where the biased one would give 1.25."""
    ours = buffers(1)
    f.batch_norm(torch.tensor([[0.0], [1.0], [2.0], [5.0]], dtype=torch.float64), *ours, training=True)
    same(ours, (torch.tensor([0.2]).double(), torch.tensor([0.9 + 0.1 * 14.0 / 3.0]).double()), 1e-7)


@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_instance_norm_moves_them_as_the_module_does(momentum):
    module = nn.InstanceNorm1d(4, momentum=momentum, track_running_stats=True, dtype=torch.float64)
    ours = buffers()
    for batch in BATCHES:
        module(batch)
        f.instance_norm(batch, *ours, momentum=momentum)
    same(ours, (module.running_mean, module.running_var))


def test_masked_instance_norm_averages_over_samples_that_have_a_variance():
    x, mask = draw(3, 4, 5, seed=1), torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    ours = buffers()
    f.instance_norm(x, *ours, momentum=1.0, mask=mask)
    kept = [x[0], x[1, :, :3]]
    same(ours, (sum(k.mean(1) for k in kept) / 2, sum(k.var(1) for k in kept) / 2))


def test_an_empty_batch_counts_but_moves_nothing():
    module = nn.BatchNorm1d(4, momentum=None, dtype=torch.float64)
    ours, tracked = buffers(), torch.tensor(0)
    for batch in (BATCHES[0], torch.zeros(0, 4, 3).double(), BATCHES[1]):
        module(batch)
        f.batch_norm(batch, *ours, training=True, momentum=None, num_batches_tracked=tracked)
    same(ours, (module.running_mean, module.running_var))
    assert int(tracked) == int(module.num_batches_tracked)


def test_half_buffers_are_moved_in_float32():
    """Products are rounded once, not at each operation."""
    ours = buffers(dtype=torch.bfloat16)
    f.batch_norm(BATCHES[1].bfloat16(), *ours, training=True, momentum=0.01)
    wide = buffers(dtype=torch.float32)
    F.batch_norm(BATCHES[1].bfloat16().float(), *wide, training=True, momentum=0.01)
    same(ours, [b.bfloat16() for b in wide])


def test_neither_evaluation_nor_the_explicit_forward_move_them():
    ours = [draw(4, seed=2), draw(4, seed=3).exp()]
    before = [b.clone() for b in ours]
    f.batch_norm(BATCHES[1], *ours)
    f.batch_norm_forward(BATCHES[1], *ours, training=True)
    f.instance_norm(BATCHES[1], *ours, use_input_stats=False)
    f.instance_norm_forward(BATCHES[1], *ours)
    assert all(torch.equal(one, other) for one, other in zip(ours, before, strict=True))


def test_no_gradient_goes_to_running_statistics():
    mean, var = (t.requires_grad_() for t in (draw(4, seed=4), draw(4, seed=5).exp()))
    x = BATCHES[1].clone().requires_grad_()
    y = f.batch_norm(x, mean, var)
    assert torch.autograd.grad(y.sum(), (x, mean, var), allow_unused=True)[1:] == (None, None)


TRANSFORMS = {
    "grad": lambda loss, x: torch.func.grad(loss)(x),
    "grad of grad": lambda loss, x: torch.func.grad(lambda x: torch.func.grad(loss)(x).square().sum())(x),
    "jvp": lambda loss, x: torch.func.jvp(loss, (x,), (torch.ones_like(x),))[1],
    "jacfwd": lambda loss, x: torch.func.jacfwd(loss)(x),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own forward mode
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_function_transforms_reach_the_same_numbers_and_buffers(transform):
    found = []
    for norm in (f.batch_norm, F.batch_norm):
        moved = buffers()
        value = TRANSFORMS[transform](lambda x, n=norm, m=moved: n(x, *m, training=True).pow(3).sum(), BATCHES[1])
        found.append((value, *moved))
    same(*found, tolerance=1e-10)


def test_vmap_maps_over_models_with_their_buffers():
    """Each slice moves its own; over shared buffers PyTorch refuses, and so do we."""
    x, moved = torch.stack([BATCHES[1], BATCHES[1] * 2.0]), [torch.zeros(2, 4).double(), torch.ones(2, 4).double()]
    y = torch.func.vmap(lambda x, m, v: f.batch_norm(x, m, v, training=True))(x, *moved)
    for i in range(2):
        one = buffers()
        same((y[i],), (F.batch_norm(x[i], *one, training=True),), 1e-12)
        same((moved[0][i], moved[1][i]), one)
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(lambda x: f.batch_norm(x, *buffers(), training=True))(x)


def masked(x, mean, var):
    return f.batch_norm(x, mean, var, training=True, mask=torch.arange(3) < 2 + torch.arange(len(x))[:, None] % 2)


COMPILED = {
    "batch": lambda x, m, v: f.batch_norm(x, m, v, training=True),
    "batch, masked": masked,
    "group": lambda x, m, v: f.group_norm(x, 2, m, v),
    "instance": lambda x, m, v: f.instance_norm(x, m, v),
    "layer": lambda x, m, v: f.layer_norm(x.mT, 4, v, m),
    "rms": lambda x, m, v: f.rms_norm(x.mT, 4, v),
    "weight": lambda x, m, v: f.weight_norm(x, v.reshape(1, 4, 1), 1),
    "spectral": lambda x, m, v: f.spectral_norm(x, x[:, 0, 0].detach(), x[0].flatten().detach())[0],
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # the compiler's own
@pytest.mark.parametrize("form", COMPILED)
def test_compiles_into_one_graph_with_the_same_numbers(form):
    torch._dynamo.reset()
    found = []
    for function in (COMPILED[form], torch.compile(COMPILED[form], backend="aot_eager", fullgraph=True)):
        x, moved = BATCHES[1].clone().requires_grad_(), buffers()
        y = function(x, *moved)
        found.append((y.detach(), torch.autograd.grad(y.pow(3).sum(), x)[0], *moved))
    same(*found, tolerance=1e-12)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        for name, buffer in zip(("mean", "var"), buffers(), strict=True):
            self.register_buffer(name, buffer)

    def forward(self, x, mask):
        return f.batch_norm(x, self.mean, self.var, training=self.training, mask=mask)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # the exporter's own
@pytest.mark.parametrize("training", [True, False])
def test_exports_with_its_buffers(training):
    module, mask = Masked().train(training), torch.ones(7, 3).bool()
    exported = torch.export.export(module, (BATCHES[1], mask)).module()
    same((exported(BATCHES[1], mask),), (Masked().train(training)(BATCHES[1], mask),), 1e-12)
