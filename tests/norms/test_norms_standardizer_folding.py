"""A standardization in a network's first layer: exact in float64 for every layer that takes it, refused with a reason elsewhere."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms.standardizer import (
    CancellationWarning,
    FoldError,
    ShiftedConvTranspose,
    Standardizer,
    ValuePaddedConv,
)

EXACT = 1e-12
CHANNELS = 6
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@pytest.fixture(autouse=True)
def _double():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def images(axes, size=7):
    scale = torch.rand(CHANNELS, *[1] * axes) * 3 + 0.1
    return torch.randn(5, CHANNELS, *[size] * axes) * scale + torch.linspace(-4, 9, CHANNELS).view(-1, *[1] * axes)


def rows(d=4, n=50):
    return torch.randn(n, d) * torch.logspace(-2, 3, d) + torch.linspace(-5, 50, d)


def apart(f, g, x, standardizer):
    return (f(standardizer.transform(x)) - g(x)).abs().max().item()


# ---------------------------------------------------------------------------------------------------- linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [{}, {"with_mean": False}, {"with_std": False}])
def test_linear_gets_the_parameters_of_the_first_note(bias, options):
    x = rows()
    standardizer, layer = Standardizer(**options).fit(x), nn.Linear(4, 3, bias=bias)
    folded = standardizer.fold_into(layer)
    mean = standardizer.mean_ if standardizer.with_mean else np.zeros(4)
    scale = standardizer.scale_ if standardizer.with_std else np.ones(4)
    w = layer.weight.detach().numpy()
    np.testing.assert_allclose(folded.weight.detach(), w / scale, rtol=1e-14)
    b = layer.bias.detach().numpy() if bias else 0
    np.testing.assert_allclose(folded(torch.zeros(4)).detach(), b - w @ (mean / scale), rtol=1e-12)
    assert apart(layer, folded, x, standardizer) < EXACT
    assert folded.fold_report.difference < EXACT
    assert folded.fold_report.checked == "layer"
    assert "folded into the model" in str(folded.fold_report)


def test_the_given_model_is_left_alone():
    x, model = rows(), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    folded = Standardizer().fit(x).fold_into(model, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert folded.training
    assert folded.fold_report.layers == ("0",)
    assert folded.fold_report.checked == "model"
    assert folded[1].num_batches_tracked == 0  # the check ran on copies
    assert all(p.requires_grad for p in folded.parameters())


@pytest.mark.parametrize("image", [(3, 4), (2, 2, 2)])
def test_a_flattened_image(image):
    x = torch.randn(20, CHANNELS, *image) * 3 + torch.arange(CHANNELS).view(-1, *[1] * len(image))
    standardizer = Standardizer().fit(x)
    model = nn.Sequential(
        nn.Identity(), nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * int(np.prod(image)), 2)), nn.Tanh()
    )
    for example in (None, x):
        assert apart(model, standardizer.fold_into(model, example), x, standardizer) < EXACT


@pytest.mark.parametrize("example", [False, True])
def test_a_flattened_sequence_with_features_last(example):
    x = rows(n=60).view(12, 5, 4)
    standardizer = Standardizer(feature_dim=-1).fit(x)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 2))
    assert apart(model, standardizer.fold_into(model, x if example else None), x, standardizer) < EXACT


# ---------------------------------------------------------------------------------------------------- convolutions


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's own, of the plain layer too
@pytest.mark.parametrize("method", ["map", "mean"])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"padding": 0},
        {"padding": 1, "bias": False},
        {"padding": 2, "stride": 2, "groups": 2},
        {"padding": "same", "dilation": 2, "groups": 3},
        {"padding": "same", "kernel_size": 4},
        {"padding": "valid"},
        {"padding": "uneven"},
    ],
)
def test_every_padding(axes, mode, options, method):
    x = images(axes, size=5 if axes == 3 else 7)
    standardizer = Standardizer().fit(x)
    if options["padding"] == "uneven":
        options = {"padding": tuple(range(axes))[::-1]}
    conv = CONVS[axes](CHANNELS, 12, padding_mode=mode, **({"kernel_size": 3} | options))
    folded = standardizer.fold_into(conv, padding=method)
    assert apart(conv, folded, x, standardizer) < EXACT
    padded = mode == "zeros" and options["padding"] not in {0, "valid", (0,)}
    assert isinstance(folded, ValuePaddedConv if padded else CONVS[axes])
    deep = nn.Sequential(conv, nn.ReLU(), CONVS[axes](12, 2, 1))
    assert apart(deep, standardizer.fold_into(deep, x, padding=method), x, standardizer) < EXACT


def test_a_zero_is_not_the_mean_where_it_is_left_a_zero():
    x = images(2)
    standardizer, conv = Standardizer().fit(x), nn.Conv2d(CHANNELS, 4, 3, padding=1)
    naive = standardizer.fold_into(conv).conv  # the right weights and bias, but raw zeros at the border
    difference = (conv(standardizer.transform(x)) - naive(x)).abs()
    assert difference[..., 1:-1, 1:-1].max() < EXACT
    assert difference.max() > 0.4


def test_unbatched_images_and_other_sizes():
    x = images(2)
    standardizer, conv = Standardizer().fit(x), nn.Conv2d(CHANNELS, 4, 3, padding=1)
    for method in ("map", "mean"):
        folded = standardizer.fold_into(conv, padding=method)
        torch.testing.assert_close(folded(x[0]), folded(x)[0], rtol=0, atol=EXACT)
        assert apart(conv, folded, images(2, 12), standardizer) < EXACT
        assert apart(conv, folded, images(2, 1), standardizer) < EXACT  # all border


def test_nothing_is_wrapped_where_the_mean_is_zero():
    x = images(2)
    conv, standardizer = nn.Conv2d(CHANNELS, 4, 3, padding=1), Standardizer(with_mean=False).fit(x)
    folded = standardizer.fold_into(conv)
    assert type(folded) is nn.Conv2d
    torch.testing.assert_close(folded(x), conv(standardizer.transform(x)), rtol=1e-12, atol=1e-12)


def test_both_ways_of_padding_stay_equal_in_training():
    x = images(2)
    standardizer, conv = Standardizer().fit(x), nn.Conv2d(CHANNELS, 4, 3, padding=1, groups=2)
    one, two = (standardizer.fold_into(conv, padding=method) for method in ("map", "mean"))
    for _ in range(3):
        gradients = []
        for model in (one, two):
            model.zero_grad()
            model(x).square().mean().backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
            with torch.no_grad():
                for p in model.parameters():
                    p -= 1e-3 * p.grad
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one(x), two(x), rtol=1e-9, atol=1e-9)
    x = x.requires_grad_()
    assert torch.autograd.gradcheck(one, (x[:1, :, :3, :3].detach().requires_grad_(),))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"dilation": 2, "bias": False}]
)
def test_transposed_convolutions(axes, groups, options):
    x = images(axes, 4)
    standardizer, conv = Standardizer().fit(x), TRANSPOSED[axes](CHANNELS, 12, 3, groups=groups, **options)
    folded = standardizer.fold_into(conv)
    assert isinstance(folded, ShiftedConvTranspose)
    assert apart(conv, folded, x, standardizer) < EXACT
    torch.testing.assert_close(folded(x[0]), folded(x)[0], rtol=0, atol=EXACT)
    with pytest.raises(NotImplementedError, match="output_size"):
        folded(x, [9] * axes)


# ---------------------------------------------------------------------------------------------------- recurrent


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("both", [False, True])
def test_recurrent_layers(kind, both):
    x = rows(n=60).view(12, 5, 4)
    standardizer = Standardizer(feature_dim=-1).fit(x)
    layer = kind(4, 3, num_layers=2, bidirectional=both, batch_first=True)
    folded = standardizer.fold_into(layer)
    torch.testing.assert_close(folded(x)[0], layer(standardizer.transform(x))[0], rtol=0, atol=EXACT)
    with pytest.raises(FoldError, match="bias=False"):
        standardizer.fold_into(kind(4, 3, bias=False))
    scaling = Standardizer(with_mean=False, feature_dim=-1).fit(x)
    bare = kind(4, 3, bias=False)
    torch.testing.assert_close(scaling.fold_into(bare)(x)[0], bare(scaling.transform(x))[0], rtol=0, atol=EXACT)


# ---------------------------------------------------------------------------------------------------- and back


@pytest.mark.parametrize("method", ["map", "mean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(CHANNELS, 3),
        lambda: nn.Conv2d(CHANNELS, 4, 3, padding=1),
        lambda: nn.Conv2d(CHANNELS, 4, 3, padding="same", groups=2),
        lambda: nn.ConvTranspose2d(CHANNELS, 4, 3, stride=2),
        lambda: nn.GRU(CHANNELS, 4),
    ],
)
def test_unfold_is_the_way_back(make, dtype, method):
    layer = make().to(dtype)
    standardizer = Standardizer(feature_dim=-1 if isinstance(layer, nn.GRU) else 1).fit(
        images(2).movedim(1, -1).reshape(-1, CHANNELS)
    )
    there = standardizer.fold_into(layer, padding=method)
    back = standardizer.unfold(there, padding=method)
    assert type(back) is type(layer)
    for a, b in zip(layer.parameters(), back.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-5 if dtype == torch.float32 else 1e-12
        )
    other = standardizer.fold_into(standardizer.unfold(layer, padding=method), padding=method)
    assert type(other) is type(layer)


@pytest.mark.parametrize("method", ["map", "mean"])
def test_unfolding_a_model_of_raw_images(method):
    x = images(2)
    standardizer, conv = Standardizer().fit(x), nn.Conv2d(CHANNELS, 4, 3, padding=1)
    standard = standardizer.unfold(nn.Sequential(conv, nn.ReLU()), x, padding=method)
    torch.testing.assert_close(standard(standardizer.transform(x)), conv(x).relu(), rtol=0, atol=1e-11)


def test_a_second_standardization_on_top_of_a_folded_one():
    x = images(2)
    first, conv = Standardizer().fit(x), nn.Conv2d(CHANNELS, 4, 3, padding=1)
    once = first.fold_into(conv)
    y = x * 3 - 20
    second = Standardizer().fit(y)
    twice = second.fold_into(once)  # `once` is now handed (y - mean) / s
    torch.testing.assert_close(twice(y), once(second.transform(y)), rtol=0, atol=EXACT)


# ---------------------------------------------------------------------------------------------------- finding the layer


class Branches(nn.Module):
    """Two layers read the input, one of them through a view; a third reads something else."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.top = nn.Linear(4, 3), nn.Conv1d(4, 3, 1), nn.Linear(3, 1)

    def forward(self, x):
        return {"y": self.top(torch.tanh(self.left(x)) + self.right(x.unsqueeze(-1)).squeeze(-1))}


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.layer(x)


