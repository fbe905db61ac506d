"""Folding is exact in float64, refused where it is not, and leaves the user's model alone."""

import copy
import itertools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from trimtab.errors import NormalizationError
from trimtab.norms.channel_layers import ChannelLayerNorm
from trimtab.norms.folding import FixedRank, fold
from trimtab.norms.folding._verify import tolerance
from trimtab.norms.folding._wiring import wire
from trimtab.norms.folding.batch_norm import scale_and_shift
from trimtab.norms.frozen_batch_norm import FrozenBatchNorm

EXACT = 1e-12
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LayerNorm, nn.RMSNorm)


def trained(*layers):
    """A model in float64 and evaluation mode whose normalizations are as if trained."""
    model = (layers[0] if len(layers) == 1 else nn.Sequential(*layers)).double().eval()
    for module in model.modules():
        if getattr(module, "running_mean", None) is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
        if isinstance(module, NORMS) and module.weight is not None:
            nn.init.normal_(module.weight)
            if getattr(module, "bias", None) is not None:
                nn.init.normal_(module.bias)
    return model


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64) * 1.5 + 0.5


def largest(model, folded, x):
    with torch.no_grad():
        return (model(x) - folded(x)).abs().max().item()


def folded_whole(model, x, **more):
    """Fold with and without the example, check both, return the result with it."""
    for example in (None, x):
        result = fold(model, example, **more)
        assert result.refused == ()
        assert largest(model, result.model, x) < EXACT
        assert result.max_difference < EXACT
    assert result.verified_on == "example"
    assert result.max_difference == largest(model, result.model, x)
    return result


def reasons(result):
    return " | ".join(reason for _, reason in result.refused)


# ---------------------------------------------------------------------------------------------- batch norm, after


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transposed", [False, True])
def test_batch_norm_after_a_convolution(dims, groups, bias, transposed):
    kind = (TRANSPOSED if transposed else CONV)[dims]
    layer = kind(4, 6, 3, stride=2, padding=1, groups=groups, bias=bias)
    model = trained(layer, BATCH_NORM[dims](6))
    result = folded_whole(model, randn(2, 4, *[7] * dims))
    assert isinstance(result.model[1], nn.Identity)
    assert [pair.names for pair in result.pairs] == [("0", "1")]
    assert 0.0 <= result.pairs[0].difference < EXACT


@given(
    transposed=st.booleans(),
    per_group=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.integers(1, 3),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
    affine=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_law_any_convolution_takes_the_batch_norm_after_it(
    transposed, per_group, groups, kernel, stride, dilation, padding, affine, seed
):
    torch.manual_seed(seed)
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    c_in, c_out = (n * groups for n in per_group)
    layer = kind(c_in, c_out, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups)
    model = trained(layer, nn.BatchNorm2d(c_out, affine=affine))
    folded_whole(model, randn(2, c_in, 9, 9))


def test_fold_into_a_transposed_convolution_without_transposing_is_wrong_and_ours_is_right():
    model = trained(nn.ConvTranspose2d(4, 4, 3, bias=False), nn.BatchNorm2d(4))
    norm, x = model[1], randn(2, 4, 5, 5)
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    wrong = F.conv_transpose2d(x, model[0].weight * scale.view(-1, 1, 1, 1), norm.bias - norm.running_mean * scale)
    assert (wrong - model(x)).abs().max() > 0.1  # the axis of an ordinary convolution's outputs
    folded_whole(model, x)


def test_grouped_transposed_convolution_equals_the_closed_form():
    model = trained(nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6))
    norm = model[1]
    s = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    expected = (model[0].weight.view(2, 2, 3, 3, 3) * s.view(2, 1, 3, 1, 1)).view(4, 3, 3, 3)
    new = folded_whole(model, randn(2, 4, 5, 5)).model[0]
    torch.testing.assert_close(new.weight, expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(new.bias, norm.bias - norm.running_mean * s, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(6), nn.SyncBatchNorm(6), nn.BatchNorm1d(6, bias=False), FrozenBatchNorm(6)]
)
def test_batch_norm_after_a_linear_layer(norm):
    folded_whole(trained(nn.Linear(5, 6, bias=False), norm), randn(8, 5))


