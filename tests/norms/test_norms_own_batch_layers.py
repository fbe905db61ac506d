"""In evaluation mode, without a mask, trimtab's batch layers are PyTorch's to whatever changes a model."""

import copy
import warnings

import pytest
import torch
from torch import nn

from trimtab.norms import layers
from trimtab.norms.converting import convert
from trimtab.norms.folding import fold
from trimtab.norms.recalibration import recalibrate

OWN = {
    "masked": layers.MaskedBatchNorm2d,
    "ghost": lambda channels: layers.GhostBatchNorm2d(channels, ghost_size=4),
    "renorm": lambda channels: layers.BatchRenorm2d(channels, warm_up=(1, 2, 2)),
    "checkpointed": layers.CheckpointedBatchNorm2d,
}
each = pytest.mark.parametrize("own", OWN.values(), ids=OWN)


def trained(*parts):
    """A model in float64 whose batch layers are as if trained."""
    model = nn.Sequential(*parts).double().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            module.num_batches_tracked.fill_(7)
    return model


class Called(nn.Module):
    """A masked layer between two linear maps, called with whatever comes after the input."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 3), layers.MaskedBatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x, mask):
        return self.last(self.norm(self.first(x), mask=mask))


class CalledByBranch(Called):
    """The same where no trace can follow."""

    def forward(self, x, mask):
        return super().forward(x, mask) if bool(x.sum() < 1e9) else x


@each
@pytest.mark.parametrize("with_example", [False, True])
def test_they_fold_exactly_into_what_is_before_or_after(own, with_example):
    x = torch.randn(6, 3, 7, 7, dtype=torch.float64)
    example = x if with_example else None
    before = trained(nn.Conv2d(3, 4, 3, padding=1), own(4), nn.ReLU())
    after = trained(own(3), nn.Conv2d(3, 4, 3))
    for model, names in ((before, ("0", "1")), (after, ("0", "1"))):
        result = fold(model, example)
        assert [pair.names for pair in result.pairs] == [names]
        assert not result.refused
        assert (result.model(x) - model(x)).abs().max() < 1e-12
        assert not any(isinstance(m, nn.BatchNorm2d) for m in result.model.modules())


@each
def test_in_training_mode_they_are_refused_for_that_alone(own):
    ((_, reason),) = fold(trained(nn.Conv2d(3, 4, 1), own(4)).train()).refused
    assert "training mode" in reason


@pytest.mark.parametrize("model", [Called(), CalledByBranch()], ids=["traced", "untraced"])
def test_a_call_with_a_mask_is_refused_with_its_reason(model):
    model = model.eval()
    example = (torch.randn(8, 5), torch.arange(8) < 6)
    result = fold(model, example)
    assert not result.pairs
    assert "called with a keyword or more than one argument" in dict(result.refused)["norm",]
    told = convert(model, "batch_norm", [{"x": example[0], "mask": example[1]}])
    assert dict(told.skipped).keys() == {"norm"}
    assert "called with more than one argument" in told.skipped[0][1]
    assert type(told.model.norm) is layers.MaskedBatchNorm1d


def test_a_subclass_with_a_forward_of_its_own_is_refused_still():
    class Doubled(layers.GhostBatchNorm2d):
        def forward(self, input):
            return 2 * super().forward(input)

    class Named(layers.GhostBatchNorm2d):
        pass

    ((_, reason),) = fold(trained(nn.Conv2d(3, 4, 1), Doubled(4))).refused
    assert reason.endswith("Doubled has a forward of its own")
    assert [p.names for p in fold(trained(nn.Conv2d(3, 4, 1), Named(4))).pairs] == [("0", "1")]


@each
@pytest.mark.parametrize("with_batches", [False, True])
def test_they_become_pytorchs_layer_with_all_that_they_hold(own, with_batches):
    x = torch.randn(6, 3, 7, 7, dtype=torch.float64)
    model = trained(nn.Conv2d(3, 4, 3), own(4))
    result = convert(model, "batch_norm", [x] if with_batches else None)
    new, old = result.model[1], model[1]
    assert type(new) is nn.BatchNorm2d
    assert result.exact
    assert not result.skipped
    for name, value in old.state_dict().items():
        assert torch.equal(new.state_dict()[name], value), name
    assert torch.equal(result.model(x), model(x))
    assert result.max_change == (0.0 if with_batches else None)


def test_one_of_unknown_rank_becomes_a_batch_norm_1d():
    result = convert(layers.GhostBatchNorm1d(3, momentum=None, affine=False), "batch_norm")
    assert type(result.model) is nn.BatchNorm1d
    assert result.model.momentum is None
    assert result.model.weight is None
    assert not result.exact  # in training mode


@each
@pytest.mark.parametrize("to", ["group_norm", "frozen_batch_norm", "none", "sync_batch_norm"])
def test_they_become_other_kinds_as_pytorchs_would(own, to):
    model = trained(nn.Conv2d(3, 8, 3), own(8))
    plain = copy.deepcopy(model)
    plain[1] = convert(model, "batch_norm").model[1]
    x = torch.randn(6, 3, 7, 7, dtype=torch.float64)
    ours, theirs = (convert(m, to, [x]) for m in (model, plain))
    assert torch.equal(ours.model(x), theirs.model(x))
    assert ours.changes[0].exact == theirs.changes[0].exact


def test_what_has_lost_its_mask_says_so():
    (change,) = convert(trained(layers.MaskedBatchNorm2d(3)), "batch_norm").changes
    assert "takes no mask" in change.note


@each
@pytest.mark.parametrize("upstream", ["running", "batch"])
def test_recalibration_pools_what_they_see(own, upstream):
    model = trained(nn.Conv2d(3, 4, 3), own(4))
    batches = [torch.randn(n, 3, 7, 7, dtype=torch.float64) for n in (8, 12, 5)]
    with torch.no_grad():
        seen = torch.cat([model[0](x) for x in batches]).movedim(1, 0).flatten(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = recalibrate(model, batches, upstream=upstream)
    assert not result.skipped
    assert torch.allclose(model[1].running_mean, seen.mean(1), rtol=1e-12, atol=1e-14)
    assert torch.allclose(model[1].running_var, seen.var(1), rtol=1e-12)


@pytest.mark.parametrize("upstream", ["running", "batch"])
def test_recalibration_leaves_the_clock_of_renormalization_alone(upstream):
    model = trained(layers.BatchRenorm2d(3, warm_up=(1, 11, 11)), nn.BatchNorm2d(3))
    limits = model[0].limits()
    recalibrate(model, [torch.randn(8, 3, 4, 4, dtype=torch.float64)], upstream=upstream)
    assert model[0].limits() == limits != (1.0, 0.0)
    assert (int(model[0].num_batches_tracked), int(model[1].num_batches_tracked)) == (7, 1)


def test_an_rms_norm_of_trimtabs_loses_its_weight_as_pytorchs_does():
    for kind in (nn.RMSNorm, layers.RMSNorm):
        model = nn.Sequential(kind(6, eps=1e-6), nn.Linear(6, 4)).double()
        nn.init.normal_(model[0].weight)
        x = torch.randn(5, 6, dtype=torch.float64)
        result = fold(model, x)
        assert type(result.model[0]) is kind
        assert result.model[0].weight is None
        assert (result.model(x) - model(x)).abs().max() < 1e-12