class Recursive(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x):
        return self.layer(x[:, :3])


def test_every_layer_that_reads_the_input_is_found_by_a_run():
    x, model = rows(), Branches()
    standardizer = Standardizer().fit(x)
    folded = standardizer.fold_into(model, x)
    assert folded.fold_report.layers == ("left", "right")
    torch.testing.assert_close(folded(x)["y"], model(standardizer.transform(x))["y"], rtol=0, atol=EXACT)
    again = standardizer.fold_into(model, x, layers=["left", "right"])
    torch.testing.assert_close(again(x)["y"], folded(x)["y"], rtol=0, atol=0)
    back = standardizer.unfold(folded, x)
    torch.testing.assert_close(back.left.weight, model.left.weight)


@pytest.mark.parametrize(
    ("make", "example", "options", "words"),
    [
        (Branches, False, {}, "cannot be told from its structure; give a batch"),
        (Branches, True, {"layers": ["left"]}, "something else reads the input too"),
        (Branches, True, {"layers": ["lost"]}, "'lost', which is no module"),
        (Branches, True, {"layers": [""]}, "the model is a Branches, which cannot take"),
        (Skip, True, {}, "something else reads the input too"),
        (Recursive, True, {}, "a folded layer is called on other data"),
        (Cut, True, {}, "no layer that can take the standardization reads the input itself"),
        (lambda: nn.Linear(5, 2), False, {}, "the model reads 5 features, the standardizer was fitted on 4"),
        (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)), False, {}, "0 is Dropout.* stands for the mean"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), False, {}, "normalizes its input itself"),
        (lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), False, {}, "normalizes its input itself"),
        (lambda: nn.Sequential(nn.Embedding(4, 2)), False, {}, "embedding, which reads indices"),
        (lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), True, {}, "no layer that can take"),
        (lambda: nn.LazyLinear(3), False, {}, "lazy and has no weights yet"),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2)), False, {}, "is computed"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)), False, {}, "is computed"),
    ],
)
def test_what_is_not_exact_is_refused_with_the_reason(make, example, options, words):
    x = rows()
    with pytest.raises(FoldError, match=words):
        Standardizer().fit(x).fold_into(make(), x if example else None, **options)


