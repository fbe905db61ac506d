"""Changes of activations, branches, norms, attention and outputs: values against closed forms, and what the optimizer holds."""

import copy
import math
import pickle
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from trimtab import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, answers_to
from trimtab.repairs.patient import Patient
from trimtab.repairs.qk_norm import NormedAttention
from trimtab.report import Evidence, Finding


def plain(act=nn.Sigmoid, last=None):
    return nn.Sequential(nn.Linear(8, 16), act(), nn.Linear(16, 16), act(), nn.Linear(16, 4), *([last] if last else []))


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


class Post(nn.Module):
    """A block with norms behind the sums, or inside the branches, of the same weights."""

    def __init__(self, pre=False):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.feed = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.norm1, self.norm2, self.pre = nn.LayerNorm(8), nn.LayerNorm(8), pre

    def attend(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, -1) @ v)

    def forward(self, x):
        if self.pre:
            x = x + self.attend(self.norm1(x))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.feed(x))


class Stack(nn.Module):
    def __init__(self, pre=False, blocks=3, block=Post):
        super().__init__()
        self.layers = nn.Sequential(*[block(pre) for _ in range(blocks)])
        self.last_norm, self.head = nn.LayerNorm(8) if pre else nn.Identity(), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.last_norm(self.layers(x)).mean(1))


NORMS = [f"layers.{i}.norm{j}" for i in range(3) for j in (1, 2)]


def setup_of(model, shape=(8,)):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, *shape, generator=generator), torch.randint(4, (16,), generator=generator)
    return Setup(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        lambda: [(x, y)],
        lambda m, batch: functional.cross_entropy(m(batch[0]), batch[1]),
        steps=4,
    )


def changed(kind, model, shape=(8,), **settings):
    """The model after a change; its optimizer holds each of its parameters once, and it can be trained, copied and pickled."""
    setup = setup_of(model, shape)
    Change(kind, settings).apply(setup)
    held = [id(p) for group in setup.optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(map(id, model.parameters()))
    x = next(iter(setup.batches()))[0]
    model.eval()
    expected = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), expected)
    fresh = copy.deepcopy(model)
    fresh.load_state_dict(model.state_dict())
    return model


def by_code(kind, model, **settings):
    exec(Change(kind, settings).describe().code, {"torch": torch, "model": model})
    return model


def answers(code, where, make, shape=(8,), evidence=()):
    def fresh():
        torch.manual_seed(0)
        return setup_of(make(), shape)

    return list(answers_to(Finding(code, "error", where, "", evidence=evidence), Patient(fresh)))


def of_kind(changes, *kinds):
    return [c for c in changes if c.kind in kinds]


# Activations ----------------------------------------------------------------------------------------------------------


def test_activations_are_swapped_and_the_weights_drawn_for_them():
    model, settings = plain(), {"modules": ["1", "3"], "to": "ReLU", "gain": 1.41421}
    before = copy.deepcopy(model)
    torch.manual_seed(2)
    theirs = by_code("swap-activations", before, **settings)
    torch.manual_seed(2)
    changed("swap-activations", model, **settings)
    assert [type(m) for m in model] == [type(m) for m in theirs] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert torch.equal(model[0].weight, theirs[0].weight)
    assert not model[0].bias.any()


def test_weights_stay_where_only_the_activation_is_swapped():
    model = plain(nn.ReLU)
    weight = model[0].weight.detach().clone()
    changed("swap-activations", model, modules=["1"], to="LeakyReLU")
    assert isinstance(model[1], nn.LeakyReLU)
    assert isinstance(model[3], nn.ReLU)
    assert torch.equal(model[0].weight, weight)


def test_sigmoids_are_answered_by_relu_and_an_output_keeps_its_own():
    found = of_kind(answers("vanishing-gradient", ("0", "2"), lambda: plain(last=nn.Sigmoid())), "swap-activations")
    assert found[0].settings == {"modules": ["1", "3"], "to": "ReLU", "gain": pytest.approx(math.sqrt(2), rel=1e-5)}
    off = of_kind(answers("dead-units", ("2", "3"), lambda: plain(nn.ReLU)), "swap-activations")
    assert off[0].settings == {"modules": ["3"], "to": "LeakyReLU"}


