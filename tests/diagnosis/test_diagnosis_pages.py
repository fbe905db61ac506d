"""The pages of `trimtab explain` name the numbers that the rules use: no page may drift from its rule."""

import re

import numpy as np
import pytest
import torch

from trimtab.diagnosis import decay, first_step, flow, fresh, view
from trimtab.diagnosis.rules import (
    clipping_dominates,
    dead_units,
    decayed_norm_parameters,
    excessive_weight_decay,
    exploding_gradient,
    frozen_parameters,
    learning_rate_too_high,
    learning_rate_too_low,
    missing_zero_grad,
    nonfinite_loss,
    saturated_units,
    signal_collapse,
    symmetric_init,
    unscaled_inputs,
    unscaled_targets,
    vanishing_gradient,
)
from trimtab.propagation import activation, chi, length_map, saturated_share
from trimtab.report import codes, page
from trimtab.stats.units import _MARGIN


def percent(value):
    return f"{100 * value:g} %"


def plain(value):
    return f"{value:g}"


def power(value):
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def tenfold(value):
    """A difference of decimal logarithms, as a factor."""
    return f"a factor of {10**value:g}"


def before(words, value):
    return f"{value:g} {words}"


def after(words, value):
    return f"{words} {value:g}"


NUMBERS = [
    ("clipping-dominates", percent(clipping_dominates.SHARE)),
    ("clipping-dominates", before("times", clipping_dominates.FACTOR)),
    ("clipping-dominates", after("at least", clipping_dominates.ENOUGH)),
    ("dead-units", percent(dead_units.ALL)),
    ("dead-units", percent(dead_units.MANY)),
    ("dead-units", before("looks", dead_units.ENOUGH)),
    ("decayed-norm-parameters", before("is left", decayed_norm_parameters.SHRUNK)),
    ("decayed-norm-parameters", f"under {decayed_norm_parameters.GONE:g} of the median gain"),
    ("decayed-norm-parameters", after("at least", decay.USUAL)),
    ("decayed-norm-parameters", percent(decay.GUESSING)),
    ("decayed-norm-parameters", percent(decay.FITS)),
    ("decayed-norm-parameters", percent(decay.CLIMB)),
    ("excessive-weight-decay", f"{excessive_weight_decay.ANGLE:g} rad"),
    ("excessive-weight-decay", before("times", excessive_weight_decay.AGREES)),
    ("excessive-weight-decay", after("under", excessive_weight_decay.SHRUNK)),
    ("excessive-weight-decay", before("of the update", excessive_weight_decay.SHARE)),
    ("excessive-weight-decay", before("where", excessive_weight_decay.STRONG)),
    ("excessive-weight-decay", after("at least", excessive_weight_decay.HARD)),
    ("excessive-weight-decay", before("time", excessive_weight_decay.WHOLE)),
    ("excessive-weight-decay", after("at least", decay.USUAL)),
    ("excessive-weight-decay", percent(decay.GUESSING)),
    ("excessive-weight-decay", percent(decay.FITS)),
    ("excessive-weight-decay", percent(decay.CLIMB)),
    ("exploding-gradient", tenfold(exploding_gradient.GROWS)),
    ("exploding-gradient", plain(exploding_gradient.LARGE_STEP)),
    ("exploding-gradient", before("times", exploding_gradient.WORSE)),
    ("exploding-gradient", before("L / n", flow.SCATTER)),
    ("exploding-gradient", before("steps", flow.EARLY)),
    ("frozen-parameters", plain(fresh.SIGNIFICANCE)),
    ("frozen-parameters", before("recorded steps", frozen_parameters.ENOUGH)),
    ("learning-rate-too-high", before("times", learning_rate_too_high.GROWTH)),
    ("learning-rate-too-high", percent(learning_rate_too_high.LARGE)),
    ("learning-rate-too-high", percent(learning_rate_too_high.KILLS)),
    ("learning-rate-too-high", before("recorded steps", learning_rate_too_high.EARLY)),
    ("learning-rate-too-high", power(learning_rate_too_high.SIGNED)),
    ("learning-rate-too-low", plain(learning_rate_too_low.PATH)),
    ("learning-rate-too-low", percent(learning_rate_too_low.GAINED)),
    ("learning-rate-too-low", plain(learning_rate_too_low.STEADY)),
    ("learning-rate-too-low", after("at least", learning_rate_too_low.LONG)),
    ("learning-rate-too-low", plain(learning_rate_too_low.OVER)),
    ("learning-rate-too-low", percent(learning_rate_too_low.SPENT)),
    ("missing-zero-grad", percent(missing_zero_grad.SHARE)),
    ("missing-zero-grad", before("at least", missing_zero_grad.ENOUGH)),
    ("nonfinite-loss", power(nonfinite_loss.OVERFLOW)),
    ("nonfinite-loss", percent(nonfinite_loss.MANY)),
    ("saturated-units", plain(saturated_units.SHARE)),
    ("saturated-units", before("steps", saturated_units.EARLY)),
    ("saturated-units", f"q = {saturated_units.EXPECTED_AT:g}"),
    ("saturated-units", percent(_MARGIN)),
    ("signal-collapse", plain(signal_collapse.ALIVE)),
    ("signal-collapse", power(signal_collapse.GONE)),
    ("signal-collapse", power(signal_collapse.SAME)),
    ("signal-collapse", power(signal_collapse.DROP)),
    ("signal-collapse", after("under", signal_collapse.FLAT)),
    ("signal-collapse", before("looks", signal_collapse.ENOUGH)),
    ("signal-collapse", after("step", signal_collapse.SETTLED)),
    ("symmetric-init", after("step", symmetric_init.SETTLED)),
    ("unscaled-inputs", before("times", unscaled_inputs.SPREAD)),
    ("unscaled-inputs", after("of size", unscaled_inputs.SIZE)),
    ("unscaled-inputs", before("spreads", unscaled_inputs.OFFSET)),
    ("unscaled-targets", before("times", unscaled_targets.FAR)),
    ("vanishing-gradient", before("steps", first_step.PLANNED)),
    ("vanishing-gradient", tenfold(vanishing_gradient.FADES)),
    ("vanishing-gradient", before("powers of ten", vanishing_gradient.GONE)),
    ("vanishing-gradient", after("under", vanishing_gradient.STILL) + " of their weight"),
    ("vanishing-gradient", after("under", vanishing_gradient.BEHIND) + " of the best"),
    ("vanishing-gradient", before("L / n", flow.SCATTER)),
    ("vanishing-gradient", before("steps", flow.EARLY)),
]


