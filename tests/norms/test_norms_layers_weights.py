"""Weight standardization and adaptive gradient clipping: training without normalizing activations."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from trimtab.errors import NormalizationError
from trimtab.norms.layers import (
    WSConv1d,
    WSConv2d,
    WSConv3d,
    WSLinear,
    adaptive_clip_grad_,
    clip_gradients_adaptively,
    standardized_weight,
)

F64 = torch.float64


# ---------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", [WSConv1d, WSConv2d, WSConv3d])
def test_scaled_weights_have_mean_0_and_length_gamma(kind, groups):
    torch.manual_seed(0)
    layer = kind(4, 6, 3, groups=groups, scaled=True, gamma=1.7, eps=1e-12, dtype=F64)
    w = layer.standardized().flatten(1)
    torch.testing.assert_close(w.sum(1), torch.zeros(6, dtype=F64), rtol=0, atol=1e-12)
    torch.testing.assert_close(w.square().sum(1), torch.full((6,), 1.7**2, dtype=F64), rtol=1e-8, atol=0)


def test_plain_weights_have_variance_1():
    w = WSLinear(50, 6, eps=1e-12, dtype=F64).standardized()
    torch.testing.assert_close(w.var(1, correction=0), torch.ones(6, dtype=F64), rtol=1e-8, atol=0)


@settings(max_examples=25, deadline=None)
@given(c=st.floats(0.2, 5), shift=st.floats(-3, 3), seed=st.integers(0, 999))
def test_scale_and_mean_of_the_weights_do_not_matter(c, shift, seed):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(3, 4, 5, dtype=F64, generator=generator).requires_grad_()
    moved = (c * w.detach() + shift).requires_grad_()
    direction = torch.randn(3, 4, 5, dtype=F64, generator=generator)
    y, z = standardized_weight(w, 1e-14), standardized_weight(moved, 1e-14)
    torch.testing.assert_close(y, z, rtol=1e-9, atol=1e-9)
    (dw,), (dmoved,) = torch.autograd.grad(y, w, direction), torch.autograd.grad(z, moved, direction)
    torch.testing.assert_close(dw, c * dmoved, rtol=1e-8, atol=1e-8)
    # No gradient along the weights, nor along their mean.
    assert float(dw.flatten(1).sum(1).abs().max()) < 1e-9
    assert float((dw * w.detach()).flatten(1).sum(1).abs().max()) < 1e-9


def test_scaled_form_keeps_the_variance_through_relu_layers():
    """gamma = sqrt(2 / (1 - 1/pi)) for ReLU (1.7129): the variance of each layer stays at 1 where its inputs have mean
    and variance of a normal ReLU; without the scale it would grow by the fan-in a layer."""
    torch.manual_seed(0)
    gamma = math.sqrt(2 / (1 - 1 / math.pi))
    x = torch.randn(256, 400)
    for _ in range(20):
        x = WSLinear(400, 400, False, scaled=True, gamma=gamma)(x.relu())
    # Var log q of a ReLU net is (5 (L - 1) + 2) / n = 0.24 here (theory of finite width): three standard deviations.
    assert abs(float(x.detach().square().mean().log())) < 3 * math.sqrt(97 / 400)


def test_gain_is_learned_and_a_plain_state_dict_loads():
    torch.manual_seed(0)
    plain, layer = nn.Conv2d(3, 5, 3), WSConv2d(3, 5, 3, scaled=True, gain=True)
    with torch.no_grad():
        layer.gain.normal_()
    assert str(layer.load_state_dict(plain.state_dict())) == "<All keys matched successfully>"
    assert layer.gain.tolist() == [1.0] * 5
    with torch.no_grad():
        layer.gain.copy_(torch.arange(5.0))
    again = WSConv2d(3, 5, 3, scaled=True, gain=True)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again.gain, layer.gain)
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(layer(x), functional.conv2d(x, layer.standardized(), layer.bias))
    layer(x).sum().backward()
    assert layer.gain.grad is not None
    state = nn.Sequential(plain).state_dict()
    nested = nn.Sequential(WSConv2d(3, 5, 3, scaled=True, gain=True))
    nested.load_state_dict(state)
    assert list(state) == ["0.weight", "0.bias"], "the caller's dictionary is left alone"
    with pytest.raises(RuntimeError, match="Missing key"):
        nested.load_state_dict({})


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_all_padding_modes(mode):
    torch.manual_seed(0)
    layer = WSConv2d(2, 3, 3, stride=2, padding=1, dilation=1, padding_mode=mode, dtype=F64)
    other = nn.Conv2d(2, 3, 3, stride=2, padding=1, padding_mode=mode, dtype=F64)
    with torch.no_grad():
        other.weight.copy_(layer.standardized())
        other.bias.copy_(layer.bias)
    x = torch.randn(2, 2, 7, 7, dtype=F64)
    assert torch.equal(layer(x), other(x))


def test_gradgradcheck():
    torch.manual_seed(0)
    layer = WSConv1d(2, 3, 3, scaled=True, gain=True, gamma=1.3, dtype=F64)
    x = torch.randn(2, 2, 5, dtype=F64, requires_grad=True)
    names, values = zip(*((n, p.detach().clone().requires_grad_()) for n, p in layer.named_parameters()), strict=True)

    def call(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (x, *values))
    assert torch.autograd.gradgradcheck(call, (x, *values))


def test_half_precision_weights_are_standardized_in_float32():
    torch.manual_seed(0)
    w = (torch.randn(4, 4000) * 0.02 + 0.5).bfloat16()
    true = standardized_weight(w.double())
    found = standardized_weight(w)
    assert found.dtype == torch.bfloat16
    assert float((found.double() - true).abs().max() / true.abs().max()) < torch.finfo(torch.bfloat16).eps


def test_wrong_weights():
    with pytest.raises(NormalizationError, match="that is 1 weight a unit; two or more are needed"):
        WSLinear(1, 3)
    with pytest.raises(NormalizationError, match="that is 1 weight a unit"):
        WSConv2d(4, 4, 1, groups=4)
    with pytest.raises(NormalizationError, match="gain and gamma belong to the scaled form"):
        WSLinear(4, 3, gain=True)
    with pytest.raises(NormalizationError, match="gain and gamma belong to the scaled form"):
        WSLinear(4, 3, gamma=1.5)
    with pytest.raises(NormalizationError, match=r"gamma is -1\.0; a finite number > 0"):
        WSLinear(4, 3, scaled=True, gamma=-1.0)
    with pytest.raises(NormalizationError, match="eps is 0"):
        WSLinear(4, 3, eps=0.0)


# ---------------------------------------------------------------------------------------------------- clipping


def clipped(w, g, clipping=0.01, eps=1e-3):
    """The paper's rule written out, unit by unit."""
    out = g.clone()
    units = range(len(g)) if g.dim() > 1 else [...]
    for unit in units:
        length, limit = out[unit].norm(), clipping * max(float(w[unit].norm()), eps)
        if length > limit:
            out[unit] *= limit / length
    return out