# Branches -------------------------------------------------------------------------------------------------------------


def residual():
    return nn.Sequential(*[Branch() for _ in range(4)], nn.Linear(8, 4))


def test_branches_are_scaled():
    model, plain_ = residual(), None
    plain_ = copy.deepcopy(model)
    theirs = by_code("scale-branches", copy.deepcopy(model), layers=["0.b", "1.b", "2.b", "3.b"], factor=0.5)
    changed("scale-branches", model, layers=["0.b", "1.b", "2.b", "3.b"], factor=0.5)
    x = torch.randn(5, 8)
    y = x
    for block in list(plain_)[:4]:
        y = y + 0.5 * (block(y) - y)
    torch.testing.assert_close(model(x), plain_[4](y))
    assert torch.equal(theirs(x), model(x))


def test_rezero_starts_as_the_identity_and_its_factors_learn():
    model = residual()
    theirs = by_code("rezero", copy.deepcopy(model), layers=["0.b", "1.b", "2.b", "3.b"])
    setup = setup_of(model)
    Change("rezero", {"layers": ["0.b", "1.b", "2.b", "3.b"]}).apply(setup)
    x = torch.randn(5, 8)
    assert torch.equal(model(x), model[4](x))
    assert torch.equal(theirs(x), model(x))
    list(setup.train())
    assert all(model[i].b.branch_scale.item() != 0 for i in range(4))
    with pytest.raises(RepairError):
        Change("rezero", {"layers": ["0.b"]}).apply(setup)


def test_an_attention_is_scaled_as_a_whole():
    """Its last layer is called as a function, which no hook hears."""
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    setup = setup_of(nn.Sequential(model, nn.Linear(8, 4)))
    x = torch.randn(3, 5, 8)
    whole = model.self_attn(x, x, x)[0]
    Change("scale-branches", {"layers": ["0.self_attn.out_proj"], "factor": 0.25}).apply(setup)
    torch.testing.assert_close(model.self_attn(x, x, x)[0], 0.25 * whole)


# Norm placement -------------------------------------------------------------------------------------------------------


def test_norms_move_into_the_branches():
    """The same weights in a net that was written with its norms inside give the same numbers."""
    torch.manual_seed(0)
    model, wanted = Stack(), Stack(pre=True)
    wanted.load_state_dict({**wanted.state_dict(), **model.state_dict()})
    for name, p in model.named_parameters():  # a norm that is moved takes its gains along
        if "norm" in name:
            p.data.add_(0.1 * torch.randn_like(p))
            wanted.get_parameter(name).data.copy_(p)
    wanted.last_norm.load_state_dict(model.layers[2].norm2.state_dict())
    x = torch.randn(6, 5, 8)
    assert not torch.allclose(model(x), wanted(x), atol=1e-2)
    changed("pre-norm", model, (5, 8), norms=NORMS)
    torch.testing.assert_close(model(x), wanted(x))


@pytest.mark.parametrize("torchs", [False, True])
def test_deep_norm_weighs_the_stream_and_starts_the_branches_smaller(torchs):
    torch.manual_seed(0)
    alpha, beta, x = 2.0, 0.5, torch.randn(6, 5, 8)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) if torchs else Post()
    net, plain_ = nn.Sequential(model, nn.Linear(8, 4)), copy.deepcopy(model)
    with torch.no_grad():
        if torchs:
            for weight in (
                plain_.self_attn.in_proj_weight[16:],
                plain_.self_attn.out_proj.weight,
                plain_.linear1.weight,
                plain_.linear2.weight,
            ):
                weight.mul_(beta)
        else:
            for weight in (plain_.qkv.weight[16:], plain_.out.weight, plain_.feed[0].weight, plain_.feed[2].weight):
                weight.mul_(beta)
    first = (lambda y: plain_._sa_block(y, None, None)) if torchs else plain_.attend
    second = plain_._ff_block if torchs else plain_.feed
    y = plain_.norm1(alpha * x + first(x))
    y = plain_.norm2(alpha * y + second(y))
    setup = setup_of(net, (5, 8))
    setup.loss = lambda m, batch: m(batch[0]).square().mean()
    Change("deep-norm", {"norms": ["0.norm1", "0.norm2"], "alpha": alpha, "beta": beta}).apply(setup)
    torch.testing.assert_close(model(x), y)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), y)


