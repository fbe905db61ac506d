"""What attention looks at: entropy and largest logit against the formula in float64, explicit and fused, and where nothing can be told."""

import math

import pytest
import torch
from recording_cases import record_of, watching
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trimtab.recording import attention
from trimtab.recording.attention import attentions

SCALE = 8**-0.5
CAUSAL = torch.ones(10, 10).tril().bool()
ADDED = torch.zeros(10, 10).masked_fill(~CAUSAL, -math.inf)


@pytest.fixture
def signals():
    generator = torch.Generator().manual_seed(0)
    draws = (torch.randn(2, 3, 10, 8, generator=generator).requires_grad_() for _ in range(3))
    return [2 * draw for draw in draws]


def formula(q, k, scale=SCALE, mask=None):
    """Mean entropy of the softmax, that of equal weights, and the largest logit that the mask leaves."""
    z = scale * (q.detach().double() @ k.detach().double().mT)
    allowed = torch.ones_like(z, dtype=torch.bool) if mask is None else mask.expand_as(z)
    p = z.masked_fill(~allowed, -math.inf).softmax(-1)
    entropy = -(p * torch.where(p > 0, p, 1.0).log()).sum(-1).mean()
    uniform = allowed.sum(-1).double().log().mean()
    return float(entropy), float(uniform), float(z.abs()[allowed].max())


def seen(output):
    (found,) = attentions(output.sum(), {})
    return found["entropy"], found["uniform"], found["largest"]


PLAIN = {
    "by hand": lambda q, k, v: (q @ k.mT * SCALE).softmax(-1) @ v,
    "divided": lambda q, k, v: (q @ k.mT / 8**0.5).softmax(-1) @ v,
    "scaled before": lambda q, k, v: ((q * SCALE) @ k.mT).softmax(-1) @ v,
    "einsum": lambda q, k, v: torch.einsum("bhqd,bhkd->bhqk", q, k).mul(SCALE).softmax(-1) @ v,
    "three axes": lambda q, k, v: (q.flatten(0, 1) @ k.flatten(0, 1).mT * SCALE).softmax(-1) @ v.flatten(0, 1),
    "baddbmm": lambda q, k, v: (
        torch.baddbmm(torch.zeros(1), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=SCALE).softmax(-1) @ v.flatten(0, 1)
    ),
    "learned temperature": lambda q, k, v: (nn.Parameter(torch.tensor(SCALE)) * (q @ k.mT)).softmax(-1) @ v,
    "fused": F.scaled_dot_product_attention,
    "fused by parts": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
}  # fmt: skip

MASKED = {
    "filled": lambda q, k, v: (q @ k.mT * SCALE).masked_fill(~CAUSAL, -1e9).softmax(-1) @ v,
    "added": lambda q, k, v: (q @ k.mT * SCALE + ADDED).softmax(-1) @ v,
    "fused, causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "fused, mask": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=CAUSAL),
    "fused, added": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=ADDED),
}  # fmt: skip


@pytest.mark.parametrize("attend", PLAIN.values(), ids=PLAIN)
def test_entropy_and_largest_logit_are_those_of_the_formula(attend, signals):
    q, k, v = signals
    assert seen(attend(q, k, v)) == pytest.approx(formula(q, k), rel=2e-6)


@pytest.mark.parametrize("attend", MASKED.values(), ids=MASKED)
def test_a_mask_takes_keys_away(attend, signals):
    q, k, v = signals
    assert seen(attend(q, k, v)) == pytest.approx(formula(q, k, mask=CAUSAL), rel=2e-6)


@pytest.mark.parametrize("needs_weights", [True, False])
def test_pytorchs_module(needs_weights):
    torch.manual_seed(0)
    net, x = nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(3, 7, 16)
    q, k = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in F.linear(x, net.in_proj_weight[:32]).chunk(2, -1))
    assert seen(net(x, x, x, need_weights=needs_weights)[0]) == pytest.approx(formula(q, k), rel=2e-6)