def test_fold_agrees_with_torch_fusion_where_that_is_right():
    model = trained(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5))
    theirs = nn.utils.fusion.fuse_conv_bn_eval(model[0], model[1])
    torch.testing.assert_close(fold(model).model[0].weight, theirs.weight, rtol=0, atol=1e-15)
    torch.testing.assert_close(fold(model).model[0].bias, theirs.bias, rtol=0, atol=1e-15)


def test_a_whole_network_folds():
    model = trained(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3, groups=6),
        nn.Identity(),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 36, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.5),
        nn.Linear(8, 2),
    )
    result = folded_whole(model, randn(3, 3, 8, 8))
    assert len(result.pairs) == 3


# --------------------------------------------------------------------------------------------- batch norm, before


@pytest.mark.parametrize(
    ("padding", "mode"), [(0, "zeros"), (1, "reflect"), (1, "replicate"), (1, "circular"), ("valid", "zeros")]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_before_a_convolution(padding, mode, groups):
    model = trained(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, padding=padding, padding_mode=mode, groups=groups))
    result = folded_whole(model, randn(2, 4, 8, 8))
    assert result.pairs[0].names == ("0", "1")


@pytest.mark.parametrize("padding", [1, "same"])
def test_zero_padding_is_refused_since_it_is_wrong_at_the_border_alone(padding):
    model = trained(nn.BatchNorm2d(3), nn.Conv2d(3, 5, 3, padding=padding))
    x = randn(2, 3, 8, 8)
    norm, conv = model
    s, t = scale_and_shift(norm)
    w = conv.weight * s.view(1, -1, 1, 1)
    b = conv.bias + torch.einsum("oikl,i->o", conv.weight, t)
    error = (F.conv2d(x, w, b, padding=1) - model(x)).abs()
    assert error.max() > 0.1
    assert error[:, :, 1:-1, 1:-1].max() < EXACT
    result = fold(model, x)
    assert "zero padding" in reasons(result)
    assert largest(model, result.model, x) == 0.0


def test_zero_padding_is_no_matter_where_nothing_is_shifted():
    model = trained(nn.BatchNorm2d(3, bias=False), nn.Conv2d(3, 5, 3, padding=1))
    model[0].running_mean.zero_()
    assert folded_whole(model, randn(2, 3, 8, 8)).model[1].bias is not None


def test_transposed_convolution_after_a_shift_is_refused_but_for_a_kernel_of_one():
    x = randn(2, 4, 5, 5)
    result = fold(trained(nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 6, 3)), x)
    assert "unevenly" in reasons(result)
    folded_whole(trained(nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 6, 1, groups=2)), x)
    still = trained(nn.BatchNorm2d(4, bias=False), nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2))
    still[0].running_mean.zero_()
    folded_whole(still, x)


def test_batch_norm_before_several_layers():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3, bias=False)

        def forward(self, x):
            x = self.norm(x)
            return self.a(x) * self.b(x)

    result = folded_whole(trained(Branches()), randn(6, 4))
    assert result.pairs[0].names == ("norm", "a", "b")


# --------------------------------------------------------------------------------------------- LayerNorm, RMSNorm


class Attention(nn.Module):
    def __init__(self, norm, width=8):
        super().__init__()
        self.norm = norm
        self.q, self.k, self.v = (nn.Linear(width, width, bias=i > 0) for i in range(3))

    def forward(self, x):
        x = self.norm(x)
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.LayerNorm(8, bias=False), nn.RMSNorm(8), nn.RMSNorm(8, eps=1e-3)])
@pytest.mark.parametrize("training", [False, True])
def test_affine_goes_into_every_layer_that_takes_it(norm, training):
    model = trained(Attention(norm)).train(training)
    result = folded_whole(model, randn(2, 5, 8), kinds=["affine"])
    assert result.model.norm.weight is None
    assert result.model.norm.training is training
    assert result.pairs[0].names == ("norm", "q", "k", "v")


