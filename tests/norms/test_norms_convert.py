"""Converting carries what can be carried, fits what cannot, and calls nothing exact that is not."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms._groups import group_count
from trimtab.norms.channel_layers import ChannelAffine, ChannelLayerNorm, ChannelRMSNorm, ChannelsLast
from trimtab.norms.converting import convert
from trimtab.norms.converting._target import TARGETS
from trimtab.norms.frozen_batch_norm import FrozenBatchNorm

EXACT = 1e-12


def trained(*layers):
    """A model in float64 and evaluation mode whose normalizations are as if trained."""
    model = nn.Sequential(*layers).double().eval()
    for module in model.modules():
        if getattr(module, "running_mean", None) is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            if getattr(module, "num_batches_tracked", None) is not None:
                module.num_batches_tracked.fill_(100)
        for name in ("weight", "bias"):
            value = getattr(module, name, None)
            if isinstance(value, torch.Tensor) and value.dim() == 1:
                nn.init.normal_(value) if isinstance(value, nn.Parameter) else value.normal_()
    return model


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64) * 1.5 + 0.5


def largest(a, b, x):
    with torch.no_grad():
        return (a(x) - b(x)).abs().max().item()


CNN_BATCHES = 4


def cnn():
    model = trained(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU()
    )
    batches = [(randn(6, 3, 8, 8), torch.zeros(6)) for _ in range(CNN_BATCHES)]
    return model, batches


# ----------------------------------------------------------------------------------------------------------- exact


@pytest.mark.parametrize(
    ("norm", "to", "shape", "new"),
    [
        (nn.BatchNorm2d(6), "frozen_batch_norm", (2, 6, 4, 4), FrozenBatchNorm),
        (nn.BatchNorm1d(6, affine=False), "frozen_batch_norm", (5, 6), FrozenBatchNorm),
        (FrozenBatchNorm(6), "batch_norm", (2, 6, 4, 4), nn.BatchNorm2d),
        (nn.BatchNorm3d(6), "sync_batch_norm", (2, 6, 3, 3, 3), nn.SyncBatchNorm),
        (nn.SyncBatchNorm(6), "batch_norm", (2, 6, 5), nn.BatchNorm1d),
        (nn.InstanceNorm2d(6, affine=True, track_running_stats=True), "batch_norm", (2, 6, 4, 4), nn.BatchNorm2d),
        (nn.InstanceNorm2d(6, track_running_stats=True), "frozen_batch_norm", (2, 6, 4, 4), FrozenBatchNorm),
        (nn.BatchNorm2d(6), "none", (2, 6, 4, 4), ChannelAffine),
        (nn.BatchNorm1d(6, affine=False), "none", (5, 6), ChannelAffine),
        (nn.BatchNorm2d(6, bias=False), "none", (2, 6, 4, 4), ChannelAffine),
        (FrozenBatchNorm(6), "none", (2, 6, 4, 4), ChannelAffine),
        (nn.GroupNorm(6, 6), "instance_norm", (2, 6, 4, 4), nn.InstanceNorm2d),
        (nn.GroupNorm(1, 6), "layer_norm", (5, 6), nn.LayerNorm),
    ],
)
def test_conversions_that_are_exact_are_and_say_so(norm, to, shape, new):
    model, x = trained(norm), randn(*shape)
    result = convert(model, to, [x])
    (change,) = result.changes
    assert change.exact
    assert result.exact
    assert not change.fitted
    assert change.max_change == result.max_change == largest(model, result.model, x)
    assert change.max_change < EXACT
    assert type(result.model[0]) is new
    assert largest(model, result.model, randn(*shape)) < EXACT  # not on the batches alone


@pytest.mark.parametrize(
    ("norm", "groups", "shape"), [(nn.InstanceNorm2d(6, affine=True), 6, (2, 6, 4, 4)), (nn.LayerNorm(6), 1, (5, 6))]
)
def test_group_norm_of_the_right_number_of_groups_is_exact(norm, groups, shape):
    model, x = trained(norm), randn(*shape)
    result = convert(model, "group_norm", [x], groups=groups)
    assert result.exact
    assert largest(model, result.model, randn(*shape)) < EXACT
    other = convert(model, "group_norm", [x], groups=2)
    assert not other.exact
    assert other.max_change > 0.1


def test_frozen_is_bit_equal_to_batch_norm_in_evaluation_and_moves_nothing_in_training():
    model = trained(nn.BatchNorm2d(5)).float()
    frozen = convert(model, "FrozenBN").model
    x = torch.randn(3, 5, 4, 4)
    assert torch.equal(frozen(x), model(x))
    before = copy.deepcopy(frozen.state_dict())
    assert torch.equal(frozen.train()(x), model(x))
    assert all(torch.equal(v, before[k]) for k, v in frozen.state_dict().items())
    assert list(frozen.parameters()) == []


def test_frozen_loads_the_state_of_a_batch_norm_and_the_other_way_round():
    model = trained(nn.BatchNorm2d(5))
    frozen = FrozenBatchNorm(5, dtype=torch.float64)
    frozen.load_state_dict(model[0].state_dict())
    x = randn(2, 5, 3, 3)
    assert torch.equal(frozen(x), model(x))
    again = nn.BatchNorm2d(5, dtype=torch.float64).eval()
    again.load_state_dict(frozen.state_dict(), strict=False)
    assert torch.equal(again(x), model(x))


def test_a_batch_norm_in_training_mode_is_never_converted_exactly():
    model, x = trained(nn.BatchNorm2d(5)).train(), randn(4, 5, 3, 3)
    for to in TARGETS:
        result = convert(model, to, [x])
        assert not any(change.exact for change in result.changes), to
        assert all(module.training for module in result.model.modules())


@pytest.mark.parametrize("to", ["group_norm", "layer_norm", "rms_norm", "instance_norm"])
def test_a_small_change_on_the_batches_makes_nothing_exact(to):
    model = trained(nn.BatchNorm2d(1))
    x = torch.tensor([1.0, -1.0], dtype=torch.float64).view(1, 1, 1, 2)
    assert not convert(model, to, [x]).exact


# ---------------------------------------------------------------------------------------------------------- fitting


@pytest.mark.parametrize("to", ["group_norm", "layer_norm", "instance_norm"])
def test_scale_and_shift_are_the_least_squares_line_of_each_channel(to):
    model, batches = cnn()
    result = convert(model, to, batches, groups=2 if to == "group_norm" else None)
    new = result.model[1]
    plain = copy.deepcopy(new)
    nn.init.ones_(plain.weight)
    nn.init.zeros_(plain.bias)
    with torch.no_grad():
        inputs = [model[0](x) for x, _ in batches]
        z = torch.cat([plain(h) for h in inputs]).movedim(1, 0).flatten(1).numpy()
        y = torch.cat([model[1](h) for h in inputs]).movedim(1, 0).flatten(1).numpy()
    for channel in range(8):
        slope, shift = np.polyfit(z[channel], y[channel], 1)
        assert new.weight[channel].item() == pytest.approx(slope, abs=1e-10)
        assert new.bias[channel].item() == pytest.approx(shift, abs=1e-10)
    (first, _) = result.changes
    assert first.fitted
    error = np.concatenate([y[c] - (z[c] * new.weight[c].item() + new.bias[c].item()) for c in range(8)])
    assert first.max_change == pytest.approx(np.abs(error).max(), rel=1e-9)
    assert first.rms_change == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-9)
    assert first.rms_output == pytest.approx(np.sqrt(np.mean(y**2)), rel=1e-9)


def test_rms_norm_has_no_bias_and_its_scale_is_fitted_through_the_origin():
    model, batches = cnn()
    result = convert(model, "rms_norm", batches)
    new = result.model[1]
    assert isinstance(new, ChannelRMSNorm)
    plain = copy.deepcopy(new)
    nn.init.ones_(plain.weight)
    with torch.no_grad():
        inputs = [model[0](x) for x, _ in batches]
        z = torch.cat([plain(h) for h in inputs]).movedim(1, 0).flatten(1)
        y = torch.cat([model[1](h) for h in inputs]).movedim(1, 0).flatten(1)
    torch.testing.assert_close(new.weight, (z * y).sum(1) / (z * z).sum(1), rtol=0, atol=1e-10)
    assert "bias is dropped" in result.changes[0].note


def test_the_fit_is_never_worse_than_what_was_carried_over():
    model, batches = cnn()
    for to in ("group_norm", "layer_norm", "rms_norm", "instance_norm"):
        carried = convert(model, to)
        fitted = convert(model, to, batches)
        assert carried.changes[0].max_change is None
        with torch.no_grad():
            square = [
                (carried.model[1](model[0](x)) - model[1](model[0](x))).square().mean().item() for x, _ in batches
            ]
        assert fitted.changes[0].rms_change <= np.sqrt(np.mean(square)) * (1 + 1e-12)


def test_the_change_of_the_whole_function_is_measured():
    model, batches = cnn()
    result = convert(model, "group_norm", batches)
    with torch.no_grad():
        delta = torch.cat([result.model(x) - model(x) for x, _ in batches])
        output = torch.cat([model(x) for x, _ in batches])
    assert result.max_change == pytest.approx(delta.abs().max().item(), rel=1e-12)
    assert result.rms_change == pytest.approx(delta.square().mean().sqrt().item(), rel=1e-12)
    assert result.rms_output == pytest.approx(output.square().mean().sqrt().item(), rel=1e-12)


@pytest.mark.parametrize("to", ["batch_norm", "frozen_batch_norm"])
@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 8), nn.GroupNorm(2, 8, affine=False), nn.InstanceNorm2d(8)])
def test_new_statistics_are_pooled_over_the_batches(to, norm):
    model = trained(nn.Conv2d(3, 8, 3), norm)
    batches = [randn(n, 3, 6, 6) for n in (5, 2, 9)]
    result = convert(model, to, batches)
    with torch.no_grad():
        h = model[0](torch.cat(batches)).movedim(1, 0).flatten(1)
    new = result.model[1]
    torch.testing.assert_close(new.running_mean, h.mean(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(new.running_var, h.var(1), rtol=1e-12, atol=0)
    assert not result.exact
    if new.weight is not None:
        with torch.no_grad():
            y = model(torch.cat(batches)).movedim(1, 0).flatten(1)
            z = result.model(torch.cat(batches)).movedim(1, 0).flatten(1)
        torch.testing.assert_close(z.mean(1), y.mean(1), rtol=0, atol=1e-12)  # what least squares gives
        assert result.rms_change == pytest.approx((z - y).square().mean().sqrt().item(), rel=1e-9)


def test_without_batches_statistics_that_nobody_has_are_not_made_up():
    model = trained(nn.GroupNorm(2, 8))
    result = convert(model, "frozen_batch_norm")
    assert result.changes == ()
    assert "no running statistics" in result.skipped[0][1]
    assert result.model[0].num_groups == 2
    model = trained(nn.LayerNorm(8))
    (change,) = convert(model, "sync_batch_norm").changes
    assert "mean 0 and variance 1; give batches" in change.note


def test_a_batch_norm_that_was_never_trained_is_pointed_out():
    (change,) = convert(nn.Sequential(nn.BatchNorm2d(8)).eval(), "group_norm").changes
    assert "never updated" in change.note


def test_a_dead_channel_keeps_its_scale():
    model = trained(nn.BatchNorm2d(4))
    x = randn(3, 4, 5, 5)
    x[:, 1] = 2.0
    new = convert(model, "instance_norm", [x]).model[0]
    assert new.weight[1] == model[0].weight[1]
    assert torch.isfinite(new.weight).all()
    torch.testing.assert_close(new(x)[:, 1], model(x)[:, 1], rtol=0, atol=1e-12)


# --------------------------------------------------------------------------------------------------------- carrying


@pytest.mark.parametrize("to", ["group_norm", "layer_norm", "instance_norm", "rms_norm", "sync_batch_norm", "none"])
def test_eps_dtype_mode_and_requires_grad_are_kept(to):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, eps=3e-3, momentum=0.02)).bfloat16()
    model.eval()[1].train()
    model[1].weight.requires_grad = False
    result = convert(model, to)
    new = result.model[1]
    assert getattr(new, "eps", 3e-3) == 3e-3
    assert new.weight.dtype == torch.bfloat16
    assert not new.weight.requires_grad
    assert getattr(new, "bias", None) is None or new.bias.requires_grad
    assert new.training
    assert not result.model.training


@pytest.mark.parametrize("to", ["group_norm", "layer_norm", "instance_norm", "sync_batch_norm"])
def test_a_layer_without_affine_part_stays_without(to):
    new = convert(nn.Sequential(nn.BatchNorm2d(8, affine=False)), to).model[0]
    assert new.weight is None
    assert new.bias is None
    assert convert(nn.Sequential(nn.BatchNorm2d(8, bias=False)), to).model[0].bias is None


def test_momentum_and_statistics_go_from_batch_norm_to_sync_and_back():
    model = trained(nn.BatchNorm2d(8, momentum=0.03))
    x = randn(2, 8, 3, 3)
    there = convert(model, "sync_batch_norm")
    back = convert(there.model, "batch_norm", [x]).model[0]
    assert back.momentum == 0.03
    for name, value in model[0].state_dict().items():
        assert torch.equal(back.state_dict()[name], value)


def test_a_shared_layer_stays_shared():
    norm = nn.BatchNorm2d(4)
    model = trained(nn.Conv2d(4, 4, 1), norm, nn.ReLU(), nn.Conv2d(4, 4, 1), norm)
    result = convert(model, "group_norm", [randn(2, 4, 3, 3)])
    assert result.model[1] is result.model[4]
    assert [change.names for change in result.changes] == [("1", "4")]


def test_the_users_model_and_the_random_state_are_untouched():
    model, batches = cnn()
    model.train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    convert(model, "group_norm", batches)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(not module._forward_hooks for module in model.modules())


def test_a_single_normalization_is_converted_too():
    model = trained(nn.BatchNorm1d(6))[0]
    result = convert(model, "layer_norm", [randn(5, 6)])
    assert type(result.model) is nn.LayerNorm
    assert [change.names for change in result.changes] == [("",)]
    assert result.rms_change < result.rms_output


def test_layers_choose():
    model, _ = cnn()
    result = convert(model, "group_norm", layers=["4"])
    assert isinstance(result.model[1], nn.BatchNorm2d)
    assert isinstance(result.model[4], nn.GroupNorm)
    with pytest.raises(NormalizationError, match=r"layers holds '0', which is no normalization of the model: 1, 4"):
        convert(model, "group_norm", layers=["0"])


# ----------------------------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize("shape", [(3, 8), (3, 5, 8), (3, 2, 5, 8)])
def test_norms_of_the_last_axis_are_converted_along_it(shape):
    model, x = trained(nn.LayerNorm(8)), randn(*shape)
    for to in ("rms_norm", "group_norm", "batch_norm", "frozen_batch_norm", "none"):
        result = convert(model, to, [x])
        assert result.model(x).shape == x.shape
        assert result.changes[0].max_change == pytest.approx(largest(model, result.model, x), rel=1e-9)
    flat = convert(model, "batch_norm", [x]).model
    norm = flat[0] if len(shape) == 2 else flat[0].norm
    torch.testing.assert_close(norm.running_mean, x.flatten(0, -2).mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 6), (3, 6, 5), (3, 6, 4, 5)])
def test_channel_layers_are_pytorchs_own_on_the_moved_axis(shape):
    x = randn(*shape)
    last = x.movedim(1, -1)
    for ours, theirs in (
        (ChannelLayerNorm(6), nn.LayerNorm(6)),
        (ChannelRMSNorm(6, eps=1e-5), nn.RMSNorm(6, eps=1e-5)),
    ):
        nn.init.normal_(theirs.weight)
        ours.load_state_dict(theirs.state_dict())
        expected = theirs.double()(last).movedim(-1, 1)
        torch.testing.assert_close(ours.double()(x), expected, rtol=0, atol=1e-14)
    affine = ChannelAffine(6).double()
    nn.init.normal_(affine.weight)
    nn.init.normal_(affine.bias)
    torch.testing.assert_close(affine(x), (last * affine.weight + affine.bias).movedim(-1, 1), rtol=0, atol=1e-14)
    wrapped = ChannelsLast(nn.GroupNorm(2, 6).double())
    inner = last.reshape(3, -1, 6).transpose(1, 2)
    expected = F.group_norm(inner, 2).transpose(1, 2).reshape(last.shape)
    torch.testing.assert_close(wrapped(last), expected, rtol=0, atol=1e-14)


def test_batch_norm_of_two_axes_cannot_become_instance_norm():
    model = trained(nn.BatchNorm1d(6))
    assert "several positions" in convert(model, "instance_norm", [randn(5, 6)]).skipped[0][1]
    assert "give batches" in convert(model, "instance_norm").skipped[0][1]
    assert "give batches" in convert(trained(nn.GroupNorm(2, 6)), "batch_norm").skipped[0][1]


# ------------------------------------------------------------------------------------------------------------ skipped


class Scaled(nn.BatchNorm2d):
    def forward(self, x):
        return 2 * super().forward(x)


def test_what_cannot_be_converted_is_left_and_named():
    hooked = nn.BatchNorm2d(3)
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    model = trained(nn.BatchNorm2d(3), hooked, Scaled(3), nn.LayerNorm((3, 4, 4)))
    result = convert(model, "rms_norm")
    assert [change.names for change in result.changes] == [("0",)]
    told = dict(result.skipped)
    assert "hooks" in told["1"]
    assert "Scaled has a forward of its own" in told["2"]
    assert "3 axes" in told["3"]


def test_norms_inside_a_fused_transformer_layer_are_left():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    result = convert(layer, "rms_norm")
    assert result.changes == ()
    assert len(result.skipped) == 2
    assert "TransformerEncoderLayer computes LayerNorm by itself" in result.skipped[0][1]


def test_a_kind_that_is_already_there_is_no_change():
    result = convert(trained(nn.GroupNorm(2, 8)), "group_norm")
    assert (result.changes, result.skipped) == ((), ())
    result = convert(trained(nn.GroupNorm(2, 8)), "group_norm", groups=4)
    assert result.model[0].num_groups == 4


# ------------------------------------------------------------------------------------------------------------- groups


@given(channels=st.integers(1, 2048), positions=st.integers(1, 4096))
@settings(max_examples=200, deadline=None)
def test_law_groups_divide_and_leave_enough(channels, positions):
    groups = group_count(channels, positions)
    assert channels % groups == 0
    assert 1 <= groups <= 32
    size = channels // groups
    assert groups == 1 or size >= 4 or size * positions >= 16


@pytest.mark.parametrize(
    ("channels", "positions", "groups"),
    [(48, 1, 12), (48, 64, 24), (64, 1, 16), (128, 1, 32), (6, 1, 1), (7, 100, 7), (1, 1, 1)],
)
def test_group_counts(channels, positions, groups):
    assert group_count(channels, positions) == groups
    nn.GroupNorm(groups, channels)


def test_groups_that_do_not_divide_name_the_layer_and_its_divisors():
    model = trained(nn.Conv2d(3, 48, 1), nn.BatchNorm2d(48))
    with pytest.raises(ValueError, match="must be divisible"):
        nn.GroupNorm(32, 48)
    with pytest.raises(
        NormalizationError, match=r"groups is 32, which does not divide the 48 channels of 1; its divisors are 1, 2"
    ):
        convert(model, "group_norm", groups=32)
    with pytest.raises(NormalizationError, match="channels is 0"):
        group_count(0)


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", ["GroupNorm", "group-norm", "group_norm", "Group Norm"])
def test_kinds_can_be_spelled_as_one_likes(name):
    assert type(convert(nn.Sequential(nn.BatchNorm2d(4)), name).model[0]) is nn.GroupNorm


def test_wrong_arguments_say_what_was_expected():
    model, batches = cnn()
    with pytest.raises(NormalizationError, match=r"to is 'evonorm'; known are 'batch_norm', 'group_norm'"):
        convert(model, "evonorm")
    with pytest.raises(NormalizationError, match=r"one-shot iterator; give the DataLoader"):
        convert(model, "group_norm", iter(batches))
    with pytest.raises(NormalizationError, match="gave no batch"):
        convert(model, "group_norm", [])
    with pytest.raises(NormalizationError, match="an iterable of batches is needed, not one batch"):
        convert(model, "group_norm", batches[0][0])
    with pytest.raises(NormalizationError, match=r"model is .*; a torch.nn.Module is needed"):
        convert(None, "group_norm")
    with pytest.raises(NormalizationError, match="num_features is 0"):
        FrozenBatchNorm(0)
    with pytest.raises(NormalizationError, match="eps is -1"):
        FrozenBatchNorm(2, eps=-1)


def test_batches_may_be_a_function_and_the_model_called_in_another_way():
    model, batches = cnn()
    plain = convert(model, "group_norm", batches)
    called = convert(
        model, "group_norm", lambda: iter([{"image": x} for x, _ in batches]), forward=lambda m, b: m(b["image"])
    )
    assert called.rms_change == plain.rms_change


def test_nothing_is_no_target():
    with pytest.raises(NormalizationError, match="to is None"):
        convert(nn.Sequential(nn.BatchNorm1d(3)), None)


def test_batches_that_are_not_finite_are_refused():
    x = torch.randn(4, 3, 8, 8)
    x[0, 0, 0, 0] = float("nan")
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval()
    with pytest.raises(NormalizationError, match="not finite"):
        convert(model, "group_norm", [torch.randn(4, 3, 8, 8), x])
