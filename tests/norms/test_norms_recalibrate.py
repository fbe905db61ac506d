"""Recalibration pools exactly, whatever the batches are cut into, and leaves everything else as it was."""

import copy
import warnings
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

from trimtab.errors import NormalizationError
from trimtab.norms._channel_moments import channel_moments, merge
from trimtab.norms.recalibration import UnequalBatchesWarning, recalibrate

pytestmark = pytest.mark.filterwarnings("ignore::trimtab.norms.recalibration.UnequalBatchesWarning")


def exactly(n, mean, std):
    """n numbers with exactly this mean and unbiased standard deviation."""
    x = torch.randn(n, 1, dtype=torch.float64)
    x = (x - x.mean()) / x.std()
    return x * std + mean


def hundred_and_two():
    """Batches of 100 and 2 rows, chosen so that update_bn gives mean 4.96 and variance 0.0105; the figures are public.

    How the rows of the published example were drawn is not known. Means and spreads follow from its four figures.
    """
    return [exactly(100, -0.0165, 0.07), exactly(2, 9.9270, 0.0161**0.5)]


def net(*, dropout=0.0):
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(8, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, 3),
        nn.BatchNorm1d(3),
    ).double()


def reference(model, x):
    """Brute force: each BatchNorm gets the statistics of all its inputs at once, and the next sees its eval output."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.BatchNorm1d):
                layer.running_mean.copy_(x.mean(0))
                layer.running_var.copy_(x.var(0))
            x = layer(x)
    return model


def same_statistics(a, b, tolerance=1e-12):
    for name, value in a.named_buffers():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(b.get_buffer(name), value, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------------------------- exact


def test_a_hundred_rows_and_two_rows():
    batches = hundred_and_two()
    theirs = nn.BatchNorm1d(1).double()
    update_bn(batches, theirs)
    assert theirs.running_mean.item() == pytest.approx(4.96, abs=5e-3)
    assert theirs.running_var.item() == pytest.approx(0.0105, abs=5e-5)
    ours = nn.BatchNorm1d(1).double()
    with pytest.warns(UnequalBatchesWarning, match=r"In 1 of 1 layers .* most in the model itself, by 99%"):
        (layer,) = recalibrate(ours, batches).layers
    assert ours.running_mean.item() == pytest.approx(0.178, abs=5e-4)
    assert ours.running_var.item() == pytest.approx(1.92, abs=5e-3)
    rows = torch.cat(batches)
    assert layer.mean.item() == pytest.approx(rows.mean().item(), abs=1e-14)
    assert layer.variance.item() == pytest.approx(rows.var().item(), rel=1e-14)
    assert layer.mean_of_variances.item() == pytest.approx(theirs.running_var.item(), rel=1e-12)
    assert layer.gap == pytest.approx(1 - 0.0105 / 1.92, abs=1e-3)
    assert (layer.count, layer.batches) == (102, 2)


@given(cuts=st.lists(st.integers(1, 79), max_size=6, unique=True), seed=st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_law_how_the_data_is_cut_does_not_matter(cuts, seed):
    torch.manual_seed(seed)
    model, x = net(), torch.randn(80, 4, dtype=torch.float64) * 2 + 1
    edges = [0, *sorted(cuts), 80]
    batches = [x[a:b] for a, b in pairwise(edges)]
    recalibrate(model, batches)
    same_statistics(reference(model, x), model)


def test_in_evaluation_every_output_has_the_mean_and_variance_it_should_have():
    model, x = net(), torch.randn(64, 4, dtype=torch.float64)
    recalibrate(model, list(x.split(16)))
    heard = {}
    for name in ("1", "5", "8"):
        model[int(name)].register_forward_hook(lambda m, a, y, name=name: heard.update({name: y}))
    model.eval()(x)
    for name, y in heard.items():
        norm = model[int(name)]
        torch.testing.assert_close(y.mean(0), norm.bias, rtol=0, atol=1e-12)
        expected = norm.weight**2 * norm.running_var / (norm.running_var + norm.eps)
        torch.testing.assert_close(y.var(0), expected, rtol=1e-10, atol=0)


def test_in_one_pass_later_layers_depend_on_how_the_data_is_cut():
    model, x = net(), torch.randn(80, 4, dtype=torch.float64)
    found = []
    for size in (80, 8):
        result = recalibrate(model, iter(x.split(size)), upstream="batch")
        assert [layer.exact for layer in result.layers] == [True, False, False]
        found.append([layer.mean for layer in result.layers])
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-12)
    assert (found[0][1] - found[1][1]).abs().max() > 1e-3
    theirs = copy.deepcopy(model)
    update_bn(x.split(8), theirs)  # equal batches: the mean of means is the pooled mean
    for a, b in ((model[1], theirs[1]), (model[5], theirs[5]), (model[8], theirs[8])):
        torch.testing.assert_close(a.running_mean, b.running_mean, rtol=0, atol=1e-12)
        layer = result[["1", "5", "8"][[model[1], model[5], model[8]].index(a)]]
        torch.testing.assert_close(layer.mean_of_variances, b.running_var, rtol=1e-12, atol=0)


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 5), (6, 3, 5, 4), (6, 3, 2, 3, 4)])
def test_all_layouts(shape):
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    norm, x = kind(3).double(), torch.randn(shape, dtype=torch.float64)
    (layer,) = recalibrate(norm, [x, x[:2] * 2], layers=None, upstream="running").layers
    flat = torch.cat([t.movedim(1, 0).flatten(1) for t in (x, x[:2] * 2)], 1)
    torch.testing.assert_close(norm.running_mean, flat.mean(1), rtol=0, atol=1e-14)
    torch.testing.assert_close(norm.running_var, flat.var(1), rtol=1e-13, atol=0)
    assert layer.count == flat.shape[1]


def test_numbers_far_from_zero_keep_their_variance_where_a_cumulative_average_loses_it():
    x = torch.randn(65536, 1) + 1e6  # float32: what is stored has this variance
    true = x.double().var().item()
    theirs = nn.BatchNorm1d(1, momentum=None)
    with torch.no_grad():
        for part in x.split(8192):
            theirs(part)
    assert abs(theirs.running_var.item() / true - 1) > 1.0
    ours = nn.BatchNorm1d(1)
    recalibrate(ours, list(x.split(8192)))
    assert ours.running_var.item() == pytest.approx(true, rel=1e-6)


def test_moments_do_not_write_to_the_callers_memory_and_merge_as_one():
    x = torch.randn(7, 3, 2, dtype=torch.float64)
    before = x.clone()
    whole = channel_moments(x)
    assert torch.equal(x, before)
    parts = merge(channel_moments(x[:2]), channel_moments(x[2:]))
    torch.testing.assert_close(parts.mean, whole.mean, rtol=0, atol=1e-15)
    torch.testing.assert_close(parts.m2, whole.m2, rtol=1e-14, atol=0)
    big = torch.randn(300, 5, 1000)
    found = channel_moments(big)
    flat = big.double().movedim(1, 0).flatten(1)
    torch.testing.assert_close(found.mean, flat.mean(1), rtol=0, atol=1e-14)
    torch.testing.assert_close(found.variance, flat.var(1), rtol=1e-12, atol=0)
    last = channel_moments(x.movedim(1, -1), axis=-1)
    torch.testing.assert_close(last.m2, whole.m2, rtol=1e-14, atol=0)


# ------------------------------------------------------------------------------------------------- everything else


def test_modes_momentum_random_state_and_weights_are_as_they_were():
    model, x = net(dropout=0.5), torch.randn(48, 4, dtype=torch.float64)
    model.train()
    model[3].eval()
    model[5].momentum = None
    modes = [m.training for m in model.modules()]
    weights = [p.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    for upstream in ("running", "batch"):
        result = recalibrate(model, list(x.split(16)), upstream=upstream)
        assert result.model is model
        assert [m.training for m in model.modules()] == modes
        assert torch.equal(torch.get_rng_state(), state)
        assert (model[1].momentum, model[5].momentum, model[8].momentum) == (0.1, None, 0.1)
        assert model[1].num_batches_tracked == model[8].num_batches_tracked == 3
        assert all(not m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))


def test_dropout_is_off_as_it_will_be_where_update_bn_leaves_it_on():
    model, x = net(dropout=0.5), torch.randn(2000, 4, dtype=torch.float64)
    recalibrate(model, [x])
    without = net()
    without.load_state_dict(model.state_dict())
    same_statistics(reference(without, x), model)
    theirs = copy.deepcopy(model)
    update_bn([x], theirs)
    assert (theirs[5].running_var / model[5].running_var).mean() > 1.2  # dropout of 1/2 adds variance


def test_a_copy_leaves_the_model_alone():
    model, x = net(), torch.randn(48, 4, dtype=torch.float64)
    before = copy.deepcopy(model.state_dict())
    result = recalibrate(model, [x], inplace=False)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not torch.equal(result.model[1].running_mean, model[1].running_mean)
    assert torch.equal(result["1"].old_mean, model[1].running_mean)
    with pytest.raises(KeyError):
        result["0"]


def test_the_shift_is_in_standard_deviations():
    norm, x = nn.BatchNorm1d(1).double(), exactly(50, 6.0, 2.0)
    (layer,) = recalibrate(norm, [x]).layers
    assert layer.shift.item() == pytest.approx(3.0, rel=1e-12)


def test_layers_choose_and_the_others_stay():
    model, x = net(), torch.randn(48, 4, dtype=torch.float64)
    before = model[8].running_mean.clone()
    result = recalibrate(model, [x], layers=["5"])
    assert [layer.name for layer in result.layers] == ["5"]
    assert torch.equal(model[8].running_mean, before)


def test_batches_of_one_value_per_channel_count_too():
    model, x = net(), torch.randn(5, 4, dtype=torch.float64)
    result = recalibrate(model, list(x.split(1)))
    same_statistics(reference(model, x), model)
    assert torch.isnan(result.layers[0].mean_of_variances).all()  # none of them had a variance
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        update_bn(x.split(1), net())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_buffers_keep_their_dtype_and_get_the_float64_result_rounded_once(dtype):
    norm = nn.BatchNorm1d(3).to(dtype)
    x = (torch.randn(100, 3) * 3 + 5).to(dtype)
    recalibrate(norm, list(x.split(10)))
    assert torch.equal(norm.running_mean, x.double().mean(0).to(dtype))
    assert torch.equal(norm.running_var, x.double().var(0).to(dtype))


def test_a_layer_called_twice_is_not_called_exact():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(self.norm(x) * 2 + 1)

    model, x = Twice().double(), torch.randn(40, 3, dtype=torch.float64) + 3
    (layer,) = recalibrate(model, [x]).layers
    assert not layer.exact
    assert layer.count == 80
    second = model.norm.weight * 2 * (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt() + 1
    torch.testing.assert_close(model.norm.running_mean, torch.cat([x, second]).mean(0), rtol=0, atol=1e-12)


def test_a_layer_that_takes_a_mask_is_skipped():
    class Masked(nn.BatchNorm1d):
        def forward(self, x, mask=None):
            return super().forward(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain, self.masked = nn.BatchNorm1d(3), Masked(3)

        def forward(self, x):
            return self.masked(self.plain(x), mask=x[:, 0] > 0)

    for upstream in ("running", "batch"):
        model = Net().double()
        result = recalibrate(model, [torch.randn(9, 3, dtype=torch.float64)], upstream=upstream)
        assert [layer.name for layer in result.layers] == ["plain"]
        assert [name for name, _ in result.skipped] == ["masked"]
        assert model.masked.num_batches_tracked == 0


def test_a_model_that_catches_exceptions_is_still_stopped_at_the_layer():
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()

        def forward(self, x):
            try:
                return self.body(x)
            except Exception:
                return self.body(x * 100)

    model, x = Careful(), torch.randn(32, 4, dtype=torch.float64)
    recalibrate(model, [x])
    same_statistics(reference(model.body, x), model.body)


def test_averaged_weights_get_statistics_of_their_own():
    model, x = net(), torch.randn(64, 4, dtype=torch.float64)
    averaged = AveragedModel(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    model(x)
    averaged.update_parameters(model)
    result = recalibrate(averaged, [(x, None)])
    assert max(layer.shift.max().item() for layer in result.layers) > 0.1
    same_statistics(reference(averaged.module, x), averaged.module)


def test_sync_batch_norm_without_a_group():
    model, x = nn.SyncBatchNorm(3).double(), torch.randn(20, 3, dtype=torch.float64)
    recalibrate(model, [x])
    torch.testing.assert_close(model.running_var, x.var(0), rtol=1e-13, atol=0)


# ------------------------------------------------------------------------------------------------ warnings and errors


def test_like_batches_give_no_warning_and_unlike_ones_do():
    model = net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recalibrate(model, [torch.randn(64, 4, dtype=torch.float64) for _ in range(4)])
    by_class = [torch.randn(64, 4, dtype=torch.float64) + 2 * k for k in range(3)]
    with pytest.warns(UnequalBatchesWarning, match="the batches are not alike"):
        result = recalibrate(model, by_class)
    first = result.layers[0]
    assert first.gap > 0.1
    assert (first.variance > first.mean_of_variances).all()


@pytest.mark.parametrize("where", ["1", "5"])
def test_nothing_is_left_half_done(where):
    model, x = net(), torch.randn(48, 4, dtype=torch.float64)
    before = copy.deepcopy(model.state_dict())
    if where == "5":
        with torch.no_grad():
            model[4].weight[0, 0] = torch.inf
        before = copy.deepcopy(model.state_dict())
    else:
        x[3, 2] = torch.nan
    for upstream in ("running", "batch"):
        with pytest.raises(NormalizationError, match=rf"input of {where} is not finite"):
            recalibrate(model, [x[:16], x], upstream=upstream)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)
        assert model.training
        assert all(not m._forward_pre_hooks for m in model.modules())


def test_wrong_arguments_say_what_was_expected():
    model, x = net(), torch.randn(8, 4, dtype=torch.float64)
    with pytest.raises(NormalizationError, match="upstream is 'eval'; one of 'running', 'batch' is needed"):
        recalibrate(model, [x], upstream="eval")
    with pytest.raises(NormalizationError, match="one-shot iterator"):
        recalibrate(model, iter([x]))
    with pytest.raises(NormalizationError, match="no BatchNorm with running statistics"):
        recalibrate(nn.Sequential(nn.LayerNorm(4)), [x])
    with pytest.raises(NormalizationError, match=r"layers holds '0'.*there are: 1, 5, 8"):
        recalibrate(model, [x], layers=["0"])
    with pytest.raises(NormalizationError, match="gave no batch"):
        recalibrate(model, [])
    with pytest.raises(NormalizationError, match="1 got 1 values per channel"):
        recalibrate(model, [x[:1]])
    with pytest.raises(NormalizationError, match=r"batches is .*; an iterable of batches or a function"):
        recalibrate(model, 3)
    with pytest.raises(NormalizationError, match="model is"):
        recalibrate("model", [x])


def test_a_model_that_changes_its_input_in_place_leaves_the_batches_alone():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            return self.norm(self.conv(x.sub_(0.5).div_(0.25)))

    torch.manual_seed(0)
    model, x = InPlace().eval(), torch.rand(8, 3, 8, 8)
    given = x.clone()
    recalibrate(model, [x])
    assert torch.equal(x, given)
    expected = model.conv((given - 0.5) / 0.25).mean((0, 2, 3))
    torch.testing.assert_close(model.norm.running_mean, expected)