def test_affine_stays_where_something_else_takes_the_output():
    class Residual(Attention):
        def forward(self, x):
            return self.norm(x) + super().forward(x)

    model, x = trained(Residual(nn.LayerNorm(8))), randn(2, 5, 8)
    result = fold(model, x)
    assert result.pairs == ()
    assert largest(model, result.model, x) == 0.0


def test_layer_norm_becomes_rms_norm_behind_a_centred_linear_layer():
    model = trained(nn.Linear(5, 8), nn.LayerNorm(8, bias=False), nn.ReLU())
    result = folded_whole(model, randn(4, 5), kinds=["centring"])
    assert isinstance(result.model[1], nn.RMSNorm)
    C = torch.eye(8, dtype=torch.float64) - 1 / 8
    torch.testing.assert_close(result.model[0].weight, C @ model[0].weight, rtol=0, atol=1e-15)


def test_a_bias_keeps_a_layer_norm_from_becoming_an_rms_norm_unless_it_can_go_on():
    model = trained(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    assert "has a bias" in reasons(fold(model, kinds=["centring"]))
    model = trained(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    result = folded_whole(model, randn(4, 5))
    assert [pair.kind for pair in result.pairs] == ["affine", "centring"]
    assert isinstance(result.model[1], nn.RMSNorm)


def test_centring_is_refused_where_the_linear_output_goes_on_beside_the_norm():
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.norm = nn.Linear(5, 8), nn.LayerNorm(8, bias=False)

        def forward(self, x):
            h = self.up(x)
            return h + self.norm(h)

    assert "used 2 times" in reasons(fold(trained(Skip()), randn(4, 5), kinds=["centring"]))


# ---------------------------------------------------------------------------------------------------- refusals


class Shared(nn.Module):
    """One convolution, two batch norms: pytorch#197539."""

    def __init__(self):
        super().__init__()
        self.conv, self.a, self.b = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.a(self.conv(x)) + self.b(self.conv(x))


def test_a_shared_convolution_is_refused_where_torch_fx_folds_it_wrongly():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, which that module still uses
        from torch.fx.experimental.optimization import fuse

    model, x = trained(Shared()), randn(2, 3, 6, 6)
    assert largest(model, fuse(model), x) > 0.1
    for example in (None, x):
        result = fold(model, example)
        assert "called 2 times" in reasons(result)
        assert largest(model, result.model, x) == 0.0


def test_a_module_under_two_names_is_refused():
    conv = nn.Conv2d(3, 3, 1)
    result = fold(trained(conv, nn.BatchNorm2d(3), conv), randn(2, 3, 4, 4))
    assert "is shared: the same module is 0 and 2" in reasons(result)


def _hooked(model):
    model[0].register_forward_hook(lambda module, args, output: output * 2)


def _normed(model):
    parametrizations.weight_norm(model[0])


def _spectral(model):
    parametrizations.spectral_norm(model[0])


def _training(model):
    model[1].train()


def _without_statistics(model):
    model[1].running_mean = model[1].running_var = None


def _broken(model):
    model[1].running_var[0] = torch.nan


def _replaced_forward(model):
    model[0].forward = lambda x: x[:, :1].expand(-1, 4, -1, -1) * 3


class Doubled(nn.Conv2d):
    def _conv_forward(self, *args):
        return 2 * super()._conv_forward(*args)


def _subclassed(model):
    model[0] = Doubled(3, 4, 1).double().eval()


def _tied(model):
    model.append(nn.Conv2d(3, 4, 1))
    model[2].weight = model[0].weight
    model[2].forward = lambda x: x


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_hooked, "hooks"),
        (_normed, "parametrizations"),
        (_spectral, "parametrizations"),
        (_training, "training mode"),
        (_without_statistics, "no running statistics"),
        (_broken, "not finite"),
        (_replaced_forward, "forward was replaced"),
        (_subclassed, "Doubled has a forward of its own"),
        (_tied, "tied to those of 2"),
    ],
)
def test_what_cannot_be_exact_is_refused_with_its_reason(spoil, reason):
    model, x = trained(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), randn(2, 3, 5, 5)
    spoil(model)
    for example in (None, x):
        result = fold(model, example)
        assert result.pairs == ()
        assert [names for names, _ in result.refused] == [("1",)]
        assert reason in reasons(result)


