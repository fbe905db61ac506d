"""Without gradients a transformer layer adds and applies ReLU in place, bit for bit the same, and only to what is its own."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from trimtab.norms.residual import PLACEMENTS, Residual, deepnorm_scales
from trimtab.norms.transformer import TransformerLayer


def layer(placement="pre", **more):
    scale = deepnorm_scales(1)[0] if placement == "deep" else None
    depth = 2 if placement == "scaled" else None
    return TransformerLayer(16, 4, 24, placement=placement, scale=scale, depth=depth, **more).eval()


def kept(module):
    """What a hook keeps of a module's outputs, each with a copy made at once."""
    found = []
    module.register_forward_hook(lambda module, args, output: found.append((output, output.clone())))
    return found


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_bits_are_those_of_the_way_with_gradients(placement, activation):
    made, x = layer(placement, activation=activation), torch.randn(3, 7, 16)
    before = x.clone()
    with torch.no_grad():
        in_place = made(x)
    assert torch.equal(in_place, made(x).detach())
    assert torch.equal(x, before)
    with torch.inference_mode():
        assert torch.equal(made(x), in_place)


@pytest.mark.parametrize("placement", ["pre", "post", "deep"])
def test_it_is_done_in_place(placement, monkeypatch):
    made, x, calls = layer(placement), torch.randn(3, 7, 16), []
    for name in ("relu_", "add_"):
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor,
            name,
            lambda self, *a, name=name, real=real, **k: (calls.append(name), real(self, *a, **k))[1],
        )
    made(x)
    assert calls == []
    with torch.no_grad():
        made(x)
    assert calls == ["add_", "relu_", "add_"]


@pytest.mark.parametrize(
    "name",
    [
        "attention.branch.out_proj",
        "attention.branch",
        "attention.dropout",
        "feed_forward.branch.fc1",
        "feed_forward.branch.fc2",
        "feed_forward.branch",
        "feed_forward.dropout",
    ],
)
def test_what_a_hook_has_kept_stays_as_it_was(name):
    made, x = layer("post"), torch.randn(3, 7, 16)
    found = kept(made.get_submodule(name))
    with torch.no_grad():
        made(x)
    ((output, copy),) = found
    assert torch.equal(output, copy)


def test_what_a_hook_of_all_modules_has_kept_stays_as_it_was():
    made, found = layer(), []
    handle = register_module_forward_hook(lambda module, args, output: found.append((output, output.clone())))
    try:
        with torch.no_grad():
            made(torch.randn(3, 7, 16))
    finally:
        handle.remove()
    assert len(found) > 10
    assert all(torch.equal(output, copy) for output, copy in found)


class Holding(nn.Linear):
    """Keeps what it returns."""

    def forward(self, x):
        self.last = super().forward(x)
        return self.last


class Same(nn.Module):
    """A branch that returns a tensor of its own, each time the same."""

    def __init__(self):
        super().__init__()
        self.value = torch.ones(3, 7, 16)

    def forward(self, x):
        return self.value


def test_a_users_branch_and_layers_are_not_written_to():
    x = torch.randn(3, 7, 16)
    for make in (Same, nn.Identity):
        block = Residual(make(), "pre", partial(nn.Identity)).eval()
        before = x.clone()
        with torch.no_grad():
            assert torch.equal(block(x), block(x))
        assert torch.equal(x, before)
    made = layer()
    made.feed_forward.branch = Same()
    with torch.no_grad():
        assert torch.equal(made(x), made(x))
    assert torch.equal(made.feed_forward.branch.value, torch.ones(3, 7, 16))
    made = layer()
    made.feed_forward.branch.fc1 = Holding(16, 24)
    made.feed_forward.branch.fc1.requires_grad_(False)
    with torch.no_grad():
        made(x)
    assert bool((made.feed_forward.branch.fc1.last < 0).any())


def test_autocast_adds_in_the_streams_precision():
    made, x = layer(), torch.randn(3, 7, 16)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            ours = made(x)
        theirs = made(x).detach()
    assert ours.dtype == theirs.dtype == torch.float32
    assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # jvp loads PyTorch's decompositions
def test_transforms_and_tracers_get_the_plain_way():
    block, x = layer().double().feed_forward, torch.randn(5, 3, 7, 16, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([block(part) for part in x])
        torch.testing.assert_close(torch.func.vmap(block)(x), expected)
        exported = torch.export.export(block, (x[0],)).module()
        torch.testing.assert_close(exported(x[1]), expected[1])
        _, slope = torch.func.jvp(block, (x[0],), (torch.ones_like(x[0]),))
        ahead, behind = (block(x[0] + step) for step in (1e-6, -1e-6))
    torch.testing.assert_close(slope, (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-6)