def test_a_branch_that_is_more_than_its_modules_is_left_alone():
    class Hidden(Post):
        def attend(self, x):
            return super().attend(x) + 0.5 * x.roll(1, -1)

    class Functions(Post):
        def attend(self, x):
            return functional.linear(x, self.out.weight)

    for block, words in ((Hidden, "made of more"), (Functions, "does not start at modules")):
        with pytest.raises(RepairError, match=words):
            Change("pre-norm", {"norms": NORMS}).apply(setup_of(Stack(block=block), (5, 8)))
    with pytest.raises(RepairError):
        Change("pre-norm", {"norms": ["layers.0.qkv"]}).apply(setup_of(Stack(), (5, 8)))


def encoder(pre=False, norm=None):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=pre)
    return nn.Sequential(
        nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False), nn.Linear(8, 4), nn.Flatten()
    )


def test_torchs_layers_become_pre_norm_with_a_norm_behind_the_stack():
    torch.manual_seed(0)
    model, wanted = encoder(), encoder(pre=True, norm=nn.LayerNorm(8))
    wanted.load_state_dict({**wanted.state_dict(), **model.state_dict()})
    layers = [f"0.layers.{i}" for i in range(3)]
    changed("norm-first", model, (1, 8), layers=layers)
    x = torch.randn(6, 1, 8)
    torch.testing.assert_close(model(x), wanted(x))
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), wanted.eval()(x))
    with pytest.raises(RepairError):
        Change("norm-first", {"layers": layers}).apply(setup_of(model, (1, 8)))