def test_old_style_weight_norm_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = trained(nn.utils.weight_norm(nn.Conv2d(3, 4, 1)), nn.BatchNorm2d(4))
    with pytest.raises(NormalizationError, match=r"model cannot be copied.*forward pass under torch.no_grad"):
        fold(model)
    with torch.no_grad():
        model(randn(1, 3, 4, 4))
    assert "hooks" in reasons(fold(model))


@pytest.mark.parametrize(
    "between", [lambda h, x: F.relu(h), lambda h, x: h + x, lambda h, x: h * 2, lambda h, x: h.flip(-1)]
)
def test_a_layer_between_is_seen_also_where_it_is_no_module(between):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(between(self.conv(x), x))

    result = fold(trained(Net()), randn(2, 3, 6, 6))
    assert result.pairs == ()


def test_a_second_use_of_the_convolution_is_seen_also_through_an_in_place_function():
    class Net(nn.Module):
        def __init__(self, use):
            super().__init__()
            self.conv, self.norm, self.use = nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), use

        def forward(self, x):
            return self.use(self, x)

    def features(net, x):
        h = net.conv(x)
        return net.norm(h), h

    def in_place(net, x):
        h = net.conv(x)
        F.relu_(h)
        return net.norm(h)

    def shape_only(net, x):
        h = net.conv(x)
        return net.norm(h).reshape(h.shape[0], h.size(1), -1)

    x = randn(2, 3, 6, 6)
    for use in (features, in_place):
        assert "used 2 times" in reasons(fold(trained(Net(use)), x))
    folded_whole(trained(Net(shape_only)), x)


def test_a_batch_norm_over_another_axis_is_refused_or_guarded():
    model = trained(nn.Linear(5, 6), nn.BatchNorm1d(6))
    assert "3 axes" in reasons(fold(model, randn(4, 6, 5)))
    guarded = fold(model).model
    assert isinstance(guarded[1], FixedRank)
    with pytest.raises(NormalizationError, match=r"input has 3 axes.*folded for 2.*with an example"):
        guarded(randn(4, 6, 5))
    assert "another axis" in reasons(fold(trained(nn.Linear(5, 6), nn.BatchNorm1d(7)), randn(4, 7, 5)))
    assert type(fold(model, randn(4, 5)).model[1]) is nn.Identity


def test_dropout_lets_a_fold_through_in_evaluation_alone():
    model = trained(nn.Linear(5, 6), nn.Dropout(0.5), nn.LayerNorm(6, bias=False))
    assert len(fold(model, kinds=["centring"]).pairs) == 1
    assert fold(model.train(), kinds=["centring"]).pairs == ()


def test_half_precision_that_cannot_hold_the_fold_is_refused():
    model = trained(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, eps=1e-12))
    model[1].running_var.fill_(1e-13)
    assert "not finite in torch.float16" in reasons(fold(model.half()))


# ------------------------------------------------------------------------------------------- what cannot be traced


