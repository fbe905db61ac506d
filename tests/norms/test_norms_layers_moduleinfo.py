"""PyTorch's own ModuleInfo samples and checks, for each layer that stands for one of PyTorch's."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms import layers
from trimtab.norms.layers import batch_renorm, standardized_weight

pytestmark = pytest.mark.slow  # importing the database takes ten seconds

BATCH = {
    getattr(layers, f"{kind}{n}d"): getattr(nn, f"BatchNorm{n}d")
    for kind in ("MaskedBatchNorm", "GhostBatchNorm", "BatchRenorm", "CheckpointedBatchNorm")
    for n in (1, 2, 3)
}
STANDARDIZED = {
    layers.WSConv1d: nn.Conv1d,
    layers.WSConv2d: nn.Conv2d,
    layers.WSConv3d: nn.Conv3d,
    layers.WSLinear: nn.Linear,
}
ALL = {**BATCH, **STANDARDIZED, layers.RMSNorm: nn.RMSNorm}
EXACT = {torch.float64: (1e-12, 1e-12), torch.float32: (2e-5, 2e-5)}


@pytest.fixture(autouse=True)
def _own_kernel(monkeypatch):
    monkeypatch.setattr(batch_renorm, "_LEAST", 0)  # the samples are small


def database():
    from torch.testing._internal import common_modules

    return common_modules, {info.module_cls: info for info in common_modules.module_db}


def samples(ours, dtype, training, device="cpu", requires_grad=True):
    common_modules, infos = database()
    info = common_modules.ModuleInfo(ours, module_inputs_func=infos[ALL[ours]].module_inputs_func)
    torch.manual_seed(0)
    found = info.module_inputs_func(info, device=device, dtype=dtype, requires_grad=requires_grad, training=training)
    assert len(found) >= 3
    return found


def input_of(sample):
    (x,) = [*sample.forward_input.args, *sample.forward_input.kwargs.values()]
    return x


def made(cls, sample, dtype, device="cpu", training=True):
    given = sample.constructor_input
    return cls(*given.args, **given.kwargs, device=device, dtype=dtype).train(training)


def pair(ours, sample, dtype, training):
    """Our layer and PyTorch's with the same drawn state; theirs has the standardized weight where ours computes with it."""
    mine, other = made(ours, sample, dtype, training=training), made(ALL[ours], sample, dtype, training=training)
    with torch.no_grad():
        for name, tensor in mine.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + (0.5 if "running_var" in name or ours in STANDARDIZED else 0.0))
    assert other.load_state_dict(mine.state_dict()) == mine.load_state_dict(other.state_dict())
    if ours in STANDARDIZED:
        with torch.no_grad():
            w = other.weight
            axes = tuple(range(1, w.dim()))
            var, mean = torch.var_mean(w, axes, correction=0, keepdim=True)
            w.copy_((w - mean) / (var + 1e-6).sqrt())
    return mine, other


