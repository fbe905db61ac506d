"""RMSNorm: each of its paths beside PyTorch's operation, where they may be taken, and what they are exact to."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.errors import NormalizationError
from trimtab.norms.layers import RMSNorm, rms
from trimtab.norms.layers._kernels import NO_NUMBA, compiled_kernel

TIGHT = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@pytest.fixture(params=["numba", "torch"])
def path(request, monkeypatch):
    """Each path, also for small inputs; the other one cannot be taken."""
    monkeypatch.setattr(rms, "_LEAST", 0)
    monkeypatch.setattr(rms, "_LEAST_COMPILED", 0)
    monkeypatch.setattr(rms, "_NARROW", 1)
    if request.param == "numba":
        pytest.importorskip("numba")
        monkeypatch.delenv(NO_NUMBA, raising=False)
        assert compiled_kernel("_numba_rms", torch.zeros(1)) is not None
    else:
        monkeypatch.setenv(NO_NUMBA, "1")
    monkeypatch.setattr(functional, "rms_norm", None)  # PyTorch's own operation would not test anything
    return request.param


def truth(x, weight, eps):
    """In float64, by the formula."""
    x = x.double()
    y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return y if weight is None else y * weight.double()


def both(layer, x, dy):
    """Output and gradients of the layer, and the true ones."""
    x = x.detach().requires_grad_()
    y = layer(x)
    parameters = list(layer.parameters())
    found = [y, *torch.autograd.grad(y, [x, *parameters], dy)]
    z = x.detach().double().requires_grad_()
    w = [p.detach().double().requires_grad_() for p in parameters]
    eps = (
        torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
        if layer.eps is None
        else layer.eps
    )
    true = truth(z, w[0] if w else None, eps)
    return found, [true, *torch.autograd.grad(true, [z, *w], dy.double())]


def errors(found, true):
    return [
        float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in zip(found, true, strict=True)
    ]


@pytest.mark.parametrize("dtype", TIGHT, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(7, 40), (3, 5, 129), (1, 1), (300, 17), (2, 3, 4, 600)])
def test_right_in_every_type(path, dtype, affine, shape):
    torch.manual_seed(0)
    layer = RMSNorm(shape[-1], 1e-5, affine, dtype=dtype)
    if affine:
        nn.init.normal_(layer.weight)
    found, true = both(layer, torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype))
    assert all(t.dtype == dtype for t in found)
    # dx of a row of one value is what is left of a difference: 5e-6 of its terms with this eps.
    assert max(errors(found, true)[: 1 if shape == (1, 1) else None]) < TIGHT[dtype]


def test_several_axes_and_default_eps(path):
    torch.manual_seed(0)
    layer = RMSNorm([4, 5])
    nn.init.normal_(layer.weight)
    x, dy = torch.randn(6, 4, 5) * 1e-3, torch.randn(6, 4, 5)
    found, _ = both(RMSNorm(20), x.flatten(1), dy.flatten(1))
    torch.testing.assert_close(layer(x), (found[0] * layer.weight.flatten()).view(6, 4, 5))


def test_blocks_are_put_together(path, monkeypatch):
    monkeypatch.setattr(rms, "_BLOCK", 64)
    torch.manual_seed(0)
    layer = RMSNorm(24, 1e-5, dtype=torch.float64)  # two rows a block, and one row left
    nn.init.normal_(layer.weight)
    found, true = both(layer, torch.randn(501, 24, dtype=torch.float64), torch.randn(501, 24, dtype=torch.float64))
    assert max(errors(found, true)) < 1e-13


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e-3, 1e3, 1e18])
def test_scale_of_the_input_only_matters_through_eps(path, scale):
    torch.manual_seed(0)
    x = torch.randn(50, 64)
    layer = RMSNorm(64, 1e-5)
    found, true = both(layer, x * scale, torch.randn(50, 64))
    assert errors(found[:1], true[:1])[0] < 1e-6
    if scale < 1e18:  # the gradient is 1e-18 there, and its square is below float32
        assert errors(found[1:2], true[1:2])[0] < 3e-6


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), width=st.integers(2, 90), c=st.floats(0.1, 10.0), seed=st.integers(0, 2**20))
def test_laws_of_scale(rows, width, c, seed):
    """Without eps to speak of: f(c x) = f(x), the gradient falls as 1/c, and x · dx = 0 in each row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rms, "_LEAST", 0)
        patch.setattr(rms, "_LEAST_COMPILED", 0)
        patch.setattr(rms, "_NARROW", 1)
        generator = torch.Generator().manual_seed(seed)
        x, dy = (torch.randn(rows, width, dtype=torch.float64, generator=generator) for _ in range(2))
        layer = RMSNorm(width, 1e-30, False)
        one, other = x.clone().requires_grad_(), (c * x).requires_grad_()
        torch.testing.assert_close(layer(one), layer(other), rtol=1e-12, atol=1e-12)
        layer(one).backward(dy)
        layer(other).backward(dy)
        torch.testing.assert_close(one.grad, c * other.grad, rtol=1e-10, atol=1e-10)
        assert float(((one.grad * x).sum(1).abs() / (one.grad.norm(dim=1) * x.norm(dim=1) + 1e-9)).max()) < 1e-9