class Opaque(nn.Module):
    """Control flow on data around blocks that are plain."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
        self.rest = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(2)])

    def forward(self, x):
        if x.sum() > 1e9:
            return x
        for part in self.rest:
            x = part(x)
        return self.block(self.block(x))


def test_parts_of_an_untraceable_model_fold_with_an_example_and_not_without():
    model, x = trained(Opaque()), randn(2, 3, 5, 5)
    without = fold(model)
    assert without.pairs == ()
    assert len(without.refused) == 3
    assert "cannot be traced" in reasons(without)
    assert "give an example" in reasons(without)
    result = fold(model, x)
    assert {pair.names for pair in result.pairs} == {(f"{p}.0", f"{p}.1") for p in ("block", "rest.0", "rest.1")}
    assert largest(model, result.model, x) < EXACT


def test_a_part_that_is_also_called_piecewise_is_refused():
    class Piecewise(Opaque):
        def forward(self, x):
            return super().forward(x) + self.block[0](x)

    result = fold(trained(Piecewise()), randn(2, 3, 5, 5))
    assert "block.0: on the example it is called 3 times" in reasons(result)
    assert len(result.pairs) == 2


def test_weights_used_behind_the_modules_back_are_found_by_the_example():
    class Behind(Opaque):
        def forward(self, x):
            return super().forward(x) + F.conv2d(x, self.block[0].weight)

    model, x = trained(Behind()), randn(2, 3, 5, 5)
    result = fold(model, x)
    assert {pair.names[0] for pair in result.pairs} == {"rest.0.0", "rest.1.0"}
    assert "block.0: its parameters are also used outside of its own forward" in reasons(result)
    assert largest(model, result.model, x) == result.max_difference < EXACT


def test_attributes_of_a_layer_that_would_be_gone_keep_it():
    class Reads(nn.Module):
        def __init__(self, opaque):
            super().__init__()
            self.opaque = opaque
            self.a = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
            self.b = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))

        def forward(self, x):
            if self.opaque and x.sum() > 1e9:
                return x
            return self.b(self.a(x)) * self.a[1].eps

    x = randn(2, 3, 5, 5)
    for opaque in (False, True):
        model = trained(Reads(opaque))
        result = fold(model, x)
        assert [pair.names[0] for pair in result.pairs] == ["b.0"]
        assert "used in another way" in reasons(result)
        assert largest(model, result.model, x) == result.max_difference < EXACT
    result = fold(trained(Reads(False)))
    assert result.pairs == ()
    assert "would be gone" in reasons(result)


def test_weights_used_directly_in_a_traced_forward_are_refused_without_an_example_too():
    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(self.conv(x)) + F.conv2d(x, self.conv.weight)

    assert "outside of its own forward" in reasons(fold(trained(Direct())))


def test_the_trace_follows_the_call_with_its_defaults():
    class Optional(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x, skip=None, scale: float = 1.0):
            h = self.conv(x)
            if skip is None:
                h = h * 2
            return self.norm(h)

    model, x = trained(Optional()), randn(2, 3, 4, 4)
    assert fold(model).pairs == ()
    assert fold(model, x).pairs == ()
    assert len(fold(model, {"x": x, "skip": x}).pairs) == 1
    assert len(fold(model, (x, x)).pairs) == 1


class Block(nn.Module):
    """A transformer's feed-forward branch that no trace gets through."""

    def __init__(self, norm, use=lambda self, h: self.up(h) * self.gate(h)):
        super().__init__()
        self.norm, self.up, self.gate, self.down = (
            norm,
            nn.Linear(8, 16),
            nn.Linear(8, 16, bias=False),
            nn.Linear(16, 8),
        )
        self.use = use

    def forward(self, x):
        if x.sum() > 1e9:
            return x
        h = self.norm(x)
        assert h.shape == x.shape
        return x + self.down(F.gelu(self.use(self, h)))


