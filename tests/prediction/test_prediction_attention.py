"""Attention: written out or fused, masked or not, and what is said of its scores."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from trimtab.prediction import predict
from trimtab.prediction.engine import forward
from trimtab.prediction.expansion import expanded_calls
from trimtab.prediction.fused_attention import BIASES, causal
from trimtab.prediction.measuring import measured_state
from trimtab.prediction.registry import Call, Value
from trimtab.prediction.rules.softmax import squares
from trimtab.prediction.state import independent

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
VISIBLE = torch.ones(12, 12, dtype=torch.bool).tril()
ADDED = torch.zeros(12, 12).masked_fill(~VISIBLE, -math.inf)


class Attends(nn.Module):
    """Projections, one way to attend, and a projection of what it gives."""

    def __init__(self, attend, heads=4, width=64, groups=None):
        super().__init__()
        self.attend, self.heads, self.groups = attend, heads, groups or heads
        self.q = nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, width // heads * self.groups) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, e = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = (f(x).view(b, t, self.groups, -1).transpose(1, 2) for f in (self.k, self.v))
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(b, t, e))


def product(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def by_baddbmm(q, k, v):
    b, h, t, d = q.shape
    scores = torch.baddbmm(ADDED, q.reshape(-1, t, d), k.reshape(-1, t, d).transpose(1, 2), alpha=d**-0.5)
    return scores.softmax(-1).view(b, h, t, t) @ v


HIDDEN = {
    "added": lambda q, k, v: (product(q, k) + ADDED).softmax(-1) @ v,
    "filled": lambda q, k, v: product(q, k).masked_fill(~VISIBLE, -math.inf).softmax(-1) @ v,
    "filled, finite": lambda q, k, v: product(q, k).masked_fill(~VISIBLE, -1e9).softmax(-1) @ v,
    "chosen": lambda q, k, v: torch.where(VISIBLE, product(q, k), torch.tensor(-math.inf)).softmax(-1) @ v,
    "chosen, inverted": lambda q, k, v: torch.where(~VISIBLE, -math.inf, product(q, k)).softmax(-1) @ v,
    "baddbmm": by_baddbmm,
    "function": lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    "function, mask": lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=VISIBLE),
    "fused": lambda q, k, v: FLASH(q, k, v, 0.0, True)[0],
}
SEEN = {
    "matmul": lambda q, k, v: torch.matmul(torch.matmul(q, k.transpose(2, 3)).div(4.0).softmax(-1), v),
    "queries scaled": lambda q, k, v: ((q * 0.25) @ k.transpose(2, 3)).softmax(-1) @ v,
    "einsum": lambda q, k, v: torch.einsum(
        "bhij,bhjd->bhid", torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * 0.25, -1), v
    ),
    "function": functional.scaled_dot_product_attention,
    "fused": lambda q, k, v: FLASH(q, k, v)[0],
}


def batch(size=2.0):
    return size * torch.randn(24, 12, 64)


def errors(model, x):
    found = predict(model, x)
    assert found.coverage == 1.0, dict(found.uncovered)
    return found


@pytest.mark.parametrize(("variance", "count"), [(0.3, 2), (1.0, 16), (4.0, 100), (25.0, 64)])
def test_squares_are_those_of_drawn_scores(variance, count):
    p = (torch.randn(100_000, count, dtype=torch.float64) * variance**0.5).softmax(-1)
    second = p.square().sum(1)
    spread = p.pow(4).mean() / p.square().mean() ** 2 - 1
    wanted = [second.mean(), p.pow(3).sum(1).mean(), second.square().mean(), spread]
    assert squares(variance, ((float(count),), (1.0,))) == pytest.approx([float(w) for w in wanted], rel=0.02)


def test_squares_at_the_ends():
    assert squares(0.0, ((8.0,), (1.0,))) == pytest.approx((1 / 8, 1 / 64, 1 / 64, 0.0), abs=1e-6)
    assert squares(1e9, ((8.0,), (1.0,))).second > 0.9
    assert squares(3.0, ((1.0,), (1.0,))) == pytest.approx((1.0, 1.0, 1.0, 0.0), abs=1e-4)


@pytest.mark.parametrize("size", [1.0, 2.0, 4.0])  # logits of variance 0.1, 1.8, 29
@pytest.mark.parametrize("name", HIDDEN)
def test_causal_attention_of_every_spelling(name, size):
    torch.manual_seed(0)
    found = errors(Attends(HIDDEN[name]), batch(size))
    assert abs(found["out"].forward_error) < 0.06, found
    assert abs(found["v"].backward_error) < 0.08, found
    assert abs(found["q"].backward_error) < 0.12, found


@pytest.mark.parametrize("size", [1.0, 4.0])
@pytest.mark.parametrize("name", SEEN)
def test_attention_of_every_spelling(name, size):
    torch.manual_seed(0)
    found = errors(Attends(SEEN[name]), batch(size))
    assert abs(found["out"].forward_error) < 0.06, found
    assert abs(found["q"].backward_error) < 0.12, found


@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("masked", [False, True])
def test_a_fused_kernel_is_what_it_stands_for(scale, masked):
    """The same weights through `softmax(Q K^T scale) V` in separate operations."""
    torch.manual_seed(0)
    mask = ADDED if masked else None
    fused = Attends(lambda q, k, v: FLASH(q, k, v, 0.0, False, attn_mask=mask, scale=scale)[0])
    x = batch()
    found = predict(fused, x)
    fused.attend = lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    wanted = predict(fused, x)
    assert [s.name for s in found] == [s.name for s in wanted]
    for a, b in zip(found, wanted, strict=True):
        assert (a.forward, a.forward_tolerance) == pytest.approx((b.forward, b.forward_tolerance), rel=0.02)
        assert (a.backward, a.backward_tolerance) == pytest.approx((b.backward, b.backward_tolerance), rel=0.02)
    assert found.attention[0].variance == pytest.approx(wanted.attention[0].variance, rel=0.01)
    assert math.isnan(found.attention[0].variance_measured)
    assert math.isnan(found.attention[0].squares_measured)


def test_keys_for_a_group_of_queries():
    model = Attends(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True), groups=2)
    x = batch()
    wanted = errors(model, x)
    model.attend = lambda q, k, v: FLASH(q, k, v)[0]
    found = errors(model, x)
    assert abs(found["out"].forward_error) < 0.06
    assert found["k"].backward == pytest.approx(wanted["k"].backward, rel=0.02)


@pytest.mark.parametrize("name", BIASES)
def test_every_fused_operation_follows_one_law(name):
    """Those of a GPU are taken by their signature, and give what the operations of the processor do."""
    operation = getattr(torch.ops.aten, name.removeprefix("aten.")).default
    mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), -math.inf)
    q, k, v = (Value(n, (2, 3, 8, 4)) for n in range(3))
    states = {n: independent((2, 3, 8, 4), 1.0) for n in range(3)}
    known, out = Value(3, (8, 8), known=True), Value(4, (2, 3, 8, 4))
    names = {a.name for a in operation._schema.arguments}
    given = {"query": q, "key": k, "value": v, "dropout_p": 0.2, "scale": 0.7, "compute_log_sumexp": True}
    if BIASES[name]:
        given |= {BIASES[name]: known, "is_causal": False}
    else:
        given["is_causal"] = True
    kwargs = {key: item for key, item in given.items() if key in names}
    calls = expanded_calls([Call(name, operation, (), kwargs, (out, None), {3: measured_state(mask)})])
    found = forward(calls, states, {}, set())
    assert not found.uncovered
    draws = [
        functional.scaled_dot_product_attention(*(torch.randn(64, 3, 8, 4) for _ in range(3)), mask, 0.2, scale=0.7)
        for _ in range(40)
    ]
    assert found.states[4].second_moment == pytest.approx(float(torch.stack(draws).square().mean()), rel=0.15)


@pytest.mark.parametrize(("queries", "keys"), [(8, 8), (5, 9), (9, 5), (1, 4), (4, 1)])
def test_the_causal_mask_without_the_mask(queries, keys):
    mask = torch.zeros(queries, keys).masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(), -math.inf)
    wanted, found = measured_state(mask), causal(queries, keys)
    if wanted.mask is None:  # nothing is hidden
        wanted = measured_state(torch.zeros(queries, keys))
        assert found.mask.second_moment == pytest.approx(keys**-2.0)
        return
    assert found.dims == wanted.dims
    assert found.mask.kappa == pytest.approx(wanted.mask.kappa, abs=1e-6)
    assert np.average(found.mask.law[0], weights=found.mask.law[1]) == pytest.approx(
        np.average(wanted.mask.law[0], weights=wanted.mask.law[1]), rel=1e-5
    )


def unit(model, dimension):
    """Queries and keys of unit variance."""
    for linear in (model.q, model.k):
        nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        nn.init.zeros_(linear.bias)
    return model


@pytest.mark.parametrize("heads", [2, 8])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_logits_have_variance_d_without_the_scale(heads, scale):
    dimension = 64 // heads
    model = unit(
        Attends(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, scale=scale), heads), dimension
    )
    (found,) = predict(model, batch(1.0)).attention
    wanted = dimension if scale else 1.0
    assert (found.name, found.dimension, found.keys) == ("out", dimension, 12)
    assert found.scale == pytest.approx(scale or dimension**-0.5)
    assert found.variance == pytest.approx(wanted, rel=0.3)
    assert found.variance_measured == pytest.approx(found.variance, rel=found.variance_tolerance - 1)
    assert found.squares == pytest.approx(found.squares_measured, rel=0.1)
    assert found.squares_uniform == pytest.approx(1 / 12)


@pytest.mark.parametrize("name", [f"{k}.{n}" for k, group in (("hidden", HIDDEN), ("seen", SEEN)) for n in group])
def test_every_spelling_says_the_same_of_its_logits(name):
    torch.manual_seed(0)
    kind, _, name = name.partition(".")
    model = unit(Attends({"hidden": HIDDEN, "seen": SEEN}[kind][name]), 16)
    (found,) = predict(model, batch(1.0)).attention
    assert (found.dimension, found.keys, found.scale) == (16, 12, pytest.approx(0.25))
    assert found.variance == pytest.approx(1.0, rel=0.3)
    visible = sum(1 / k for k in range(1, 13)) / 12
    assert found.squares_uniform == pytest.approx(visible if kind == "hidden" else 1 / 12)
    if name != "fused":
        assert found.variance_measured == pytest.approx(1.0, rel=0.3)
        assert found.squares_measured == pytest.approx(found.squares, rel=0.1)


@pytest.mark.parametrize("weights", [True, False])
def test_the_layer_of_torch(weights):
    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend, self.head = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 3)

        def forward(self, x):
            return self.head(self.attend(x, x, x, need_weights=weights)[0])

    (found,) = predict(Wraps(), torch.randn(16, 10, 32)).attention
    assert found.name.startswith("attend")
    assert (found.dimension, found.keys, found.scale) == (8, 10, pytest.approx(8**-0.5))
    assert found.variance_measured == pytest.approx(found.variance, rel=found.variance_tolerance - 1)


def test_what_is_no_attention():
    model = nn.Sequential(nn.Linear(16, 8), nn.Softmax(-1), nn.Linear(8, 2))
    assert predict(model, torch.randn(32, 16)).attention == ()


def test_a_cap_and_a_bias_of_positions():
    positions = torch.randn(12, 12)
    capped = Attends(lambda q, k, v: (5 * torch.tanh((product(q, k) + positions) / 5)).softmax(-1) @ v)
    (found,) = predict(capped, batch()).attention
    assert math.isnan(found.scale)  # a cap is no scale
    assert found.variance_measured == pytest.approx(found.variance, rel=0.3)
    biased = Attends(lambda q, k, v: ((q @ k.transpose(2, 3) + positions) * 0.25).softmax(-1) @ v)
    (found,) = predict(biased, batch()).attention
    assert found.scale == 0.25
    assert found.variance_measured == pytest.approx(found.variance, rel=found.variance_tolerance - 1)


def test_attention_in_the_renderings():
    found = predict(Attends(HIDDEN["filled"]), batch())
    text = str(found)
    assert "variance of the logits" in text
    assert max(map(len, text.splitlines())) <= 80
    plain = json.loads(found.to_json())["attention"]
    assert [a["dimension"] for a in plain] == [16]
    assert json.loads(predict(Attends(SEEN["fused"]), batch()).to_json())["attention"][0]["variance_measured"] == "nan"


MASKS = {
    "zeros": lambda u, m: u.masked_fill(m, 0.0),
    "a number": lambda u, m: u.masked_fill(m, 2.0),
    "of two": lambda u, m: torch.where(m, u, -3 * u.flip(0)),
    "a number chosen": lambda u, m: torch.where(m, torch.tensor(1.5), u),
    "dropout": lambda u, m: torch.native_dropout(u, 0.4, True)[0],
    "no dropout": lambda u, m: torch.native_dropout(u, 0.4, False)[0],
}


@pytest.mark.parametrize("name", MASKS)
def test_filling_and_dropout(name):
    mask = torch.rand(128, 64) < 0.3

    class Fills(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return self.b(MASKS[name](torch.tanh(self.a(x)), mask))

    rows = []
    for _ in range(6):
        found = errors(Fills(), 3 * torch.randn(128, 64))
        rows.append([(s.forward_error, s.backward_error) for s in found])
    assert np.abs(np.mean(rows, 0)).max() < 0.05


def test_a_choice_that_the_signal_makes_has_no_rule():
    class Chooses(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            u = self.a(x)
            return self.b(torch.where(u > 0, u, 0.1 * u))

    assert dict(predict(Chooses(), torch.randn(32, 8)).uncovered) == {"aten.where": 1}


def test_the_factors_of_baddbmm_come_back():
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.w = nn.Linear(64, 64), nn.Parameter(torch.randn(64, 64))

        def forward(self, x):
            u = self.a(x)
            return torch.addmm(u, torch.tanh(u), self.w, alpha=3.0, beta=0.5)

    found = [predict(Adds(), torch.randn(64, 64))["a"].backward_error for _ in range(6)]
    assert abs(np.mean(found)) < 0.05
