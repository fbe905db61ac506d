"""The pages of `trimtab explain` name the numbers that the rules use: no page may drift from its rule."""

import math
import re

import numpy as np
import pytest
import torch

from trimtab.diagnosis import (
    along_time,
    batch_norms,
    batches_alike,
    conditioning,
    decay,
    evaluation,
    first_step,
    flow,
    fresh,
    view,
)
from trimtab.diagnosis.probes import BATCHES
from trimtab.diagnosis.probes import cannot_overfit_one_batch as overfit
from trimtab.diagnosis.probes import cross_sample_leak as cross_sample_probe
from trimtab.diagnosis.probes import input_ignored as input_probe
from trimtab.diagnosis.probes import targets as sequence_targets
from trimtab.diagnosis.rules import (
    attention_logit_growth,
    clipping_dominates,
    cross_sample_leak,
    dead_units,
    decayed_norm_parameters,
    degenerate_normalization,
    detached_graph,
    duplicated_batches,
    excessive_weight_decay,
    exploding_gradient,
    frozen_parameters,
    ill_conditioned,
    input_ignored,
    learning_rate_too_high,
    learning_rate_too_low,
    lipschitz_blowup,
    loss_at_init_off,
    loss_scale_underflow,
    loss_spike,
    missing_warmup,
    missing_zero_grad,
    nonfinite_loss,
    norm_placement,
    norm_precision,
    output_logit_drift,
    padding_in_batch_stats,
    rank_divergence,
    residual_growth,
    saturated_units,
    signal_collapse,
    small_batch_batchnorm,
    stale_running_stats,
    symmetric_init,
    train_eval_gap,
    unequal_batches,
    unscaled_attention,
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
    ("attention-logit-growth", after("at least", attention_logit_growth.OPEN)),
    ("attention-logit-growth", after("at most", attention_logit_growth.CLOSED)),
    ("attention-logit-growth", after("at least", attention_logit_growth.LARGE)),
    ("attention-logit-growth", before("times the first", attention_logit_growth.GROWN)),
    ("attention-logit-growth", percent(attention_logit_growth.BARELY)),
    ("attention-logit-growth", percent(attention_logit_growth.REGAINED)),
    ("cannot-overfit-one-batch", after("trained on", overfit.SAMPLES)),
    ("cannot-overfit-one-batch", before("steps each", overfit.STEPS)),
    ("cannot-overfit-one-batch", f"a rate of {overfit.RATES[0]:g} and then {overfit.RATES[1]:g}"),
    ("cannot-overfit-one-batch", before("of what the best constant answer", overfit.STUCK)),
    ("cannot-overfit-one-batch", percent(overfit.STILL)),
    ("cannot-overfit-one-batch", before("of the first loss", overfit.STANDS)),
    ("cannot-overfit-one-batch", after("reached at", overfit.FITS)),
    ("clipping-dominates", percent(clipping_dominates.SHARE)),
    ("clipping-dominates", before("times", clipping_dominates.FACTOR)),
    ("clipping-dominates", after("at least", clipping_dominates.ENOUGH)),
    ("cross-sample-leak", before("of the own movement", cross_sample_leak.STRONG)),
    ("cross-sample-leak", before("times as large", cross_sample_probe.FAR)),
    ("dead-units", percent(dead_units.ALL)),
    ("dead-units", percent(dead_units.MANY)),
    ("dead-units", before("looks", dead_units.ENOUGH)),
    ("degenerate-normalization", after("take", degenerate_normalization.TAKEN)),
    ("degenerate-normalization", after("takes", degenerate_normalization.TAKEN_BY_RMS)),
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
    ("duplicated-batches", after("at least", duplicated_batches.STEPS)),
    ("exploding-gradient", tenfold(exploding_gradient.GROWS)),
    ("exploding-gradient", plain(exploding_gradient.LARGE_STEP)),
    ("exploding-gradient", before("times", exploding_gradient.WORSE)),
    ("exploding-gradient", before("L / n", flow.SCATTER)),
    ("exploding-gradient", before("steps", flow.EARLY)),
    ("future-leak", percent(sequence_targets.SAME)),
    ("future-leak", f"{sequence_targets.SHIFTS[0]} to {sequence_targets.SHIFTS[-1]}"),
    ("input-ignored", percent(input_ignored.NOTHING)),
    ("input-ignored", percent(input_ignored.SURELY)),
    ("input-ignored", after("at least", input_ignored.ENOUGH)),
    ("input-ignored", power(input_ignored.SAME).replace("e-", "e-0")),
    ("input-ignored", before("steps first", input_probe.TRIAL)),
    ("input-ignored", before("batches", BATCHES)),
    ("frozen-parameters", plain(fresh.SIGNIFICANCE)),
    ("frozen-parameters", before("recorded steps", frozen_parameters.ENOUGH)),
    ("ill-conditioned", percent(ill_conditioned.SHARE)),
    ("ill-conditioned", percent(ill_conditioned.COSTS)),
    ("ill-conditioned", percent(ill_conditioned.BREAKS)),
    ("ill-conditioned", after("at most", ill_conditioned.SCALE)),
    ("ill-conditioned", before("samples", conditioning.SAMPLES)),
    ("ill-conditioned", before("of them", conditioning.WIDEST)),
    ("ill-conditioned", before("samples for each", conditioning.PER_FEATURE)),
    ("detached-graph", before("recorded steps", detached_graph.ENOUGH)),
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
    ("lipschitz-blowup", before("times", lipschitz_blowup.SLOPE)),
    ("lipschitz-blowup", before("times", lipschitz_blowup.SPREAD)),
    ("lipschitz-blowup", before("times", lipschitz_blowup.BREAKS)),
    ("lipschitz-blowup", before("readings", lipschitz_blowup.FIRST)),
    ("lipschitz-blowup", percent(lipschitz_blowup.SAME)),
    ("loss-at-init-off", before("times the loss of", loss_at_init_off.CLASSES)),
    ("loss-at-init-off", f"{loss_at_init_off.SQUARES:g} times"),
    ("loss-at-init-off", after("at least", loss_at_init_off.SIZE)),
    ("loss-spike", before("losses before", loss_spike.WINDOW)),
    ("loss-spike", before("robust standard deviations", loss_spike.DEVIATIONS)),
    ("loss-spike", percent(loss_spike.REGAINED)),
    ("loss-spike", before("steps of five", loss_spike.LASTS)),
    ("loss-spike", before("times its usual size", loss_spike.OUTLIER)),
    ("loss-spike", before("steps before", loss_spike.BEFORE)),
    ("loss-spike", percent(loss_spike.LATE)),
    ("loss-scale-underflow", percent(loss_scale_underflow.ZEROS)),
    ("loss-scale-underflow", before("times the smallest", loss_scale_underflow.NEAR)),
    ("loss-scale-underflow", before("recorded steps", loss_scale_underflow.EARLY)),
    *(("loss-scale-underflow", f"2{power_of_two}") for power_of_two in ("⁻²⁴", "⁻¹⁴")),
    ("missing-warmup", after("at least", norm_placement.WARM)),
    ("missing-warmup", f"{missing_warmup.BIG:g} to {missing_warmup.WHOLE:g} of the weights"),
    ("missing-warmup", before("times those behind", missing_warmup.SETTLES)),
    ("missing-warmup", after("at most", learning_rate_too_high.LARGE)),
    ("missing-warmup", percent(missing_warmup.JUMPS)),
    ("missing-warmup", percent(missing_warmup.LEFT)),
    ("missing-warmup", before("times what they were", missing_warmup.RISES_ON)),
    ("missing-warmup", before("norms", norm_placement.DEEP)),
    ("missing-zero-grad", percent(missing_zero_grad.SHARE)),
    ("missing-zero-grad", before("at least", missing_zero_grad.ENOUGH)),
    ("nonfinite-loss", power(nonfinite_loss.OVERFLOW)),
    ("nonfinite-loss", percent(nonfinite_loss.MANY)),
    ("output-logit-drift", before("times what it was", output_logit_drift.FAR)),
    ("output-logit-drift", percent(output_logit_drift.BARELY)),
    ("output-logit-drift", percent(output_logit_drift.REGAINED)),
    ("output-logit-drift", before("apart", output_logit_drift.COARSE)),
    ("padding-in-batch-stats", percent(padding_in_batch_stats.SHARE)),
    ("padding-in-batch-stats", before("standard deviations", padding_in_batch_stats.OFFSET)),
    ("padding-in-batch-stats", before("times", padding_in_batch_stats.SPREAD)),
    ("padding-in-batch-stats", before("standard deviations", padding_in_batch_stats.LARGE_OFFSET)),
    ("padding-in-batch-stats", before("times", padding_in_batch_stats.LARGE_SPREAD)),
    ("norm-placement", after("a share of", norm_placement.FLOOR)),
    ("norm-placement", after("from", norm_placement.HIGH)),
    ("norm-placement", before("values", norm_placement.FEW)),
    ("norm-placement", before("norms", norm_placement.DEEP)),
    ("norm-placement", after("rate of at least", norm_placement.WARM)),
    ("norm-placement", plain(norm_placement.REASON) + " in the median"),
    ("norm-placement", after("below", norm_placement.COLLAPSED)),
    ("norm-placement", after("more than", norm_placement.LIVELY)),
    ("norm-placement", after("less than", signal_collapse.ALIVE)),
    ("norm-placement", after("step", signal_collapse.SETTLED)),
    ("norm-placement", percent(learning_rate_too_low.GAINED)),
    ("norm-placement", after("after", learning_rate_too_low.LONG)),
    ("norm-precision", f"{norm_precision.SMALLEST:.0e}"),
    ("norm-precision", plain(norm_precision.LARGEST)),
    ("norm-precision", plain(norm_precision.ROOT)),
    ("norm-precision", after("under", norm_precision.WEAK)),
    ("norm-precision", after("of under", norm_precision.NOTHING)),
    ("norm-precision", before("recorded steps", norm_precision.ENOUGH)),
    ("norm-precision", after("step", norm_precision.SETTLED)),
    ("norm-precision", after("stop a share of", norm_precision.STUCK)),
    ("norm-precision", power(nonfinite_loss.OVERFLOW)),
    ("rank-divergence", power(rank_divergence.BROKEN)),
    ("rank-divergence", before("standard deviations", rank_divergence.SHIFT)),
    ("rank-divergence", after("a factor of", rank_divergence.RATIO)),
    ("residual-growth", before("sums in a row", residual_growth.BLOCKS)),
    ("residual-growth", f"({flow.SCATTER:g} + {residual_growth.LINEAR:g}) / 4n"),
    ("residual-growth", before("times", exploding_gradient.WORSE)),
    ("residual-growth", after("more than", exploding_gradient.LARGE_STEP)),
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
    ("small-batch-batchnorm", before("values", small_batch_batchnorm.FEW)),
    ("small-batch-batchnorm", before("values", small_batch_batchnorm.HARDLY)),
    ("small-batch-batchnorm", before("values or before training", small_batch_batchnorm.PAIR)),
    ("small-batch-batchnorm", percent(view.GAP)),
    ("small-batch-batchnorm", before("times", view.TIMES)),
    ("stale-running-stats", before("standard deviations", stale_running_stats.OFFSET)),
    ("stale-running-stats", before("times", stale_running_stats.STRETCH)),
    ("stale-running-stats", percent(stale_running_stats.LEFT)),
    ("stale-running-stats", before("looks", batch_norms.LATEST)),
    ("stale-running-stats", before("training batches", evaluation.BATCHES)),
    ("stale-running-stats", percent(view.GAP)),
    ("stale-running-stats", before("times", view.TIMES)),
    ("symmetric-init", after("step", symmetric_init.SETTLED)),
    ("train-eval-gap", before("times that of shuffled", batches_alike.ALIKE)),
    ("train-eval-gap", before("batches", batches_alike.LOOKS)),
    ("train-eval-gap", after("at least", train_eval_gap.FORGETS)),
    ("train-eval-gap", after("more than", train_eval_gap.JITTER)),
    ("train-eval-gap", before("times as large", train_eval_gap.SHIFT)),
    ("train-eval-gap", after("from", train_eval_gap.LARGE_SHIFT) + " times on"),
    ("train-eval-gap", percent(view.GAP)),
    ("train-eval-gap", percent(train_eval_gap.UNEXPLAINED)),
    ("train-eval-gap", before("times what", view.TIMES)),
    ("train-eval-gap", before("training batches", evaluation.BATCHES)),
    ("unscaled-inputs", before("times", unscaled_inputs.SPREAD)),
    ("unscaled-inputs", after("of size", unscaled_inputs.SIZE)),
    ("unscaled-inputs", before("spreads", unscaled_inputs.OFFSET)),
    ("unscaled-targets", before("times", unscaled_targets.FAR)),
    ("unequal-batches", before("times the smallest", unequal_batches.RATIO)),
    ("unequal-batches", f"more than {percent(unequal_batches.MOST)}"),
    ("unscaled-attention", after("at least", unscaled_attention.SURE)),
    ("unscaled-attention", before("times that of equal weights", unscaled_attention.ABOVE)),
    ("unscaled-attention", before("times 1/√d", unscaled_attention.USUAL)),
    ("vanishing-gradient", before("steps", first_step.PLANNED)),
    ("vanishing-gradient", before("powers of ten, after", along_time.FORGOTTEN)),
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


def test_transformers_at_high_rates_quote_the_theory():
    for behind, weight in ((5, "6.7e-03"), (20, "2.1e-09"), (50, "1.9e-22")):
        assert f"{1 / (1 + math.exp(behind)):.1e}" == weight
        quoted("attention-logit-growth", f"| {behind} | {weight} |")
    for size in (8, 64, 512):
        steps = [torch.finfo(t).eps * 2.0 ** math.floor(math.log2(size)) for t in (torch.bfloat16, torch.float16)]
        quoted("output-logit-drift", f"| {size} | {steps[0]:g} | {float(f'{steps[1]:.3g}'):g} |")
    assert math.sqrt((1 - 0.9) / (1 + 0.9)) == pytest.approx(0.23, abs=1e-3)
    quoted("missing-warmup", "= 0.23 at")


def test_signal_collapse_quotes_the_theory():
    quoted("signal-collapse", "0.334, 0.0559, 0.0097, 0.0019, 0.0007")
    q, found = 1.0, []
    for i in range(5):
        q = (q / 3 if i == 0 else q / 6) + 1 / 3000
        found.append(q)
    assert found == pytest.approx([0.334, 0.0559, 0.0097, 0.0019, 0.0007], abs=6e-5 + 3e-4)


def test_small_batch_quotes_the_theory():
    from scipy.special import polygamma

    for values, scatter in [(2, "4.9"), (4, "0.93"), (32, "0.067")]:
        quoted("small-batch-batchnorm", f"{scatter} at m = {values}")
        assert polygamma(1, (values - 1) / 2) == pytest.approx(float(scatter), rel=0.01)


def test_train_eval_gap_quotes_the_theory():
    quoted("train-eval-gap", "0.05 at 0.1", "0.98 at 0.99", "5.25 times the variance")
    assert pytest.approx(0.05, abs=0.005) == 0.1 / 1.9
    assert pytest.approx(0.98, abs=0.001) == 0.99 / 1.01
    assert 1 + 0.2 / 0.8 * (1 + 4**2) == 5.25


def test_stale_statistics_quote_the_theory():
    quoted("stale-running-stats", "0.976 at a = 0.0003, t = 80")
    assert pytest.approx(0.976, abs=5e-4) == (1 - 0.0003) ** 80


def test_padding_quotes_the_theory():
    quoted("padding-in-batch-stats", "one standard deviation", "1.5 v")
    assert (0.5 * 2, 0.5 + 0.25 * 2**2) == (1.0, 1.5)


def test_double_softmax_quotes_its_floors():
    for classes, floor in [(2, "0.313"), (10, "1.461"), (1000, "5.909")]:
        quoted("double-softmax", floor)
        assert f"{np.log(np.e + classes - 1) - 1:.3f}" == floor


def test_nonfinite_data_quotes_its_share():
    quoted("nonfinite-data", "every fifth batch")
    spoiled = 1 - (1 - 3 / 400) ** 32
    assert spoiled == pytest.approx(1 / 5, abs=0.02)


def test_residual_growth_quotes_the_theory():
    quoted("residual-growth", "law 4.3e9", "(33)", "(2.677)")
    assert f"{2.0**32:.1e}" == "4.3e+09"
    assert pytest.approx(2.677, abs=5e-4) == (1 + 1 / 32) ** 32


def test_norm_precision_quotes_what_the_formats_hold():
    half = torch.finfo(torch.float16)
    quoted("norm-precision", "3.9 %", "2⁻²⁴")
    assert half.max == norm_precision.LARGEST
    assert half.smallest_normal * half.eps == norm_precision.SMALLEST
    assert torch.tensor([255.0, norm_precision.ROOT]).half().square().isfinite().tolist() == [True, False]
    for name, bits in norm_precision.BITS.items():
        assert 2.0 ** (1 - bits) == torch.finfo(getattr(torch, name)).eps
    assert pytest.approx(0.039, abs=1e-3) == 2.0**-8 / 0.1


def test_loss_scale_underflow_quotes_what_the_format_holds():
    half = torch.finfo(torch.float16)
    quoted("loss-scale-underflow", "2⁻²⁴ = 6e-08", "2⁻²⁵", "2⁻¹⁴", "(2 %)")
    assert loss_scale_underflow.NORMAL == half.smallest_normal == 2.0**-14
    assert loss_scale_underflow.SMALLEST == half.smallest_normal * half.eps == 2.0**-24
    values = torch.tensor([2.0**-25, 1.01 * 2.0**-25]).half()
    assert values.tolist() == [0.0, 2.0**-24]
    size = loss_scale_underflow.NEAR * loss_scale_underflow.SMALLEST * (np.pi / 2) ** 0.5
    gradient = size * torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    assert (gradient.half() == 0).float().mean().item() == pytest.approx(0.02, abs=0.003)


def test_running_statistics_in_a_short_format_stop_where_the_page_says():
    kept, goal = torch.ones(1, dtype=torch.bfloat16), 1.5
    for _ in range(500):
        kept = kept + (0.1 * (goal - kept.float())).to(torch.bfloat16)
    short = (goal - float(kept)) / float(kept)
    assert 0.5 * 2.0**-8 / 0.1 < short <= 2.0**-8 / 0.1


@pytest.mark.parametrize("size", [3, 8, 32])
def test_norm_placement_quotes_what_stays_in_the_loss(size):
    """The least error of predictions of one mean and spread in every batch, found by drawing batches."""
    targets = torch.randn(200_000 // size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means, spreads = targets.mean(1), targets.std(1, correction=0)
    left = float(means.var() + spreads.var())
    assert left == pytest.approx(norm_placement._expected_floor(size), rel=0.1)
    best = means.mean() + spreads.mean() * (targets - means[:, None]) / spreads[:, None]
    assert float((best - targets).square().mean()) == pytest.approx(left, rel=0.01)
    assert norm_placement.FLOOR == 1.5 / 30
    assert norm_placement.HIGH == 1.5 / 6
    quoted("norm-placement", "3.3 for 20 layers")
    assert pytest.approx(3.3, abs=0.02) == (1 + 20 / 2) ** 0.5


def test_a_step_of_adam_after_a_long_quiet():
    quoted("loss-spike", "3.2 times the rate")
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=1.0)
    for _ in range(5000):
        weight.grad = torch.tensor([1e-6]) * (-1) ** _
        optimizer.step()
    before = weight.item()
    weight.grad = torch.tensor([1.0])
    optimizer.step()
    assert before - weight.item() == pytest.approx(3.2, abs=0.05)


def test_the_loss_of_logits_that_know_nothing():
    quoted("loss-at-init-off", "ln 2 + s²/8", "ln K + s²/2 (1 - 1/K)")
    z, s = torch.randn(4_000_000, generator=torch.Generator().manual_seed(0)), 0.5
    assert float(torch.nn.functional.softplus(s * z).mean()) == pytest.approx(np.log(2) + s**2 / 8, rel=2e-3)


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


def test_unscaled_attention_quotes_softmaxes_of_normal_logits():
    """By 20,000 draws of 32 logits; the second digit is sure to half of one."""
    draws = np.random.default_rng(0).normal(size=(20_000, 32))
    for d, share in ((1, 0.16), (16, 0.64), (64, 0.82)):
        weights = np.exp(math.sqrt(d) * draws)
        largest = float((weights / weights.sum(1, keepdims=True)).max(1).mean())
        assert largest == pytest.approx(share, abs=0.006)
        quoted("unscaled-attention", f"| {d} | {d} | {share} |")
    assert float(np.abs(8 * (draws[:, 0] - draws[:, 1])).mean()) == pytest.approx(9, abs=0.2)
    quoted("unscaled-attention", "differ by nine in the mean")