def words(code):
    """What a page says of measurement and threshold, in one line."""
    sections = page(code).sections
    return " ".join(f"{sections['Measurement']} {sections['Threshold']}".split())


@pytest.mark.parametrize(("code", "number"), NUMBERS, ids=[f"{code}: {number}" for code, number in NUMBERS])
def test_a_page_names_the_number_that_the_rule_uses(code, number):
    assert re.search(rf"(?<![\w.-]){re.escape(number)}(?![\w]|\.\d)", words(code)), words(code)


@pytest.mark.parametrize("code", codes())
def test_every_number_of_a_rule_stands_on_its_page(code):
    """Whoever adds a constant to a rule adds it above."""
    module = __import__(f"trimtab.diagnosis.rules.{code.replace('-', '_')}", fromlist=["find"])
    own = [n for n, v in vars(module).items() if n.isupper() and isinstance(v, (int, float)) and not hasattr(flow, n)]
    assert len(own) <= sum(c == code for c, _ in NUMBERS)


@pytest.mark.parametrize("code", codes())
def test_what_counts_as_learning_is_said_where_it_matters(code):
    assert view.LEARNED == 0.5
    if "does not learn" in words(code) or "half of the loss" in words(code):
        assert "half of" in words(code)
    assert "run that learns" not in words(code) or "half of the loss" in words(code)


@pytest.mark.parametrize("code", codes())
def test_no_page_is_unfinished(code):
    from importlib.resources import files

    text = files("trimtab.report").joinpath("pages", "en", f"{code}.md").read_text(encoding="utf-8")
    assert "<!--" not in text
    assert 25 <= len(text.splitlines()) <= 60


# Numbers of the theory that the pages quote ------------------------------------------------------------------------------


def quoted(code, *numbers):
    text = page(code).text
    assert all(number in text for number in numbers), numbers


def test_vanishing_gradient_quotes_the_theory():
    quoted("vanishing-gradient", "1/6", "1.7e-08", "0.0557", "2.9e-13")
    assert f"{(1 / 6) ** 10:.1e}" == "1.7e-08"
    sigmoid, q = activation("sigmoid"), 1.0
    for _ in range(100):
        q = length_map(sigmoid, q, 1.0, 0.0)
    assert chi(sigmoid, q, 1.0) == pytest.approx(0.0557, abs=1e-3)
    assert f"{0.0557**10:.1e}" == "2.9e-13"


