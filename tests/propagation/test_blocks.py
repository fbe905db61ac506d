"""Residual streams, transformers at initialization and scale-invariant weights, against the reference and small nets."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.norms.residual import deepnorm_scales
from trimtab.propagation import (
    POST_NORM_SECOND_MOMENT,
    PropagationError,
    decay_as_schedule,
    deepnorm_update_bound,
    effective_learning_rate,
    equilibrium_angle,
    equilibrium_norm,
    final_norm_gain,
    fixup_scale,
    last_gradient_order,
    nf_gain,
    pre_norm_second_moment,
    residual_course,
)

few = settings(max_examples=25, deadline=None, derandomize=True)
DEPTH = 32
STREAMS = {
    "residual plain x+W relu(x) He": (2.0, {}),
    "residual 1/sqrt(L)": (2.0, {"scale": DEPTH**-0.5}),
    "residual BN branch": (2.0, {"norm": "batch"}),
    "residual LN branch": (2.0, {"norm": "layer"}),
    "residual NF alpha=.2": (nf_gain("relu") ** 2, {"norm": "expected", "scale": 0.2}),
    "residual post-LN": (2.0, {"norm": "post"}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_residual_streams_of_the_reference(reference, name):
    row, (weight_var, kinds) = reference("residual_growth")["rows"][name], STREAMS[name]
    course = residual_course("relu", weight_var, DEPTH, **kinds)
    assert course.second_moment[-1] == pytest.approx(float(row["pred"][1]), rel=1e-9)
    assert row["second_moment_L"] == pytest.approx(course.second_moment[-1], rel=0.2)
    growth = math.exp(course.log_gradient[1])  # of the first block's output over the last one's
    if row["grad_pred"] is None:
        # no law in the reference; branches that keep some of the stream's direction make it 1.33, not 1
        assert growth == pytest.approx(1.0, rel=1e-12)
        return
    assert growth == pytest.approx(row["grad_pred"], rel=1e-9)
    # the plain stream's mean, which the mean field leaves out, makes its gradient grow by e^-0.56 less in 31 blocks
    assert math.log(row["grad_growth_block1_over_last"]) == pytest.approx(
        math.log(growth), abs=0.6 if "plain" in name else 0.1
    )


@few
@given(st.integers(1, 60), st.floats(0.05, 2.0))
def test_closed_residual_laws(depth, scale):
    layers = np.arange(depth + 1)
    plain = residual_course("relu", 2.0, depth, scale=scale)
    np.testing.assert_allclose(plain.second_moment, (1 + scale**2) ** layers, rtol=1e-10)
    np.testing.assert_allclose(plain.log_gradient, (depth - layers) * math.log1p(scale**2), rtol=1e-10, atol=1e-12)
    normed = residual_course("tanh", 1.0 / 0.3942944903978, depth, norm="layer", scale=scale)
    np.testing.assert_allclose(normed.second_moment, 1 + scale**2 * layers, rtol=1e-9)
    share = np.diff(normed.second_moment) / normed.second_moment[1:]
    np.testing.assert_allclose(share, scale**2 / (1 + scale**2 * layers[1:]), rtol=1e-9)
    batch = residual_course("relu", 2.0, depth, norm="batch", scale=scale)
    np.testing.assert_allclose(batch.spread, 1 + scale**2 * layers * (1 - 1 / math.pi), rtol=1e-9)


def test_branches_that_start_at_zero_leave_the_stream_alone():
    course = residual_course("gelu", 2.0, 10, scale=0.0, q=0.7)
    assert course.second_moment == pytest.approx(0.7)
    assert np.all(course.log_gradient == 0.0)
    deep = residual_course("relu", 2.0 * 0.01, 10, norm="post", skip=2.0)
    assert deep.second_moment == pytest.approx(1.0)
    assert deep.log_gradient == pytest.approx(0.0, abs=1e-12)


def test_a_residual_net_of_layer_norm_and_tanh():
    torch.manual_seed(0)
    width, depth = 400, 12
    x = torch.randn(64, width, dtype=torch.float64).requires_grad_(True)
    h = x
    for _ in range(depth):
        weight = torch.randn(width, width, dtype=torch.float64) * math.sqrt(2.0 / width)
        h = h + 0.5 * torch.tanh(torch.layer_norm(h, (width,))) @ weight
    g = torch.randn_like(h)
    h.backward(g)
    course = residual_course("tanh", 2.0, depth, norm="layer", scale=0.5)
    assert float((h.detach() ** 2).mean()) == pytest.approx(course.second_moment[-1], rel=0.1)
    assert float((x.grad**2).sum() / (g**2).sum()) == pytest.approx(math.exp(course.log_gradient[0]), rel=0.1)


def test_fixup_scale():
    assert fixup_scale(16) == pytest.approx(1 / 4)
    assert fixup_scale(16, 3) == pytest.approx(1 / 2)


def test_xiong(reference):
    measured = reference("xiong_transformer")["measured"]
    for depth in (6, 12, 24):
        low, high = pre_norm_second_moment(depth)
        assert f"({low}, {high})" == measured[f"pre L={depth}"]["lemma2_last"]
        assert low < measured[f"pre L={depth}"]["norm2_over_d"][-1] < high
        assert final_norm_gain(depth) == (high**-0.5, low**-0.5)
        assert measured[f"post L={depth}"]["lemma2_last"] == POST_NORM_SECOND_MOMENT
        assert np.mean(measured[f"post L={depth}"]["norm2_over_d"]) == pytest.approx(POST_NORM_SECOND_MOMENT, rel=0.1)
        # Theorem 1 is a bound up to a constant: the last layer's gradient stays below it, pre-norm's falls with depth
        assert measured[f"post L={depth}"]["last_W2_grad"] < last_gradient_order("post", 256, depth)
        assert measured[f"pre L={depth}"]["last_W2_grad"] < last_gradient_order("pre", 256, depth)
    flat = [measured[f"post L={depth}"]["last_W2_grad"] for depth in (6, 12, 24)]
    assert max(flat) / min(flat) < 1.06
    assert last_gradient_order("post", 256, 6) == last_gradient_order("post", 256, 24)
    assert last_gradient_order("pre", 256, 6) / last_gradient_order("pre", 256, 24) == pytest.approx(2.0)
    falling = measured["pre-LN last-layer gradient vs 1/sqrt(L): g*sqrt(1+L/2)"]
    for depth, value in falling.items():
        seen = measured[f"pre L={depth}"]["last_W2_grad"]
        assert seen / final_norm_gain(int(depth))[1] == pytest.approx(value, rel=1e-9)


def test_deepnorm(reference):
    table = reference("deepnorm")
    for layers, row in table["examples"].items():
        scale = deepnorm_scales(int(layers))[0]
        assert (scale.alpha, scale.beta) == pytest.approx((row["alpha"], row["beta"]), rel=1e-12)
        assert deepnorm_update_bound(int(layers), scale.alpha, scale.beta) == pytest.approx(1.0, rel=1e-12)
    assert deepnorm_update_bound(12, 1.0, 1.0) == 48.0
    for n, m in ((6, 6), (12, 3), (100, 50)):
        encoder, decoder = deepnorm_scales(n, m)
        for which, scale in (("encoder", encoder), ("decoder", decoder)):
            for key in ("alpha", "beta"):
                text = table["encoder_decoder"][which][key].replace("3M", "3*M").replace("12M", "12*M")
                text = text.replace("13*M", "1*3*M")
                assert getattr(scale, key) == pytest.approx(eval(text, {"N": n, "M": m}), rel=1e-12)


def test_equilibrium(reference):
    row = reference("scale_invariance")["rows"]["weight-decay equilibrium (scale-invariant, SGD)"]
    # eta 0.1, lambda 0.005 and gradients of mean square 199 at norm 1: the numbers that the reference run had
    assert equilibrium_norm(0.1, 0.005, math.sqrt(199.0)) ** 4 == pytest.approx(row["w4_pred"], rel=1e-9)
    assert row["w4_measured"] == pytest.approx(row["w4_pred"], rel=0.01)
    assert equilibrium_angle(0.1, 0.005) == pytest.approx(row["angle_pred"], rel=1e-9)
    assert row["angle_measured"] == pytest.approx(row["angle_pred"], rel=0.01)
    rows = reference("small_laws")["rows"]["angle mu=0.9"]
    assert equilibrium_angle(0.1, 0.005, 0.9) == pytest.approx(rows[2], rel=1e-9)
    assert rows[0] == pytest.approx(rows[2], rel=0.01)
    assert equilibrium_norm(0.1, 0.005, math.sqrt(199.0), 0.9) ** 4 == pytest.approx(rows[6], rel=1e-9)
    assert rows[4] == pytest.approx(rows[6], rel=0.02)


def test_scale_invariant_weights(reference):
    """f(cw) = f(w), g(cw) = g(w)/c and w.g = 0, and a rate that grows does what decay does (Li & Arora 2019)."""
    assert reference("scale_invariance")["scale"]["grad_ratio"] == pytest.approx(1 / 3, rel=1e-12)
    rng = np.random.default_rng(0)
    target, start = rng.standard_normal((2, 30))

    def gradient(w):
        n = w / np.linalg.norm(w)
        return -(target - n * (n @ target)) / np.linalg.norm(w)  # of -target . n

    np.testing.assert_allclose(gradient(3 * start), gradient(start) / 3, rtol=1e-12)
    assert start @ gradient(start) == pytest.approx(0.0, abs=1e-12)
    eta, decay = 0.1, 0.05
    decayed, grown = start.copy(), start.copy()
    for step in range(60):
        decayed = (1 - eta * decay) * decayed - eta * gradient(decayed)
        grown = grown - decay_as_schedule(eta, decay, step) * gradient(grown)
        cosine = decayed @ grown / np.linalg.norm(decayed) / np.linalg.norm(grown)
        assert cosine == pytest.approx(1.0, abs=1e-14)
    assert effective_learning_rate(0.1, 2.0) == 0.025


@few
@given(st.floats(1e-3, 0.5), st.floats(1e-4, 0.5), st.floats(0.0, 0.95))
def test_equilibrium_turns_by_its_own_step(learning_rate, weight_decay, momentum):
    """Without momentum the angle is eta G/norm^2, the relative step; with it (1 - mu) takes both along."""
    norm = equilibrium_norm(learning_rate, weight_decay, 3.0)
    assert equilibrium_angle(learning_rate, weight_decay) == pytest.approx(
        effective_learning_rate(learning_rate, norm) * 3.0, rel=1e-10
    )
    assert equilibrium_norm(learning_rate, weight_decay, 3.0, momentum) >= norm
    assert equilibrium_angle(learning_rate, weight_decay, momentum) <= equilibrium_angle(learning_rate, weight_decay)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: residual_course("relu", 2.0, 3, norm="instance"), "norm is 'instance'"),
        (lambda: residual_course("relu", 2.0, -1), "depth is -1"),
        (lambda: residual_course("relu", -2.0, 3), "weight_var is -2"),
        (lambda: residual_course("relu", 2.0, 3, scale=math.nan), "scale is nan"),
        (lambda: residual_course("relu", 2.0, 3, q=0.0), "q is 0"),
        (lambda: fixup_scale(0), "blocks is 0"),
        (lambda: pre_norm_second_moment(-1), "layer is -1"),
        (lambda: last_gradient_order("middle", 64, 6), "placement is 'middle'"),
        (lambda: last_gradient_order("pre", 1, 6), "width is 1"),
        (lambda: deepnorm_update_bound(0, 1.0, 1.0), "layers is 0"),
        (lambda: equilibrium_norm(0.1, 0.0, 1.0), "weight_decay is 0"),
        (lambda: equilibrium_angle(0.1, 0.1, 1.0), "momentum is 1"),
        (lambda: effective_learning_rate(0.1, 0.0), "weight_norm is 0"),
        (lambda: decay_as_schedule(2.0, 1.0, 3), "a product below 1"),
    ],
)
def test_what_is_out_of_range_is_refused(call, why):
    with pytest.raises(PropagationError, match=why):
        call()