class LlamaRMSNorm(nn.Module):
    def __init__(self, width, plus=0.0):
        super().__init__()
        self.weight, self.plus = nn.Parameter(torch.randn(width)), plus

    def forward(self, x):
        return (self.weight + self.plus) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class FastLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class ActLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return F.relu(super().forward(x))


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.RMSNorm(8), LlamaRMSNorm(8), FastLayerNorm(8)])
def test_what_no_trace_reaches_is_seen_on_the_example(norm):
    model, x = trained(Block(norm)), randn(2, 5, 8)
    assert fold(model, kinds=["affine"]).pairs == ()
    result = fold(model, x, kinds=["affine"])
    (pair,) = result.pairs
    assert pair.names == ("norm", "up", "gate")
    assert not pair.traced
    assert result.max_difference < EXACT
    weight = result.model.norm.weight
    assert weight is None or torch.equal(weight, torch.ones_like(weight))


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (LlamaRMSNorm(8, plus=1.0), "differ by"),  # Gemma's, whose weight is added to one
        (ActLayerNorm(8), "differ by"),
        (ChannelLayerNorm(8), "differ by"),
        (nn.GroupNorm(2, 8), None),
    ],
)
def test_a_norm_that_is_not_what_its_name_says_is_refused(norm, reason):
    model = trained(nn.Sequential(norm, nn.Linear(8, 4)))
    result = fold(model, randn(2, 8, 8), kinds=["affine"])
    assert result.pairs == ()
    assert reason is None or reason in reasons(result)


@pytest.mark.parametrize(
    "use",
    [
        lambda self, h: self.up(h) * self.gate(h) + h.sum(),
        lambda self, h: self.up(h.add_(1)) * self.gate(h),
        lambda self, h: self.up(h) + F.linear(h, self.gate.weight),
        lambda self, h: self.up(h) + self.gate(h.view(-1, 8)).view(2, 5, 16),
        lambda self, h: self.up(torch.cat([h])) + self.gate(h),
        lambda self, h: self.up(self.norm(h)) + self.gate(h),
    ],
)
def test_every_other_use_on_the_example_is_seen(use):
    model, x = trained(Block(nn.LayerNorm(8), use)), randn(2, 5, 8)
    wires = wire(copy.deepcopy(model), x).wires  # seen, not only found out by the output in the end
    assert "norm" not in wires or None in wires["norm"].users or "gate" not in wires
    result = fold(model, x, kinds=["affine"])
    assert result.pairs == ()
    assert largest(model, result.model, x) == 0.0


def test_an_output_that_is_returned_in_an_object_is_a_use():
    class Output:
        def __init__(self, **values):
            self.__dict__.update(values)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x):
            h = self.conv(x) if x.sum() < 1e9 else x
            return Output(hidden=h, last=self.norm(h))

    model, x = trained(Net()), randn(2, 3, 4, 4)
    assert "used 2 times" in reasons(fold(model, x))


def test_dropout_and_identity_are_seen_through_on_the_example_too():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.drop, self.same, self.norm = (
                nn.Conv2d(3, 3, 1),
                nn.Dropout(0.5),
                nn.Identity(),
                nn.BatchNorm2d(3),
            )

        def forward(self, x):
            return self.norm(self.same(self.drop(self.conv(x)))) if x.sum() < 1e9 else x

    model, x = trained(Net()), randn(2, 3, 4, 4)
    result = fold(model, x)
    assert [pair.names for pair in result.pairs] == [("conv", "norm")]
    assert result.max_difference < EXACT


def test_layers_that_the_example_does_not_reach_are_refused():
    class Branch(Opaque):
        def forward(self, x):
            return self.block(x) if x.sum() < 1e9 else self.rest[0](x)

    result = fold(trained(Branch()), randn(2, 3, 5, 5))
    assert [pair.names[0] for pair in result.pairs] == ["block.0"]
    assert "not called on the example" in reasons(result)


def test_a_norm_alone_has_no_neighbours():
    assert "neighbours are not known" in reasons(fold(trained(nn.BatchNorm1d(4))))
    assert "there stands no module" in reasons(fold(trained(nn.BatchNorm1d(4)), randn(5, 4)))
    assert fold(nn.Linear(3, 2)).pairs == ()


# ---------------------------------------------------------------------------------------- the model that was given