def gradients(module, output, x, dy):
    wanted = [x, *module.parameters()]
    found = torch.autograd.grad(output, wanted, dy, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("ours", ALL, ids=lambda c: c.__name__)
def test_output_gradients_and_buffers_are_pytorchs(ours, dtype, training):
    rtol, atol = EXACT[dtype]
    for sample in samples(ours, dtype, training):
        mine, other = pair(ours, sample, dtype, training)
        x = input_of(sample)
        for _ in range(2):  # the second call finds moved buffers
            y, z = mine(x), other(x)
            torch.testing.assert_close(y, z, rtol=rtol, atol=atol, msg=sample.desc)
        if ours not in STANDARDIZED:  # the gradient of a standardized weight is another: see gradcheck
            dy = torch.randn_like(y)
            for a, b in zip(gradients(mine, y, x, dy), gradients(other, z, x, dy), strict=True):
                torch.testing.assert_close(a, b, rtol=rtol, atol=10 * atol, msg=sample.desc)
        for name, buffer in mine.named_buffers():
            torch.testing.assert_close(buffer, dict(other.named_buffers())[name], rtol=rtol, atol=atol)


@pytest.mark.parametrize("ours", [layers.RMSNorm, layers.WSConv1d, layers.WSConv2d, layers.WSConv3d])
def test_pytorchs_own_reference_agrees(ours):
    checked = 0
    for sample in samples(ours, torch.float32, True):
        if sample.reference_fn is None:
            continue
        module = made(ours, sample, torch.float32)
        x = input_of(sample)
        torch.testing.assert_close(module(x), sample.reference_fn(module, x))
        checked += 1
    assert checked


@pytest.mark.parametrize("ours", ALL, ids=lambda c: c.__name__)
def test_state_dict_loads_both_ways(ours):
    for sample in samples(ours, torch.float32, True):
        mine, other = made(ours, sample, torch.float32), made(ALL[ours], sample, torch.float32)
        assert list(mine.state_dict()) == list(other.state_dict())
        buffer = io.BytesIO()
        torch.save(mine.state_dict(), buffer)
        buffer.seek(0)
        other.load_state_dict(torch.load(buffer, weights_only=True))
        mine.load_state_dict(other.state_dict())
        for a, b in zip(mine.state_dict().values(), other.state_dict().values(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("ours", ALL, ids=lambda c: c.__name__)
def test_pickle_and_deepcopy(ours, training):
    for sample in samples(ours, torch.float32, training, requires_grad=False):
        module = made(ours, sample, torch.float32, training=training)
        x = input_of(sample)
        module(x)
        copies = [pickle.loads(pickle.dumps(module)), copy.deepcopy(module)]
        y = module(x)
        for other in copies:
            assert repr(other) == repr(module)
            assert type(other) is ours
            assert torch.equal(other(x), y)
            for a, b in zip(other.state_dict().values(), module.state_dict().values(), strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize("ours", ALL, ids=lambda c: c.__name__)
def test_factory_arguments(ours):
    for dtype in (torch.float64, torch.bfloat16):
        for sample in samples(ours, torch.float32, True):
            module = made(ours, sample, dtype, device="meta")
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                assert tensor.device.type == "meta"
                assert tensor.dtype == (torch.long if name == "num_batches_tracked" else dtype)
            assert not any(t.is_meta for t in module.to_empty(device="cpu").state_dict().values())
            assert all(p.dtype == torch.float32 for p in module.float().parameters())


@pytest.mark.parametrize("ours", ALL, ids=lambda c: c.__name__)
def test_meta_input_gives_the_shape(ours):
    for training in (True, False):
        for sample in samples(ours, torch.float32, training, requires_grad=False):
            x = input_of(sample)
            averages = (
                None in sample.constructor_input.args
            )  # 1 / (number of batches), which a meta tensor does not have
            if x.numel() and not averages:
                y = made(ours, sample, torch.float32, device="meta", training=training)(x.to("meta"))
                assert y.shape == made(ALL[ours], sample, torch.float32, training=training)(x).shape


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("ours", ALL, ids=lambda c: c.__name__)
def test_strides_of_the_input_do_not_matter(ours, training):
    for sample in samples(ours, torch.float64, training):
        x = input_of(sample)
        wide = torch.empty((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)[..., ::2]
        inputs = [x, wide.copy_(x.detach()).requires_grad_()]
        if x.dim() == 4:
            inputs.append(x.detach().to(memory_format=torch.channels_last).requires_grad_())
        module = made(ours, sample, torch.float64, training=training)
        state = copy.deepcopy(module.state_dict())
        found = []
        for given in inputs:
            module.load_state_dict(state)
            y = module(given)
            dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
            found.append((y, *gradients(module, y, given, dy)))
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("ours", ALL, ids=lambda c: c.__name__)
def test_gradcheck_and_gradgradcheck(ours, training):
    for sample in samples(ours, torch.float64, training):
        x = input_of(sample)
        if x.numel() == 0:
            continue
        module = made(ours, sample, torch.float64, training=training)
        state = copy.deepcopy(module.state_dict())
        names = [name for name, _ in module.named_parameters()]

        def call(given, *parameters, module=module, state=state, names=names):
            fresh = {name: tensor.clone() for name, tensor in state.items() if name not in names}
            return torch.func.functional_call(module, {**fresh, **dict(zip(names, parameters, strict=True))}, (given,))

        inputs = (x, *(p.detach().clone().requires_grad_() for p in module.parameters()))
        torch.autograd.gradcheck(call, inputs, fast_mode=True)
        torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


@pytest.mark.parametrize("ours", BATCH, ids=lambda c: c.__name__)
def test_pytorchs_error_inputs(ours):
    common_modules, infos = database()
    info = infos[BATCH[ours]]
    found = info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
    for case in found:
        sample = case.module_error_input
        if case.error_on == common_modules.ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(case.error_type, match=case.error_regex):
                made(ours, sample, torch.float32)
            continue
        # What PyTorch's kernel refuses with a RuntimeError is refused with one, or with an error of trimtab that says more.
        with pytest.raises((NormalizationError, RuntimeError)):
            made(ours, sample, torch.float32)(*sample.forward_input.args, **sample.forward_input.kwargs)


def test_standardized_weight_is_its_formula():
    w = torch.randn(6, 4, 3, 3, dtype=torch.float64) * 0.3 + 1
    flat = w.flatten(1)
    expected = (flat - flat.mean(1, keepdim=True)) / (flat.var(1, correction=0, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(standardized_weight(w), expected.view_as(w), rtol=1e-12, atol=1e-12)