def test_not_finite_rows_stay_by_themselves(path):
    torch.manual_seed(0)
    x = torch.randn(8, 40)
    expected = RMSNorm(40, 1e-5)(x)
    x[3, 5], x[6, 0] = float("nan"), float("inf")
    y = RMSNorm(40, 1e-5)(x)
    assert y[3].isnan().all()
    assert y[6, 0].isnan()
    rows = [0, 1, 2, 4, 5, 7]
    assert torch.equal(y[rows], expected[rows])


def test_gradcheck_and_gradgradcheck(path):
    torch.manual_seed(0)
    layer = RMSNorm(6, 1e-2, dtype=torch.float64)
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    w = torch.randn(6, dtype=torch.float64, requires_grad=True)

    def call(x, w):
        return torch.func.functional_call(layer, {"weight": w}, (x,))

    assert torch.autograd.gradcheck(call, (x, w))
    assert torch.autograd.gradgradcheck(call, (x, w))


def test_only_what_is_wanted_is_computed(path):
    x, w = torch.randn(9, 40), torch.randn(40)
    layer = RMSNorm(40, 1e-5)
    layer.weight.requires_grad_(False).copy_(w)
    given = x.clone().requires_grad_()
    layer(given).sum().backward()
    assert given.grad is not None
    assert layer.weight.grad is None
    layer.weight.requires_grad_()
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        assert layer(x).grad_fn is None


def test_an_input_changed_in_place_is_noticed(path):
    x = torch.randn(9, 40, requires_grad=True) * 1.0
    y = RMSNorm(40, 1e-5)(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_checkpointed(path):
    layer = RMSNorm(40, 1e-5)
    x, dy = torch.randn(9, 40, requires_grad=True), torch.randn(9, 40)
    (expected,) = torch.autograd.grad(layer(x), x, dy)
    for reentrant in (True, False):
        x.grad = None
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant).backward(dy)
        assert torch.equal(x.grad, expected)


class _Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def large():
    torch.manual_seed(0)
    layer, x = RMSNorm(512, 1e-5), torch.randn(512, 512)
    assert x.numel() >= rms._LEAST
    return layer, x


def test_who_looks_on_sees_pytorchs_operations(large):
    layer, x = large
    with _Seen() as mine:
        layer(x)
    with _Seen() as other:
        functional.rms_norm(x, (512,), layer.weight, 1e-5)
    assert mine.operations == other.operations != []


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # jvp loads its decompositions with it
def test_transforms_compilers_and_tracers(large):
    layer, x = large
    expected = functional.rms_norm(x, (512,), layer.weight, 1e-5)
    torch.testing.assert_close(torch.func.vmap(layer)(x), expected)
    y, tangent = torch.func.jvp(layer, (x,), (x,))
    torch.testing.assert_close(y, expected)
    assert float(tangent.detach().abs().max()) < 1e-3  # along x itself nothing changes but through eps
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), expected)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    given = x.clone().requires_grad_()
    compiled(given).sum().backward()
    other = x.clone().requires_grad_()
    layer(other).sum().backward()
    torch.testing.assert_close(given.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traced(large):
    """A trace holds operations, not the numbers that a kernel of ours has left."""
    layer, x = large
    traced = torch.jit.trace(layer, x, check_trace=False)
    torch.testing.assert_close(traced(2 * x + 1), layer(2 * x + 1), rtol=1e-4, atol=1e-6)


def test_a_batch_of_gradients(large):
    layer, x = large
    x = x.requires_grad_()
    y = layer(x)
    dy = torch.randn(2, *y.shape)
    (found,) = torch.autograd.grad(y, x, dy, is_grads_batched=True, retain_graph=True)
    expected = torch.stack([torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in dy])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_two_threads_agree_with_one(large):
    layer, x = large
    expected = layer(x)
    torch.set_num_threads(2)
    try:
        found = layer(x)
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(found, expected)


def test_types_that_differ_are_left_to_pytorch(large):
    _, x = large
    mixed = RMSNorm(512, 1e-5)
    with pytest.warns(UserWarning, match="[Mm]ismatch"):
        assert mixed(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("eps", [0.0, -1e-6, float("nan"), float("inf")])
def test_eps_must_be_above_zero(eps):
    with pytest.raises(NormalizationError, match=r"eps is .*; a finite number > 0 is needed"):
        RMSNorm(8, eps)


@pytest.mark.parametrize("shape", [(4, 7), (8, 4), ()])
def test_shape_must_fit(shape):
    with pytest.raises(NormalizationError, match=r"the input has shape .*; its last axes must be \(8,\)"):
        RMSNorm(8)(torch.zeros(shape))


def test_importing_the_layers_does_not_import_numba():
    program = "import sys, trimtab.norms.layers; print([m for m in ('numba', 'sklearn', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