def test_the_users_model_and_the_random_state_are_untouched():
    model = trained(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 36, 3), nn.LayerNorm(3)
    )
    model.train()
    model[1].eval()
    x = randn(2, 3, 8, 8)
    before = copy.deepcopy(model.state_dict())
    modules, modes = list(model.modules()), [m.training for m in model.modules()]
    state = torch.get_rng_state()
    assert len(fold(model, x).pairs) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert list(map(id, model.modules())) == list(map(id, modules))
    assert [m.training for m in model.modules()] == modes
    assert all(not m._forward_pre_hooks for m in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_dtype_mode_and_requires_grad_are_kept():
    model = trained(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)).float()
    model[0].weight.requires_grad = False
    new = fold(model).model
    assert new[0].weight.dtype == new[0].bias.dtype == torch.float32
    assert not new[0].weight.requires_grad
    assert not new[0].bias.requires_grad
    assert not any(m.training for m in new.modules())
    assert fold(trained(nn.Linear(3, 4), nn.BatchNorm1d(4))).model[0].weight.requires_grad


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.2)])
def test_lower_precision_shows_its_rounding_and_nothing_more(dtype, bound):
    model = trained(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)).to(dtype)
    x = torch.randn(2, 3, 9, 9, dtype=dtype)
    result = fold(model, x)
    assert result.refused == ()
    assert 0.0 < result.max_difference < bound
    assert result.max_difference == (model(x).double() - result.model(x).double()).abs().max()


def test_a_frozen_batch_norm_folds_in_training_mode():
    model = trained(nn.Conv2d(3, 4, 3), FrozenBatchNorm(4)).train()
    folded_whole(model, randn(2, 3, 6, 6))


def test_a_folded_model_can_be_exported_saved_and_trained():
    model = trained(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    x = randn(2, 3, 6, 6)
    new = fold(model, x).model
    again = copy.deepcopy(new)
    again.load_state_dict(new.state_dict())
    new(x).sum().backward()
    assert new[0].bias.grad is not None
    assert largest(new, torch.export.export(again, (x,)).module(), x) < EXACT


def test_an_infinite_output_excuses_no_other():
    """What rounding may change is judged by the finite values: beside one masked with -inf a wrong fold must show."""
    allowed = tolerance(nn.Linear(2, 2), torch.tensor([1.0, 2.0]))
    for outside in (math.inf, -math.inf, math.nan):
        assert tolerance(nn.Linear(2, 2), torch.tensor([1.0, outside, 2.0])) == allowed


# --------------------------------------------------------------------------------------------------------- errors


def test_wrong_arguments_say_what_was_expected():
    with pytest.raises(NormalizationError, match=r"model is 3; a torch.nn.Module is needed"):
        fold(3)
    with pytest.raises(NormalizationError, match=r"kinds holds 'bn'; known are 'batch_norm', 'affine', 'centring'"):
        fold(nn.Linear(2, 2), kinds=["bn"])


def test_kinds_choose():
    model = trained(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.Linear(8, 2))
    for kinds in itertools.combinations(["batch_norm", "affine"], 1):
        assert {pair.kind for pair in fold(model, kinds=kinds).pairs} == set(kinds)


class Answering(nn.Module):
    """Answers with labels, or with nothing at all: no tensor of floating numbers."""

    def __init__(self, answer):
        super().__init__()
        self.linear, self.norm, self.answer = nn.Linear(3, 4), nn.BatchNorm1d(4), answer

    def forward(self, x):
        return self.answer(self.norm(self.linear(x)))


@pytest.mark.parametrize("answer", [lambda y: y.argmax(1), lambda y: None, lambda y: {"label": "cat"}])
def test_an_output_without_floating_numbers_verifies_nothing(answer):
    model, x = trained(Answering(answer)), randn(5, 3)
    with pytest.raises(NormalizationError, match=r"no tensor of floating numbers .*leave example out"):
        fold(model, x)
    assert [pair.names for pair in fold(model).pairs] == [("linear", "norm")]