def test_layers_side_by_side_get_their_last_norm_from_the_last_of_them():
    layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(*layers, nn.Linear(8, 4), nn.Flatten())
    changed("norm-first", model, (1, 8), layers=["0", "1"])
    x = torch.randn(6, 1, 8)
    y = model[:2](x)
    torch.testing.assert_close(y.mean(-1), torch.zeros(6, 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.var(-1, correction=0), torch.ones(6, 1), atol=1e-3, rtol=0)


def test_norm_placement_is_answered_by_its_place():
    deep = answers("norm-placement", tuple(NORMS), Stack, (5, 8))
    assert deep[0] == Change("pre-norm", {"norms": NORMS})
    scales = next(c.settings for c in deep if c.kind == "deep-norm")
    assert scales["alpha"] == pytest.approx(6**0.25, abs=1e-4)  # three layers: (2 N)^(1/4), (8 N)^(-1/4)
    assert scales["beta"] == pytest.approx(24**-0.25, abs=1e-4)
    torchs = answers("norm-placement", ("0.layers.0.norm1", "0.layers.0.norm2"), encoder, (1, 8))
    assert torchs[0].kind == "norm-first"
    last = answers("norm-placement", ("5",), lambda: plain(nn.ReLU, nn.BatchNorm1d(4)))
    assert of_kind(last, "leave-out", "pre-norm") == [Change("leave-out", {"modules": ["5"]})]


# Outputs --------------------------------------------------------------------------------------------------------------


def test_a_second_softmax_is_left_out():
    model = plain(nn.ReLU, nn.Softmax(-1))
    x = torch.randn(5, 8)
    scores = model[:5](x)
    theirs = by_code("leave-out", copy.deepcopy(model), modules=["5"])
    changed("leave-out", model, modules=["5"])
    assert torch.equal(model(x), scores)
    assert torch.equal(theirs(x), scores)
    with pytest.raises(RepairError):
        Change("leave-out", {"modules": ["0"]}).apply(setup_of(model))


class Probabilities(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.body, self.function = plain(nn.ReLU), function

    def forward(self, x):
        return self.function(self.body(x))


def softmax(scores):
    return scores.softmax(-1)


@pytest.mark.parametrize(("name", "function"), [("softmax", softmax), ("sigmoid", torch.sigmoid)])
def test_probabilities_of_a_function_are_turned_back_into_scores(name, function):
    model = Probabilities(function)
    theirs = by_code("undo-probabilities", copy.deepcopy(model), function=name)
    changed("undo-probabilities", model, function=name)
    x = torch.randn(5, 8)
    torch.testing.assert_close(function(model(x)), function(model.body(x)))
    torch.testing.assert_close(theirs(x), model(x), atol=1e-5, rtol=1e-5)


def test_what_gives_no_probabilities_has_none_to_undo():
    for name in ("softmax", "sigmoid"):
        with pytest.raises(RepairError):
            Change("undo-probabilities", {"function": name}).apply(setup_of(plain(nn.ReLU)))
    with pytest.raises(RepairError):
        Change("undo-probabilities", {"function": "softmax"}).apply(setup_of(Probabilities(torch.sigmoid)))


def test_a_double_softmax_is_answered_where_it_is():
    assert answers("double-softmax", ("5",), lambda: plain(nn.ReLU, nn.Softmax(-1)))[0] == Change(
        "leave-out", {"modules": ["5"]}
    )
    assert answers("double-softmax", ("loss",), lambda: Probabilities(softmax))[0].kind == "undo-probabilities"


def test_the_z_loss_adds_the_square_of_log_z():
    model = plain(nn.ReLU)
    setup = setup_of(model)
    batch = next(iter(setup.batches()))
    before = setup.loss(model, batch)
    Change("z-loss", {"weight": 0.01}).apply(setup)
    z = torch.log(torch.exp(model(batch[0]).double()).sum(-1))
    assert setup.loss(model, batch).item() == pytest.approx(before.item() + 0.01 * z.square().mean().item(), rel=1e-6)
    assert not model._forward_hooks
    assert answers("output-logit-drift", ("4",), lambda: plain(nn.ReLU))[0] == Change("z-loss", {"weight": 1e-4})


# Attention ------------------------------------------------------------------------------------------------------------


def attend(q, k, v, heads):
    """In float64, from the definition."""
    q, k, v = (t.double().unflatten(-1, (heads, -1)).transpose(-2, -3) for t in (q, k, v))
    return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(-2, -3).flatten(-2)


def rms(t, heads):
    t = t.double().unflatten(-1, (heads, -1))
    return (t / (t.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()).flatten(-2)


def test_queries_are_scaled_in_each_kind_of_layer():
    separate, fused, torchs = nn.Linear(8, 8), nn.Linear(8, 24), nn.MultiheadAttention(8, 2, batch_first=True)
    model = nn.ModuleList([separate, fused, torchs])
    x = torch.randn(2, 5, 8)
    q, qkv = separate(x), fused(x)
    packed = functional.linear(x, torchs.in_proj_weight, torchs.in_proj_bias).chunk(3, -1)
    Change("scale-queries", {"layers": ["0", "1", "2"], "factor": 0.25}).apply(setup_of(model))
    torch.testing.assert_close(separate(x), 0.25 * q)
    torch.testing.assert_close(fused(x), torch.cat((0.25 * qkv[..., :8], qkv[..., 8:]), -1))
    expected = torchs.out_proj(attend(0.25 * packed[0], *packed[1:], 2).float())
    torch.testing.assert_close(torchs(x, x, x)[0], expected)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masked", [None, "causal", "padding", "both"])
def test_normed_attention_is_the_definition_and_without_norms_torchs_own(batch_first, need_weights, masked):
    torch.manual_seed(0)
    old = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    new = NormedAttention(copy.deepcopy(old))
    x = torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8)
    causal, padding = torch.ones(5, 5, dtype=torch.bool).triu(1), torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    masks = {
        "attn_mask": causal if masked in ("causal", "both") else None,
        "key_padding_mask": padding if masked in ("padding", "both") else None,
        "need_weights": need_weights,
    }
    if masked is None:
        rows = x if batch_first else x.transpose(0, 1)
        q, k, v = functional.linear(rows, old.in_proj_weight, old.in_proj_bias).chunk(3, -1)
        expected = old.out_proj(attend(rms(q, 2), rms(k, 2), v, 2).float())
        torch.testing.assert_close(new(x, x, x, **masks)[0], expected if batch_first else expected.transpose(0, 1))
    new.q_norm, new.k_norm = nn.Identity(), nn.Identity()
    output, weights = new(x, x, x, **masks)
    wanted, theirs = old(x, x, x, **masks)
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(weights, theirs)


def test_normed_attention_takes_other_keys_and_single_sequences():
    torch.manual_seed(0)
    for settings in ({}, {"kdim": 6, "vdim": 4}):
        old = nn.MultiheadAttention(8, 2, **settings)
        new = NormedAttention(copy.deepcopy(old))
        new.q_norm, new.k_norm = nn.Identity(), nn.Identity()
        q, k, v = torch.randn(5, 8), torch.randn(7, old.kdim), torch.randn(7, old.vdim)
        for a, b in zip(new(q, k, v), old(q, k, v), strict=True):
            torch.testing.assert_close(a, b)


def test_heads_are_normalized_in_torchs_encoder_in_both_modes():
    model = encoder()
    changed("norm-heads", model, (1, 8), layers=["0.layers.0.self_attn"])
    x = torch.randn(6, 1, 8)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), model.train()(x))
    with pytest.raises(RepairError):
        Change("norm-heads", {"layers": ["0.layers.0.self_attn"]}).apply(setup_of(model, (1, 8)))


