"""Gains of the initial weights against the reference, and what PyTorch's own gains do."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trimtab.propagation import (
    PropagationError,
    activation,
    backward_gain,
    chi,
    forward_gain,
    judge_gain,
    length_map,
    mean_derivative_squared,
    nf_gain,
    second_moment,
    torch_gain,
)

few = settings(max_examples=20, deadline=None, derandomize=True)
GAINS = {"gain 1 (LeCun)": 1.0, "gain sqrt2 (He)": math.sqrt(2.0), "gain 5/3": 5 / 3}


def named(name):
    return activation("leaky_relu" if name == "leaky_relu_0.01" else name)


def test_gains_of_the_reference(reference):
    for name, by_q in reference("moments")["moments"].items():
        for q, row in by_q.items():
            assert forward_gain(named(name), float(q)) == pytest.approx(row["gain_forward"], rel=1e-9)
            assert backward_gain(named(name), float(q)) == pytest.approx(row["gain_backward"], rel=1e-9)
        assert nf_gain(named(name)) == pytest.approx(by_q["1.0"]["nf_gamma"], rel=1e-9)


def test_nf_gains(reference):
    for name, row in reference("nf_gains")["rows"].items():
        assert nf_gain(name) == pytest.approx(row["exact"], rel=1e-9)
        assert row["published"] / nf_gain(name) - 1 == pytest.approx(row["rel_diff"], rel=1e-6)
        assert 3e-4 < row["published"] / nf_gain(name) - 1 < 9e-4
    assert nf_gain("relu") == pytest.approx(math.sqrt(2 / (1 - 1 / math.pi)), rel=1e-12)


def test_torch_gains(reference):
    for name, entry in reference("torch_gains")["gains"].items():
        phi = named(name)
        if "torch_gain" in entry:
            assert torch_gain(phi) == pytest.approx(entry["torch_gain"], rel=1e-15)
            report = judge_gain(phi)
            assert report.critical == entry["critical"]
            assert report.chi_at_limit == pytest.approx(entry["chi_1"], rel=1e-9)
            if "q_star" not in entry:
                assert report.limit == 1.0
                continue
            assert report.limit == pytest.approx(entry["q_star"], rel=1e-9)
            assert report.fixed_points[0].slope == pytest.approx(entry["chi_q"], rel=1e-9)
            assert second_moment(phi, report.limit) == pytest.approx(entry["E_phi2_at_qstar"], rel=1e-9)
            assert report.next_q == pytest.approx(entry["q_at_1_first_layer"]["E_phi2_times_gain2"], rel=1e-9)
            assert report.chi_at_1 == pytest.approx(entry["q_at_1_first_layer"]["chi_at_q1"], rel=1e-9)
            continue
        assert torch_gain(phi) is None
        for words, row in entry.items():
            check_gain(phi, GAINS[words], row)


def check_gain(phi, gain, row):
    report = judge_gain(phi, gain)
    assert report.next_q == pytest.approx(row["q1_to"], rel=1e-9)
    assert report.chi_at_1 == pytest.approx(row["chi_at_q1"], rel=1e-9)
    assert len(report.fixed_points) == len(row["fixed_points"])
    for point, (q, slope) in zip(report.fixed_points, row["fixed_points"], strict=True):
        assert point.value == pytest.approx(q, rel=1e-9)
        assert point.slope == pytest.approx(slope, rel=1e-9)
    if row["q_star"] is not None:
        assert report.limit == pytest.approx(row["q_star"], rel=1e-9)
        assert report.chi_at_limit == pytest.approx(row["chi_1"], rel=1e-9)
    # The reference asks whether large q diverges, the report where q = 1 goes: SiLU at 5/3 falls to 0 from below 1.07.
    assert math.isinf(report.limit) == (row["diverges"] and (phi.name, gain) != ("silu", 5 / 3))


def test_limit_is_where_iteration_goes():
    for name, gain in (("tanh", 5 / 3), ("selu", 0.75), ("gelu", 1.0), ("gelu", 5 / 3), ("silu", 5 / 3), ("elu", 2.0)):
        report, q = judge_gain(name, gain), 1.0
        for _ in range(600):
            q = length_map(name, q, gain**2)
            if q > 1e6:
                break
        if math.isinf(report.limit):
            assert q > 1e6
        else:
            assert q == pytest.approx(report.limit, rel=1e-6, abs=1e-6)


@few
@given(st.sampled_from(["tanh", "gelu", "silu", "elu", "selu", "relu", "erf", "sigmoid"]), st.floats(0.01, 20.0))
def test_gains_keep_what_they_say(name, q):
    assert length_map(name, q, forward_gain(name, q) ** 2) == pytest.approx(q, rel=1e-10)
    assert chi(name, q, backward_gain(name, q) ** 2) == pytest.approx(1.0, rel=1e-10)


@few
@given(st.sampled_from(["identity", "relu", "leaky_relu", "prelu"]), st.floats(0.01, 20.0))
def test_homogeneous_gains_agree_and_are_pytorch_s(name, q):
    assert forward_gain(name, q) == pytest.approx(backward_gain(name, q), rel=1e-12)
    assert torch_gain(name) == pytest.approx(forward_gain(name, q), rel=1e-12)
    assert judge_gain(name).critical


def test_torch_gain_of_a_module():
    assert torch_gain(nn.LeakyReLU(0.3)) == pytest.approx(torch.nn.init.calculate_gain("leaky_relu", 0.3), rel=1e-12)
    assert torch_gain(nn.GELU()) is None


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: forward_gain("tanh", 0.0), "q is 0"),
        (lambda: forward_gain(lambda x: 0.0 * x), "passes no signal"),
        (lambda: backward_gain(lambda x: 0.0 * x + 1.0), "passes no gradient"),
        (lambda: nf_gain(lambda x: 0.0 * x + 1.0), "passes no variance"),
        (lambda: judge_gain("gelu"), "no gain for gelu"),
        (lambda: judge_gain("tanh", -1.0), "gain is -1"),
    ],
)
def test_what_has_no_gain_is_refused(call, why):
    with pytest.raises(PropagationError, match=why):
        call()


def test_a_tanh_net_of_gain_5_3_grows_gradients_by_21_per_cent():
    assert mean_derivative_squared("tanh", judge_gain("tanh").limit) * 25 / 9 == pytest.approx(1.2098313204, rel=1e-9)