def test_heads_of_keys_that_are_shared(signals):
    q, k, v = signals
    q = torch.cat([q, -q], 1)
    found = seen(F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    assert found == pytest.approx(formula(q, k.repeat_interleave(2, 1)), rel=2e-6)


def test_weights_that_vanish_in_their_precision_are_no_mask(signals):
    q, k, v = (30 * signal for signal in signals)
    assert seen((q @ k.mT * SCALE).softmax(-1) @ v) == pytest.approx(formula(q, k), rel=2e-6)


def test_of_many_queries_a_sample_is_read():
    torch.manual_seed(0)
    q, k, v = (1 * torch.randn(16, 8, 64, 4).requires_grad_() for _ in range(3))  # no leaf, which would be a parameter
    entropy, uniform, largest = seen(F.scaled_dot_product_attention(q, k, v))
    whole = formula(q, k, 0.5)
    assert (entropy, uniform) == pytest.approx(whole[:2], rel=0.02)
    assert 0.5 * whole[2] < largest <= whole[2] * (1 + 1e-6)
    assert seen((q @ k.mT * 0.5).softmax(-1) @ v) == pytest.approx((entropy, uniform, largest), rel=1e-5)


@pytest.mark.parametrize("length", [64, 100, 1000, 4096])
def test_a_sample_meets_no_period(length):
    chosen = attention._spread(length, attention.PAIRS)
    assert len(chosen) == attention.PAIRS
    assert 0 <= int(chosen.min()) < 0.1 * length
    assert 0.9 * length < int(chosen.max()) < length
    for period in (2, 4, 8):
        assert len({int(i) % period for i in chosen}) >= period - 1


def test_what_is_short_is_read_whole():
    assert attention._spread(5, 8).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "other",
    [
        lambda q, k, v: q.softmax(-1),  # probabilities of something
        lambda q, k, v: (q @ nn.Parameter(torch.ones(8, 4))).softmax(-1),  # a gate of experts
        lambda q, k, v: (q @ k.mT).sigmoid() @ v,
    ],
)
def test_other_softmaxes_are_no_attention(other, signals):
    assert attentions(other(*signals).sum(), {}) == []


def test_the_logit_is_unknown_where_more_than_a_factor_lies_behind_the_product(signals):
    q, k, v = signals
    (found,) = attentions(((q @ k.mT).tanh().softmax(-1) @ v).sum(), {})
    assert found["largest"] is None
    assert found["entropy"] > 0


def test_what_is_no_number_has_no_entropy(signals):
    q, k, v = signals
    assert attentions(F.scaled_dot_product_attention(q * math.nan, k, v).sum(), {}) == []
    assert attentions(((q * math.nan @ k.mT).softmax(-1) @ v).sum(), {}) == []


def test_a_checkpoint_is_not_run_again(signals):
    calls = []

    def attend(q, k, v):
        calls.append(1)
        return F.scaled_dot_product_attention(q, k, v)

    loss = checkpoint(attend, *signals, use_reentrant=False).sum()
    assert attentions(loss, {}) == []
    assert len(calls) == 1
    loss.backward()
    assert len(calls) == 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 24), nn.Linear(8, 2)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.mT * SCALE).softmax(-1) @ v)


def trained(watch):
    torch.manual_seed(0)
    net, x = Net(), torch.randn(4, 5, 6)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)

    def steps():
        for _ in range(12):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    if not watch:
        steps()
        return net, x, None
    with watching(net, optimizer) as recorder:
        steps()
    return net, x, record_of(recorder)


def test_the_record_has_it_at_the_steps_in_detail_and_changes_nothing():
    (net, x, record), (alone, _, _) = trained(True), trained(False)
    for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    looks = record.details["attention"]
    assert [step for step, _ in looks] == [step for step, _ in record.details["loss"]]
    first = looks[0][1][0]
    assert (first["name"], first["sources"]) == ("0:out", ["0:qkv"])
    torch.manual_seed(0)
    q, k, _ = Net().qkv(x).chunk(3, -1)
    assert (first["entropy"], first["uniform"], first["largest"]) == pytest.approx(formula(q, k), rel=2e-6)