def test_exploding_gradient_quotes_the_theory():
    quoted("exploding-gradient", "χ = 32", "3.4e7", "1.467", "norm 2.8")
    assert chi(activation("relu"), 1.0, 64.0) == pytest.approx(32)
    assert f"{32.0**5:.1e}" == "3.4e+07"
    relu = activation("relu")
    assert 0.5 / (0.5 - 1 / (2 * np.pi)) == pytest.approx(1.467, abs=1e-3)  # E phi'^2 / Var phi
    assert chi(relu, 1.0, 2.0) == pytest.approx(1)
    weight = torch.randn(512, 512, generator=torch.Generator().manual_seed(0)) * (2 / 512) ** 0.5
    assert torch.linalg.matrix_norm(weight, 2).item() == pytest.approx(2.8, abs=0.05)


def test_saturated_units_quotes_the_theory():
    quoted("saturated-units", "2.9 %", "79 %", "1.3e-05", "59 %", "21 %")
    tanh, sigmoid = activation("tanh"), activation("sigmoid")
    assert saturated_share(tanh, 1.0) == pytest.approx(0.029, abs=1e-3)
    assert saturated_share(tanh, 64.0) == pytest.approx(0.79, abs=0.01)
    assert saturated_share(sigmoid, 1.0) == pytest.approx(1.3e-5, rel=0.05)
    assert saturated_share(sigmoid, 64.0) == pytest.approx(0.59, abs=0.01)
    q = 1.0
    for _ in range(200):
        q = length_map(tanh, q, 25 / 9, 0.0)
    assert chi(tanh, q, 25 / 9) == pytest.approx(1.21, abs=0.005)


def test_signal_collapse_quotes_the_theory():
    quoted("signal-collapse", "0.334, 0.0559, 0.0097, 0.0019, 0.0007")
    q, found = 1.0, []
    for i in range(5):
        q = (q / 3 if i == 0 else q / 6) + 1 / 3000
        found.append(q)
    assert found == pytest.approx([0.334, 0.0559, 0.0097, 0.0019, 0.0007], abs=6e-5 + 3e-4)


def test_double_softmax_quotes_its_floors():
    for classes, floor in [(2, "0.313"), (10, "1.461"), (1000, "5.909")]:
        quoted("double-softmax", floor)
        assert f"{np.log(np.e + classes - 1) - 1:.3f}" == floor


def test_nonfinite_data_quotes_its_share():
    quoted("nonfinite-data", "every fifth batch")
    spoiled = 1 - (1 - 3 / 400) ** 32
    assert spoiled == pytest.approx(1 / 5, abs=0.02)


def test_a_rate_just_beyond_the_limit():
    quoted("learning-rate-too-high", "1.3e5-fold")
    growth = (2 * 1.01 - 1) ** 300
    assert growth**2 == pytest.approx(1.3e5, rel=0.15)  # the loss grows as the square of the error


def test_a_bias_far_below_zero():
    from scipy.stats import norm

    quoted("dead-units", "Φ(-12)", "2e-33")
    assert f"{norm.cdf(-12):.0e}" == "2e-33"


def test_the_angle_of_the_equilibrium():
    """Gradients at right angles to a weight, as before a norm: growth by the steps against the decay's pull."""
    quoted("excessive-weight-decay", "0.45 rad", "0.014 rad", "0.03156", "0.03162")
    assert f"{(2 * 0.1) ** 0.5:.2f}" == "0.45"
    assert f"{(2 * 1e-4) ** 0.5:.3f}" == "0.014"
    generator, w = np.random.default_rng(0), np.ones(400) / 20
    rate, shrink = 0.05, 0.01
    for momentum in (0.0, 0.9):
        buffer, angles = np.zeros(400), []
        for _ in range(3000):
            g = generator.normal(size=400)
            g -= w * (w @ g) / (w @ w)
            g /= np.linalg.norm(w)  # of a function that does not depend on the size
            buffer = momentum * buffer + g + shrink * w
            after = w - rate * buffer
            angles.append(np.arccos(w @ after / np.linalg.norm(w) / np.linalg.norm(after)))
            w = after
        law = (2 * rate * shrink / (1 + momentum)) ** 0.5
        assert np.mean(angles[-500:]) == pytest.approx(law, rel=0.05)


def test_what_a_decay_leaves_of_a_gain():
    quoted("decayed-norm-parameters", "0.11 after 72 steps", "1.1e-4 after 300")
    assert f"{(1 - 0.03) ** 72:.2f}" == "0.11"
    assert f"{(1 - 0.03) ** 300:.1e}" == "1.1e-04"
