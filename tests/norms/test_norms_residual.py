"""Residual placement: each formula written out, DeepNorm's constants, and the growth laws of De and Smith at 600 wide."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms.residual import PLACEMENTS, DeepNormScale, Residual, deepnorm_scales

REFERENCE = Path(__file__).parents[1] / "reference"
F64 = torch.float64


def reference(name):
    return json.loads((REFERENCE / f"{name}.json").read_text())


def block(placement, **more):
    """A block 8 wide whose parts are all drawn."""
    torch.manual_seed(0)
    norm = None if placement in {"rezero", "scaled"} else partial(nn.LayerNorm, 8, dtype=F64)
    if placement == "deep":
        more.setdefault("skip_scale", 1.7)
    if placement == "scaled" and "branch_scale" not in more:
        more.setdefault("depth", 16)
    made = Residual(nn.Linear(8, 8, dtype=F64), placement, more.pop("norm", norm), dtype=F64, **more)
    for p in made.parameters():
        nn.init.normal_(p)
    return made


FORMULAS = {
    "pre": lambda b, x: x + b.branch(b.norm(x)),
    "post": lambda b, x: b.norm(x + b.branch(x)),
    "deep": lambda b, x: b.norm(1.7 * x + b.branch(x)),
    "sandwich": lambda b, x: x + b.norm_out(b.branch(b.norm(x))),
    "rezero": lambda b, x: x + b.alpha * b.branch(x),
    "scaled": lambda b, x: x + b.branch(x) / 4,
}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_formula(placement):
    made, x = block(placement), torch.randn(5, 3, 8, dtype=F64)
    torch.testing.assert_close(made(x), FORMULAS[placement](made, x), rtol=1e-13, atol=1e-13)
    assert f"placement='{placement}'" in repr(made)


@pytest.mark.parametrize("placement", ["rezero", "scaled"])
def test_a_norm_that_is_given_stands_before_the_branch(placement):
    made, x = block(placement, norm=partial(nn.LayerNorm, 8, dtype=F64)), torch.randn(5, 8, dtype=F64)
    factor = made.alpha if placement == "rezero" else 0.25
    torch.testing.assert_close(made(x), x + factor * made.branch(made.norm(x)), rtol=1e-13, atol=1e-13)


def test_rezero_is_the_identity_at_first_and_learns():
    made = Residual(nn.Linear(8, 8), "rezero")
    x = torch.randn(4, 8)
    assert torch.equal(made(x), x)
    made(x).square().sum().backward()
    assert float(made.alpha.grad.abs()) > 0
    assert float(made.branch.weight.grad.abs().sum()) == 0
    assert float(Residual(nn.Identity(), "rezero", branch_scale=0.2).alpha.detach()) == pytest.approx(0.2)


def test_a_norm_itself_is_used_and_sandwich_makes_a_second():
    norm = nn.LayerNorm(8)
    made = Residual(nn.Linear(8, 8), "sandwich", norm)
    assert made.norm is norm
    assert made.norm_out is not norm
    assert torch.equal(made.norm_out.weight, norm.weight)
    drawn = Residual(nn.Linear(8, 8), "sandwich", partial(nn.LayerNorm, 8))
    assert drawn.norm_out is not drawn.norm
    assert sorted(drawn.state_dict()) == sorted(
        f"{part}.{name}" for part in ("branch", "norm", "norm_out") for name in ("weight", "bias")
    )


def test_dropout_falls_on_the_branch_alone():
    torch.manual_seed(0)
    made = Residual(nn.Identity(), "scaled", branch_scale=1.0, dropout=0.25)
    x = torch.ones(10_000)
    y = made(x)
    assert sorted(set(y.tolist())) == pytest.approx([1.0, 1 + 1 / 0.75])
    assert float((y == 1).double().mean()) == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 10_000))
    assert torch.equal(made.eval()(x), 2 * x)


def test_further_arguments_reach_the_branch():
    class Branch(nn.Module):
        def forward(self, x, factor, *, shift):
            return factor * x + shift

    x = torch.randn(3, 8)
    torch.testing.assert_close(Residual(Branch(), "scaled", branch_scale=1.0)(x, 2.0, shift=0.5), 3 * x + 0.5)


# ---------------------------------------------------------------------------------------------------- DeepNorm


def test_deepnorm_constants_of_the_reference():
    data = reference("deepnorm")
    for layers, true in data["examples"].items():
        for found in (deepnorm_scales(int(layers))[0], deepnorm_scales(0, int(layers))[1]):
            assert found.alpha == pytest.approx(true["alpha"], rel=1e-12)
            assert found.beta == pytest.approx(true["beta"], rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 200), m=st.integers(1, 200))
def test_deepnorm_constants_of_encoder_and_decoder(n, m):
    formulas = reference("deepnorm")["encoder_decoder"]
    for part, found in zip(("encoder", "decoder"), deepnorm_scales(n, m), strict=True):
        for name in ("alpha", "beta"):
            formula = formulas[part][name].replace("3M", "3*M").replace("12M", "12*M")
            assert getattr(found, name) == pytest.approx(eval(formula, {"N": n, "M": m}), rel=1e-12)


def test_only_what_is_there_has_constants():
    assert deepnorm_scales(6)[1] is None
    assert deepnorm_scales(0, 6)[0] is None
    assert deepnorm_scales(6)[0] == DeepNormScale(12**0.25, 48**-0.25)


# ---------------------------------------------------------------------------------------------------- growth


class He(nn.Module):
    """W relu(x) with He weights: returns the second moment it gets."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) * math.sqrt(2 / width))

    def forward(self, x):
        return x.relu() @ self.weight.T