def test_shared_layers_and_tied_weights_are_refused():
    x, layer = rows(), nn.Linear(4, 4)
    standardizer = Standardizer().fit(x)
    with pytest.raises(FoldError, match=r"one layer stands at \['0', '2'\]"):
        standardizer.fold_into(nn.Sequential(layer, nn.Tanh(), layer))
    tied = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    with pytest.raises(FoldError, match=r"0\.weight is shared with 2\.weight"):
        standardizer.fold_into(tied)


def test_wrong_arguments():
    standardizer = Standardizer().fit(rows())
    with pytest.raises(NormalizationError, match="padding is 'zero'; one of 'map', 'mean' is needed"):
        standardizer.fold_into(nn.Linear(4, 1), padding="zero")
    with pytest.raises(NormalizationError, match="4 features are expected on axis 1"):
        standardizer.fold_into(nn.Linear(4, 1), torch.ones(2, 3))
    with pytest.raises(NormalizationError, match="without any value"):
        Standardizer().fit(np.array([[1.0, np.nan], [2.0, np.nan]])).fold_into(nn.Linear(2, 1))


# ---------------------------------------------------------------------------------------------------- float32


def test_float32_says_what_rounding_costs():
    x = rows().float()
    standardizer, model = Standardizer().fit(x), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).float()
    report = standardizer.fold_into(model, x).fold_report
    assert report.exact < EXACT
    assert 1e-9 < report.difference < 1e-3