def test_heads_of_separate_and_fused_layers_are_normalized():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 24))
    first, second = model[0](torch.ones(2, 3, 8)), model[1](torch.ones(2, 3, 8))
    Change("norm-heads", {"layers": ["0", "1"], "dimension": 4}).apply(setup_of(model))
    torch.testing.assert_close(model[0](torch.ones(2, 3, 8)).double(), rms(first, 2), atol=1e-6, rtol=1e-5)
    expected = torch.cat((rms(second[..., :16], 4), second[..., 16:].double()), -1)
    torch.testing.assert_close(model[1](torch.ones(2, 3, 8)).double(), expected, atol=1e-6, rtol=1e-5)
    with pytest.raises(RepairError):
        Change("norm-heads", {"layers": ["0"]}).apply(setup_of(nn.Sequential(nn.Linear(8, 8))))


class Unscaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.head = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        return self.head((self.q_proj(x) @ self.k_proj(x).mT).softmax(-1) @ self.v_proj(x)).mean(1)


def test_an_unscaled_attention_is_answered_by_its_factor():
    evidence = (
        Evidence("factor on the products, 1/sqrt(d)", 1.0, 8**-0.5),
        Evidence("variance of the logits", 16.0, 1.0),
    )
    found = answers("unscaled-attention", ("q_proj", "k_proj"), Unscaled, (5, 8), evidence)
    assert found == [
        Change("scale-queries", {"layers": ["q_proj"], "factor": 0.3536}),
        Change("norm-heads", {"layers": ["q_proj", "k_proj"], "dimension": 8}),
        Change("scale-queries", {"layers": ["q_proj"], "factor": 0.25}),
    ]
    grown = answers("attention-logit-growth", ("0.layers.1.self_attn",), encoder, (1, 8))
    assert grown[0] == Change("norm-heads", {"layers": ["0.layers.1.self_attn"], "dimension": None})


# All ------------------------------------------------------------------------------------------------------------------


def test_every_kind_draws_settings_that_its_patient_takes():
    from trimtab.repairs.families import FAMILIES

    cases = [
        (lambda: plain(nn.ReLU, nn.Softmax(-1)), (8,)),
        (residual, (8,)),
        (Stack, (5, 8)),
        (encoder, (1, 8)),
        (Unscaled, (5, 8)),
    ]
    patients = [Patient(lambda make=make, shape=shape: setup_of(make(), shape)) for make, shape in cases]
    family = next(f for f in FAMILIES if f.name == "architecture")
    rng = random.Random(0)
    for name, kind in family.kinds.items():
        draws = [(p, settings) for p in patients for _ in range(2) if (settings := kind.sample(p, rng)) is not None]
        assert any(p.takes(Change(name, dict(settings))) for p, settings in draws) or name == "undo-probabilities", name
