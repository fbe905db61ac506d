"""Every sample of PyTorch's own OpInfo database: outputs, gradients, buffers and saved statistics, in float64.

The samples come with eps < 0 too, which trimtab refuses. On those the refusal is tested, and then the formulas, with
the check taken out.
"""

import pytest
import torch
from torch.nn import functional as F

from trimtab.errors import NormalizationError
from trimtab.norms import functional
from trimtab.norms.functional import batch, group, layer, rms

pytestmark = pytest.mark.slow  # importing the database takes ten seconds

TOLERANCE = 1e-12


@pytest.fixture(scope="module")
def opinfos():
    from torch.testing._internal.common_methods_invocations import op_db

    def named(name):
        found = [op for op in op_db if op.name == name]
        assert found, name
        return found

    return named


def samples(ops):
    drawn = [
        sample
        for op in ops
        for draw in (op.sample_inputs, op.reference_inputs)
        for sample in draw("cpu", torch.float64, requires_grad=True)
    ]
    assert len(drawn) >= 10
    return drawn


def batch_names(running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    return locals()


def instance_names(
    running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5
):
    return locals()


def layer_names(normalized_shape, weight=None, bias=None, eps=1e-5):
    return locals()


def group_names(num_groups, weight=None, bias=None, eps=1e-5):
    return locals()


def rms_names(normalized_shape, weight=None, eps=None):
    return locals()


METHODS = {
    "batch_norm": (batch_names, batch, {"momentum"}),
    "instance_norm": (instance_names, group, {"momentum"}),
    "layer_norm": (layer_names, layer, set()),
    "group_norm": (group_names, group, set()),
    "rms_norm": (rms_names, rms, set()),
}
TRAINED = ("input", "weight", "bias")
BUFFERS = ("running_mean", "running_var")


def fresh(arguments):
    """Copies, so that neither buffers nor gradients are shared; leaves of their own where a gradient is wanted."""
    return {
        name: value.detach().clone().requires_grad_(name in TRAINED) if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }


def run(function, arguments, dy=None):
    """Output, gradients of what is trained, and the buffers afterwards."""
    y = function(**arguments)
    dy = torch.randn_like(y) if dy is None else dy
    wanted = {name: arguments[name] for name in TRAINED if isinstance(arguments.get(name), torch.Tensor)}
    found = torch.autograd.grad(y, list(wanted.values()), dy, allow_unused=True)
    gradients = {
        name: torch.zeros_like(wanted[name]) if g is None else g for name, g in zip(wanted, found, strict=True)
    }
    buffers = {name: arguments[name] for name in BUFFERS if isinstance(arguments.get(name), torch.Tensor)}
    return y.detach(), gradients, buffers, dy


def close(ours, theirs):
    ours, theirs = ours.detach(), theirs.detach()
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == torch.float64
    scale = theirs.abs().amax().clamp(min=1.0) if theirs.numel() else 1.0
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=float(TOLERANCE * scale))


@pytest.mark.parametrize("name", METHODS)
def test_equals_pytorch_on_all_of_its_samples(name, opinfos, monkeypatch):
    names, module, only_whole = METHODS[name]
    ours, theirs = getattr(functional, name), getattr(F, name)
    forward, backward = getattr(functional, f"{name}_forward"), getattr(functional, f"{name}_backward")
    for sample in samples(opinfos(f"nn.functional.{name}")):
        arguments = {"input": sample.input, **names(*sample.args, **sample.kwargs)}
        y, gradients, buffers, dy = run(theirs, fresh(arguments))
        with monkeypatch.context() as patched:
            if arguments["eps"] is not None and arguments["eps"] <= 0.0:
                with pytest.raises(NormalizationError, match="eps is"):
                    ours(**fresh(arguments))
                patched.setattr(module, "require_eps", lambda eps: None)
            our_y, our_gradients, our_buffers, _ = run(ours, fresh(arguments), dy)
            close(our_y, y)
            assert our_gradients.keys() == gradients.keys()
            for key, value in gradients.items():
                close(our_gradients[key], value)
            assert our_buffers.keys() == buffers.keys()
            for key, value in buffers.items():
                close(our_buffers[key], value)
            if arguments["input"].dim() < 2 and name == "batch_norm":
                continue  # an empty vector has no channels and so no parts
            parts = forward(**fresh({key: value for key, value in arguments.items() if key not in only_whole}))
            explicit = backward(dy, parts)
            close(parts.output.detach(), y)
            for key, value in (("input", explicit.dx), ("weight", explicit.dgamma), ("bias", explicit.dbeta)):
                if key in gradients:
                    close(value.detach(), gradients[key])


@pytest.mark.parametrize(
    ("name", "database_name"),
    [
        ("group_norm", "nn.functional.group_norm"),
        ("rms_norm", "nn.functional.rms_norm"),
        ("layer_norm", "native_layer_norm"),  # those of the others have no wrong samples
    ],
)
def test_refuses_what_pytorch_refuses(name, database_name, opinfos):
    (op,) = opinfos(database_name)
    wrong_samples = list(op.error_inputs("cpu"))
    assert len(wrong_samples) >= 2
    for wrong in wrong_samples:
        sample = wrong.sample_input
        with pytest.raises(wrong.error_type):
            op(sample.input, *sample.args, **sample.kwargs)
        with pytest.raises(NormalizationError):
            getattr(functional, name)(sample.input, *sample.args, **sample.kwargs)


@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"])
def test_statistics_equal_those_that_native_batch_norm_saves(name, opinfos):
    (op,) = opinfos(name)
    compared = 0
    for sample in op.sample_inputs("cpu", torch.float64):
        weight, bias, *rest = sample.args
        running = [value.clone() for value in rest if isinstance(value, torch.Tensor)] or [None, None]
        *training, _, eps = [value for value in rest if value is not None and not isinstance(value, torch.Tensor)]
        (training,) = training or (True,)
        parts = functional.batch_norm_forward(sample.input, *running, weight, bias, training, eps)
        y, mean, inverse_std, *_ = op(sample.input, *sample.args)
        close(parts.output, y)
        if training:  # with running statistics nothing is saved
            close(parts.mean, mean)
            close(parts.inverse_std, inverse_std)
            compared += 1
    assert compared >= 3


def test_statistics_equal_those_that_native_layer_norm_saves(opinfos, monkeypatch):
    monkeypatch.setattr(layer, "require_eps", lambda eps: None)
    for sample in samples(opinfos("native_layer_norm")):
        y, mean, inverse_std = torch.native_layer_norm(sample.input, *sample.args)
        parts = functional.layer_norm_forward(sample.input, *sample.args)
        close(parts.output, y)
        close(parts.mean, mean.reshape(parts.mean.shape))
        close(parts.inverse_std, inverse_std.reshape(parts.mean.shape))


def test_statistics_equal_those_that_native_group_norm_saves(opinfos, monkeypatch):
    monkeypatch.setattr(group, "require_eps", lambda eps: None)
    for sample in samples(opinfos("native_group_norm")):
        weight, bias, _, _, _, groups, eps = sample.args
        y, mean, inverse_std = torch.native_group_norm(sample.input, *sample.args)
        parts = functional.group_norm_forward(sample.input, groups, weight, bias, eps)
        close(parts.output, y)
        close(parts.mean, mean)
        close(parts.inverse_std, inverse_std)