def test_float32_warns_where_the_difference_is_rounded_away():
    x = (1e6 + torch.randn(500, 2)).float()
    standardizer = Standardizer().fit(x)
    with pytest.warns(
        CancellationWarning, match=r"float32 .* raw inputs lie 1e\+06 standard deviations from zero"
    ) as seen:
        folded = standardizer.fold_into(nn.Linear(2, 3).float(), x)
    assert folded.fold_report.exact < 1e-8
    assert seen[0].filename == __file__
    standardizer.fold_into(nn.Linear(2, 3), x)  # float64 has the digits: no warning


def test_a_model_that_does_not_run_in_float64_is_checked_in_its_own_dtype():
    x = rows().float()
    report = Standardizer().fit(x).fold_into(nn.Sequential(nn.Linear(4, 2).float(), Cast()), x).fold_report
    assert np.isnan(report.exact)
    assert report.difference < 1e-3

    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.cast = nn.Linear(4, 4).float(), Cast()

        def forward(self, x):
            return self.cast(self.first(x) + x)

    with pytest.raises(FoldError, match="something else reads the input too"):
        Standardizer().fit(x).fold_into(Wrong(), x)


class Cast(nn.Module):
    def forward(self, x):
        return x @ torch.ones(x.shape[-1], 1, dtype=torch.float32)


# ---------------------------------------------------------------------------------------------------- as modules


@pytest.mark.parametrize("method", ["map", "mean", "transposed"])
def test_folded_layers_are_ordinary_modules(method):
    x = images(2)
    standardizer = Standardizer().fit(x)
    conv = nn.ConvTranspose2d(CHANNELS, 4, 3) if method == "transposed" else nn.Conv2d(CHANNELS, 4, 3, padding=1)
    folded = standardizer.fold_into(conv, padding="map" if method == "transposed" else method)
    twin = copy.deepcopy(folded)
    for p in (*twin.parameters(), *twin.buffers()):
        p.data.zero_()
    twin.load_state_dict(folded.state_dict())
    assert torch.equal(twin(x), folded(x))
    assert torch.equal(pickle.loads(pickle.dumps(folded))(x), folded(x))
    exported = torch.export.export(folded, (x,)).module()
    torch.testing.assert_close(exported(x), folded(x), rtol=0, atol=EXACT)
    assert method == "transposed" or method in repr(folded)


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(3, 4, 3, padding=1), nn.ConvTranspose2d(3, 4, 3)], ids=["conv", "transposed"]
)
@pytest.mark.parametrize("training", [True, False])
def test_a_wrapper_keeps_the_mode(layer, training):
    folded = Standardizer().fit(torch.randn(9, 3, 4, 4) + 2).fold_into(layer.train(training))
    assert {module.training for module in folded.modules()} == {training}


def test_without_an_example_nothing_is_guessed():
    standardizer = Standardizer().fit(torch.randn(50, 3))
    with pytest.raises(FoldError, match="reads 6 features"):
        standardizer.fold_into(nn.Linear(6, 2))

    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.Linear(3, 3)

        def forward(self, x):
            return x + self.c(x)

    with pytest.raises(FoldError, match="give an example"):
        standardizer.fold_into(Skip(), layers=["c"])
    with pytest.raises(NormalizationError, match="names no layer"):
        standardizer.fold_into(nn.Linear(3, 2), layers=[])