class NormalizerFree(nn.Module):
    """Scaled standardized weights on relu(x / predicted standard deviation): variance 1."""

    def __init__(self, width, block, alpha):
        super().__init__()
        weight = torch.randn(width, width)
        weight = (weight - weight.mean(1, keepdim=True)) / weight.std(1, keepdim=True, correction=0)
        gamma = 1 / math.sqrt(0.5 - 1 / (2 * math.pi))
        self.weight = nn.Parameter(weight * gamma / math.sqrt(width))
        self.spread = math.sqrt(1 + alpha**2 * block)

    def forward(self, x):
        return (x / self.spread).relu() @ self.weight.T


WIDTH, DEPTH, BATCH = 600, 32, 64
LAWS = {
    "residual plain x+W relu(x) He": lambda _: Residual(He(WIDTH), "scaled", branch_scale=1.0),
    "residual 1/sqrt(L)": lambda _: Residual(He(WIDTH), "scaled", depth=DEPTH),
    "residual BN branch": lambda _: Residual(He(WIDTH), "pre", partial(nn.BatchNorm1d, WIDTH)),
    "residual LN branch": lambda _: Residual(He(WIDTH), "pre", partial(nn.LayerNorm, WIDTH)),
    "residual NF alpha=.2": lambda i: Residual(NormalizerFree(WIDTH, i, 0.2), "scaled", branch_scale=0.2),
    "residual post-LN": lambda _: Residual(He(WIDTH), "post", partial(nn.LayerNorm, WIDTH)),
}


def grown(make, seed):
    """Second moment of the stream at the end, and of its gradient behind the first block over that behind the last."""
    torch.manual_seed(seed)
    stream = [torch.randn(BATCH, WIDTH)]
    for i in range(DEPTH):
        stream.append(make(i)(stream[-1]))
        stream[-1].retain_grad()
    (stream[-1] * torch.randn(BATCH, WIDTH)).sum().backward()
    gradients = [float(h.grad.double().square().mean()) for h in (stream[1], stream[-1])]
    return float(stream[-1].detach().double().square().mean()), gradients[0] / gradients[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_growth_law(name):
    """Three draws, as in the reference. Finite width: a stream that doubles each block scatters by a log standard deviation
    of about sqrt(5 * 32 / 600 / 3) = 0.3 over three draws, one that a norm or 1/sqrt(L) holds by a tenth of it."""
    row = reference("residual_growth")["rows"][name]
    found = [sum(values) / 3 for values in zip(*(grown(LAWS[name], seed) for seed in range(3)), strict=True)]
    plain = "plain" in name
    assert math.log(found[0] / row["pred"][1]) == pytest.approx(0, abs=0.9 if plain else 0.05)
    if row["grad_pred"] is not None:
        assert math.log(found[1] / row["grad_pred"]) == pytest.approx(0, abs=0.9 if plain else 0.12)
    else:
        assert 0.7 < found[1] < row["grad_growth_block1_over_last"] * 1.3


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"placement": "middle"},
            r"placement is 'middle'; one of 'pre', 'post', 'deep', 'sandwich', 'rezero', 'scaled'",
        ),
        ({"placement": "pre"}, r"placement 'pre' needs a norm, such as functools.partial\(nn.LayerNorm, width\)"),
        ({"placement": "pre", "norm": "layer"}, "norm is 'layer'; a norm, or a function without arguments"),
        ({"placement": "deep", "norm": nn.Identity()}, r"placement 'deep' needs skip_scale, alpha of deepnorm_scales"),
        ({"placement": "pre", "norm": nn.Identity(), "skip_scale": 2.0}, "'pre' has no skip_scale: leave it out"),
        ({"placement": "pre", "norm": nn.Identity(), "branch_scale": 2.0}, "'pre' has no branch_scale: leave it out"),
        ({"placement": "rezero", "depth": 4}, "'rezero' has no depth: leave it out"),
        ({"placement": "scaled"}, "'scaled' needs depth, the residual blocks of the whole net, or branch_scale"),
        ({"placement": "scaled", "depth": 4, "branch_scale": 0.5}, "'scaled' needs depth.*one of them"),
        ({"placement": "scaled", "depth": 0}, "depth is 0; a whole number of at least 1 is needed"),
        ({"placement": "scaled", "branch_scale": math.nan}, "branch_scale is nan; a finite number is needed"),
        ({"placement": "deep", "norm": nn.Identity(), "skip_scale": 0.0}, r"skip_scale is 0\.0; a finite number > 0"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(NormalizationError, match=message):
        Residual(nn.Identity(), **arguments)


def test_a_branch_must_keep_the_shape():
    with pytest.raises(
        NormalizationError, match=r"the branch Linear made \(4, 1\) of \(4, 8\); a residual branch must keep the shape"
    ):
        Residual(nn.Linear(8, 1), "scaled", depth=4)(torch.randn(4, 8))


@pytest.mark.parametrize(("n", "m"), [(0, 0), (-1, 3), (3, -1)])
def test_deepnorm_needs_layers(n, m):
    with pytest.raises(
        NormalizationError,
        match=r"encoder_layers is 0 and decoder_layers is 0; one of the two|layers is -1; a whole number of at least 0",
    ):
        deepnorm_scales(n, m)