@pytest.mark.parametrize("shape", [(5, 4), (3, 2, 3, 3), (6,), (), (4, 1)])
@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0])
def test_the_papers_rule(shape, size):
    torch.manual_seed(0)
    w = torch.randn(shape, dtype=F64).requires_grad_()
    if len(shape) > 1:
        with torch.no_grad():
            w[0] = 0  # the floor eps
    g = torch.randn(shape, dtype=F64) * size
    w.grad = g.clone()
    share = adaptive_clip_grad_(w)
    expected = clipped(w.detach(), g)
    torch.testing.assert_close(w.grad, expected, rtol=1e-12, atol=1e-15)
    changed = (w.grad != g).flatten(1).any(1) if len(shape) > 1 else (w.grad != g).any()
    assert float(share) == pytest.approx(float(changed.double().mean()))


def test_several_parameters_some_without_a_gradient():
    one, other = torch.ones(2, 2, requires_grad=True), torch.ones(3, requires_grad=True)
    one.grad = torch.tensor([[1.0, 0.0], [1e-6, 0.0]])
    assert float(adaptive_clip_grad_([one, other])) == 0.5
    assert float(adaptive_clip_grad_([other])) == 0.0
    assert other.grad is None


def test_not_finite_gradients_stay_so_and_in_their_unit():
    w = torch.ones(3, 2, requires_grad=True)
    w.grad = torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0], [1e-6, 0.0]])
    adaptive_clip_grad_(w)
    assert not w.grad[0].isfinite().all()
    assert not w.grad[1].isfinite().all()
    assert w.grad[2].tolist() == pytest.approx([1e-6, 0.0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_lengths_are_float32(dtype):
    """In float16 the length of 300 ones times 300 is above its largest number."""
    w = torch.full((2, 300), 300.0, dtype=dtype, requires_grad=True)
    w.grad = torch.full((2, 300), 300.0, dtype=dtype)
    adaptive_clip_grad_(w, 0.5)
    assert w.grad.dtype == dtype
    torch.testing.assert_close(w.grad.float(), torch.full((2, 300), 150.0), rtol=4e-3, atol=0)


def model_and_batch():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(16, 4) * 10


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_hook_clips_before_the_step_of_any_optimizer(kind):
    model, x = model_and_batch()
    by_hand = copy.deepcopy(model)
    optimizers = [kind(m.parameters(), lr=0.1) for m in (model, by_hand)]
    handle = clip_gradients_adaptively(optimizers[0], 0.02, exclude=model[2].parameters())
    for round_ in range(4):
        if round_ == 3:
            handle.remove()
        for m, optimizer in zip((model, by_hand), optimizers, strict=True):
            optimizer.zero_grad()
            m(x).square().sum().backward()
        if round_ < 3:
            assert float(adaptive_clip_grad_(by_hand[0].parameters(), 0.02)) > 0
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("keyword", [True, False])
def test_hook_clips_after_each_closure(keyword):
    model, x = model_and_batch()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    clip_gradients_adaptively(optimizer, 0.02)
    seen = []

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        seen.append(float(loss.detach()))
        return loss

    loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
    assert len(seen) == 3
    assert float(loss.detach()) == seen[0]
    for p in model.parameters():
        before = p.grad.clone()
        adaptive_clip_grad_(p, 0.021)
        assert torch.equal(p.grad, before)


def test_scaled_gradients_of_a_fused_optimizer_are_clipped_in_their_scale():
    """Fused optimizers unscale inside their step: a gradient scaler gives them `grad_scale`."""
    results = []
    for scale in (1.0, 1024.0):
        model, x = model_and_batch()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
        clip_gradients_adaptively(optimizer, 0.02)
        (model(x).square().sum() * scale).backward()
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
        optimizer.step()
        results.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_wrong_clipping():
    w = torch.ones(3, 2, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)
    for call in (lambda **k: adaptive_clip_grad_(w, **k), lambda **k: clip_gradients_adaptively(optimizer, **k)):
        with pytest.raises(NormalizationError, match=r"clipping is 0\.0; a finite number > 0 is needed"):
            call(clipping=0.0)
        with pytest.raises(NormalizationError, match=r"eps is -1\.0; a finite number > 0 is needed"):
            call(eps=-1.0)
    embedding = nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(NormalizationError, match=r"has a gradient of layout torch\.sparse_coo; make it dense"):
        adaptive_clip_grad_(embedding.parameters())
