"""Every rule on records made by hand: what it needs to speak, and what keeps it silent."""

import math

import numpy as np
import pytest
from diagnosis_cases import Made, evidence, findings, fresh_quantiles, only, row, stuck, trained_quantiles

from trimtab.diagnosis.rules import (
    RULES,
    clipping_dominates,
    dead_units,
    decayed_norm_parameters,
    double_softmax,
    excessive_weight_decay,
    exploding_gradient,
    frozen_parameters,
    learning_rate_too_high,
    learning_rate_too_low,
    missing_from_optimizer,
    missing_zero_grad,
    nonfinite_data,
    nonfinite_loss,
    saturated_units,
    signal_collapse,
    symmetric_init,
    unscaled_inputs,
    unscaled_targets,
    vanishing_gradient,
)
from trimtab.report import codes


def test_every_code_has_its_rule():
    assert {rule.__module__.rpartition(".")[2].replace("_", "-") for rule in RULES} == set(codes())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__module__.rpartition(".")[2])
def test_an_unremarkable_record_is_left_in_peace(rule):
    assert list(rule(Made().view)) == []
    assert list(rule(Made(loss=[]).view)) == []


# nonfinite-data -------------------------------------------------------------------------------------------------------


def rows_with(step, bad, steps=30, **more):
    return [row(nonfinite=bad if i == step else 0, **more) for i in range(steps)]


@pytest.mark.parametrize("kind", ["input", "target"])
def test_nonfinite_data_names_the_first_batch(kind):
    made = Made()
    made.set("input[0]" if kind == "input" else "batch[1]", kind, rows_with(4, 3))
    made.losses[4] = math.nan
    finding, begins = only(nonfinite_data, made)
    assert (finding.severity, finding.where, begins) == ("error", ("data",), 4)
    assert "step 4" in finding.summary
    assert finding.evidence[0].measured == 3
    assert finding.evidence[0].step == 4


def test_nonfinite_values_that_reach_neither_loss_nor_gradient_are_a_mask():
    made = Made()
    made.set("input[1]", "input", [row(nonfinite=28)] * 30)
    assert findings(nonfinite_data, made) == []
    made.set("b.weight", "raw-gradient", rows_with(4, 3))
    assert only(nonfinite_data, made).begins == 4


def test_nonfinite_data_behind_a_lost_run_is_no_fault_of_the_data():
    made = Made(loss=[2.0] * 3 + [math.nan] * 27)
    made.set("input[0]", "input", rows_with(9, 3))
    assert findings(nonfinite_data, made) == []
    made = Made()
    made.set("input[0]", "input", rows_with(9, 3))
    made.set("a.weight", "parameter", rows_with(9, 3))
    made.losses[9] = math.nan
    assert findings(nonfinite_data, made) == []


# missing-zero-grad ----------------------------------------------------------------------------------------------------


def uncleared(seen, steps=30):
    made = Made(loss=stuck(steps), steps=steps)
    made.uncleared = [["a.weight"] if seen(i) else [] for i in range(steps)]
    return made


def test_missing_zero_grad():
    finding, begins = only(missing_zero_grad, uncleared(lambda i: i > 0))
    assert (finding.severity, finding.where, begins) == ("error", ("loop",), 0)
    assert evidence(finding, "not cleared").measured == 1.0


def test_missing_zero_grad_in_a_run_that_learns_is_a_warning():
    made = uncleared(lambda i: i > 0)
    made.losses = [2.0] * 10 + [0.1] * 20
    assert only(missing_zero_grad, made).finding.severity == "warning"


@pytest.mark.parametrize("seen", [lambda i: i % 2 == 1, lambda i: i % 4 != 0, lambda i: i in (1, 2), lambda i: i % 8])
def test_gradients_that_are_cleared_now_and_then(seen):
    assert findings(missing_zero_grad, uncleared(seen)) == []


def test_missing_zero_grad_needs_three_steps():
    assert findings(missing_zero_grad, uncleared(lambda i: i > 0, 3)) == []
    assert len(findings(missing_zero_grad, uncleared(lambda i: i > 0, 4))) == 1


# missing-from-optimizer, frozen-parameters ------------------------------------------------------------------------------


def left_out(*names, registered=True, sketch=fresh_quantiles, loss=None):
    made = Made(loss=stuck() if loss is None else loss)
    for name in names:
        made.parameters[name] |= {"optimized": False, "registered": registered}
        if len(made.parameters[name]["shape"]) > 1:
            made.parameters[name]["quantiles"] = sketch(made.parameters[name]["shape"])
        made.set(name, "update", None)
        made.set(name, "parameter-gradient", None)
    return made


def test_missing_from_optimizer():
    finding, begins = only(missing_from_optimizer, left_out("a.weight", "a.bias", "b.weight"))
    assert (finding.severity, finding.where, begins) == ("error", ("a", "b"), 0)
    assert evidence(finding, "without an optimizer").measured == 3
    total = 3 * (16 * 16 + 16)
    assert evidence(finding, "share of all weights").measured == pytest.approx((2 * 256 + 16) / total)


def test_an_optimizer_of_what_is_no_longer_there():
    made = left_out(*Made().parameters, sketch=trained_quantiles)
    made.active = False
    finding = only(missing_from_optimizer, made).finding
    assert finding.severity == "error"
    assert "made anew" in finding.summary


def test_missing_from_optimizer_weighs_less_where_the_run_learns_or_the_weights_are_trained():
    learns = [2.0] * 10 + [0.1] * 20
    assert only(missing_from_optimizer, left_out("a.weight", loss=learns)).finding.severity == "warning"
    assert only(missing_from_optimizer, left_out("a.weight", sketch=trained_quantiles)).finding.severity == "note"
    hidden = left_out("a.weight", sketch=trained_quantiles, registered=False)
    assert only(missing_from_optimizer, hidden).finding.severity == "error"


def test_missing_from_optimizer_needs_a_gradient():
    made = left_out("a.weight")
    made.set("a.weight", "raw-gradient", None)
    assert findings(missing_from_optimizer, made) == []
    made.set("a.weight", "raw-gradient", row(0.0))
    assert findings(missing_from_optimizer, made) == []


def frozen(*names, sketch=fresh_quantiles, loss=None):
    made = left_out(*names, sketch=sketch, loss=loss)
    for name in names:
        made.parameters[name]["trainable"] = False
        made.set(name, "raw-gradient", None)
    return made


def test_frozen_while_still_a_fresh_draw():
    finding, begins = only(frozen_parameters, frozen("a.weight", "a.bias", "b.weight"))
    assert (finding.severity, finding.where, begins) == ("error", ("a", "b"), 0)
    assert evidence(finding, "agree with a fresh draw").measured == 2


def test_frozen_after_training_is_in_order():
    assert findings(frozen_parameters, frozen("a.weight", "b.weight", sketch=trained_quantiles)) == []


def test_frozen_in_a_run_that_learns_is_a_note():
    assert only(frozen_parameters, frozen("a.weight", loss=[2.0] * 10 + [0.1] * 20)).finding.severity == "note"


def test_frozen_needs_half_of_the_frozen_weights_to_look_fresh():
    made = frozen("a.weight", "b.weight", "c.weight", sketch=trained_quantiles)
    made.parameters["a.weight"]["quantiles"] = fresh_quantiles([16, 16])
    assert findings(frozen_parameters, made) == []
    made.parameters["b.weight"]["quantiles"] = fresh_quantiles([16, 16], 1)
    assert only(frozen_parameters, made).finding.where == ("a", "b")


def test_frozen_modules_that_never_ran_do_not_count():
    made = frozen("a.weight")
    del made.links["a"]
    made.links["a_act"]["sources"] = []
    assert findings(frozen_parameters, made) == []


def test_parameters_that_no_gradient_reaches():
    made = Made(loss=stuck())
    for name in ("a.weight", "a.bias"):
        made.set(name, "raw-gradient", None)
    finding, _ = only(frozen_parameters, made)
    assert (finding.severity, finding.where) == ("error", ("a",))
    assert evidence(finding, "without any gradient").measured == 2
    made.losses = [2.0] * 10 + [0.1] * 20
    assert only(frozen_parameters, made).finding.severity == "warning"


def test_never_reached_needs_five_steps_and_somebody_who_is():
    made = Made(loss=stuck(4), steps=4)
    made.set("a.weight", "raw-gradient", None)
    assert findings(frozen_parameters, made) == []
    made = Made(loss=stuck())
    for name in made.parameters:
        made.set(name, "raw-gradient", None)
    assert findings(frozen_parameters, made) == []  # the loss is cut off: detached-graph


def test_gradients_that_are_gone_before_the_step():
    made = Made(loss=stuck())
    for name in made.parameters:
        made.set(name, "parameter-gradient", None)
    finding = only(frozen_parameters, made).finding
    assert (finding.severity, finding.where) == ("error", ("loop",))


def test_a_bias_that_training_has_moved_speaks_for_its_weight():
    made = frozen("a.weight", "a.bias", "b.weight", "c.weight")
    assert only(frozen_parameters, made).finding.where == ("a", "b", "c")
    made.parameters["a.bias"]["quantiles"] = np.linspace(-3, 3, 33).tolist()
    assert only(frozen_parameters, made).finding.where == ("b", "c")


def test_what_was_trained_under_watch_is_no_fresh_draw():
    made = frozen("a.weight", "b.weight")
    for name in ("a.weight", "b.weight"):
        made.parameters[name]["updated"] = True
    assert findings(frozen_parameters, made) == []


# double-softmax, symmetric-init -----------------------------------------------------------------------------------------


def test_double_softmax():
    made = Made()
    made.details["loss"]["softmax"] = "0:c"
    finding, begins = only(double_softmax, made)
    assert (finding.severity, finding.where, begins) == ("error", ("c",), 0)
    assert evidence(finding, "smallest loss").measured == pytest.approx(1.4612, abs=1e-4)
    made.details["loss"]["softmax"] = ""
    assert only(double_softmax, made).finding.where == ("loss",)


def test_double_sigmoid_has_no_floor():
    made = Made()
    made.details["loss"] |= {
        "softmax": "0:c",
        "kind": "BinaryCrossEntropyWithLogits",
        "operations": ["BinaryCrossEntropyWithLogits"],
    }
    finding, _ = only(double_softmax, made)
    assert "sigmoid" in finding.summary
    assert not any("smallest loss" in e.name for e in finding.evidence)


def test_symmetric_init():
    made = Made(loss=stuck())
    made.details["distinct"] |= {"0:b.weight": [1, 16]}
    finding, begins = only(symmetric_init, made)
    assert (finding.severity, finding.where, begins) == ("error", ("b",), 0)
    assert evidence(finding, "at the start").measured == 1
    made.losses = [2.0] * 10 + [0.1] * 20
    assert only(symmetric_init, made).finding.severity == "warning"


def test_symmetric_init_leaves_what_is_not_trained_or_one_unit_wide():
    made = Made(loss=stuck())
    made.details["distinct"] |= {"0:b.weight": [1, 16]}
    made.parameters["b.weight"]["optimized"] = False
    assert findings(symmetric_init, made) == []
    made = Made(loss=stuck(), width=1)
    made.details["distinct"] = {f"0:{n}.weight": [1, 1] for n in "abc"}
    assert findings(symmetric_init, made) == []


# Units --------------------------------------------------------------------------------------------------------------------


def test_dead_units():
    made = Made(loss=stuck())
    made.look("b_act", silent=16)
    finding, begins = only(dead_units, made)
    assert (finding.severity, finding.where, begins) == ("error", ("b", "b_act"), 0)
    assert evidence(finding, "off on every sample").measured == 1.0
    made.losses = [2.0] * 10 + [0.1] * 20
    assert only(dead_units, made).finding.severity == "warning"


def test_dead_units_three_quarters_of_a_layer():
    made = Made(loss=stuck())
    made.look("b_act", silent=12)
    assert only(dead_units, made).finding.severity == "warning"
    made.look("b_act", silent=11)
    assert findings(dead_units, made) == []


def test_dead_units_must_stay_so():
    made = Made(loss=stuck())
    looks = len([s for s in range(30) if s < 8 or s in (8, 11, 16, 23)])
    made.look("b_act", silent=[16] * (looks - 1) + [3])
    assert findings(dead_units, made) == []
    made.look("b_act", silent=[3] * (looks - 3) + [16] * 3)
    finding, begins = only(dead_units, made)
    assert begins == 11
    assert "from step 11" in finding.summary


def test_dead_units_name_the_first_layer_only_in_front_of_what_follows_from_it():
    made = Made("abcd", loss=stuck())
    for name in ("b_act", "c_act"):
        made.look(name, silent=16)
    assert only(dead_units, made).finding.where[0] == "b"


def test_dead_units_need_a_rectifier():
    made = Made(loss=stuck(), act="GELU")
    made.look("b_act", silent=16)
    assert findings(dead_units, made) == []


def test_dead_units_behind_a_function():
    made = Made("ab", loss=stuck())
    del made.links["a_act"]
    made.links["b"] |= {"operations": ["Relu"], "sources": ["a"]}
    made.look("b", silent=16, kind="input")
    assert only(dead_units, made).finding.where == ("a",)


def saturated(edge, **more):
    made = Made(loss=stuck(), act="Tanh", **more)
    made.look("a_act", edge=edge)
    return made


def test_saturated_units():
    finding, begins = only(saturated_units, saturated(0.8))
    assert (finding.severity, finding.where, begins) == ("error", ("a", "a_act"), 0)
    assert evidence(finding, "saturated values").measured == pytest.approx(0.8, abs=1e-6)
    assert evidence(finding, "saturated values").expected == pytest.approx(0.0295, abs=1e-3)


def test_saturated_units_half_of_the_values():
    assert findings(saturated_units, saturated(0.5)) == []
    assert len(findings(saturated_units, saturated(0.51))) == 1


def test_saturated_units_later_in_the_run_are_a_warning():
    made = saturated([0.1] * 4 + [0.9] * 8)
    finding, begins = only(saturated_units, made)
    assert (finding.severity, begins) == ("warning", 4)
    made.losses = [2.0] * 10 + [0.1] * 20
    assert only(saturated_units, made).finding.severity == "note"


def test_the_last_sigmoid_may_be_sure():
    made = saturated(0.9)
    made.details["loss"]["sources"] = ["0:a_act"]
    assert findings(saturated_units, made) == []


def test_signal_collapse_at_one_module():
    made = Made(loss=stuck())
    made.modules["a"]["class"] = "GroupNorm"
    made.look("a_act", signal=0.4)
    made.look("b", constant=16, signal=0.0)
    made.look("c", constant=16, signal=0.0)
    finding, begins = only(signal_collapse, made)
    assert (finding.severity, finding.where[0], begins) == ("error", "b", 0)
    assert "Nothing of the input reaches the loss" in finding.summary
    assert evidence(finding, "units that vary").measured == 0


def test_signal_collapse_in_training_begins_when_it_does():
    made = Made(loss=stuck())
    made.look("a_act", signal=0.4)
    made.look("b", signal=[0.3, 1e-3] + [1e-13] * 10)
    finding, begins = only(signal_collapse, made)
    assert finding.where[0] == "b"
    assert begins == 2


def test_an_offset_of_the_output_is_no_collapse():
    made = Made(loss=stuck())
    for name in ("a", "a_act", "b", "b_act"):
        made.look(name, signal=0.4)
    made.look("c", signal=6e-7)
    assert findings(signal_collapse, made) == []


def test_signal_collapse_is_not_laid_on_a_pooling():
    made = Made(loss=stuck())
    made.modules["a_act"]["class"] = "Flatten"
    made.look("a", signal=0.4)
    made.look("a_act", signal=1e-9)
    assert findings(signal_collapse, made) == []


def test_signal_collapse_with_depth():
    made = Made("abcd", loss=stuck())
    for name, share in [("a", 0.5), ("b", 1e-2), ("c", 1e-4), ("d", 1e-6)]:
        made.look(name, signal=share)
    finding, begins = only(signal_collapse, made)
    assert (finding.severity, finding.where, begins) == ("error", ("c", "d"), 1)
    made.losses = [2.0] * 10 + [0.1] * 20
    assert findings(signal_collapse, made) == []


def test_a_faint_signal_that_reaches_the_output_is_no_collapse():
    made = Made("abcd", loss=stuck())
    for name, share in [("a", 0.5), ("b", 1e-2), ("c", 1e-3), ("d", 1e-4)]:
        made.look(name, signal=share)
    assert findings(signal_collapse, made) == []


# Gradients ------------------------------------------------------------------------------------------------------------------


def flowing(factor, update=None, loss=None, steps=30, layers="abcdef", width=400):
    """A chain whose squared gradient is multiplied by a factor at each layer on the way back."""
    made = Made(layers, loss=stuck(steps) if loss is None else loss, steps=steps, width=width)
    for i, name in enumerate(reversed(layers)):
        made.set(name, "gradient", row(1e-2 * factor ** (i / 2)))
        if update is not None:
            made.set(f"{name}.weight", "update", row(update(i), count=width * width))
    return made


def test_vanishing_gradient():
    made = flowing(0.1, lambda i: 1e-3 * 10.0**-i)
    finding, begins = only(vanishing_gradient, made)
    assert (finding.severity, begins) == ("error", 0)
    assert finding.where == ("a", "b", "c", "d", "e")
    assert evidence(finding, "per layer").measured == pytest.approx(0.1, rel=1e-5)
    assert evidence(finding, "a over that at f").measured == pytest.approx(1e-5, rel=1e-5)
    assert "1/10" in finding.summary


def test_vanishing_gradient_that_moves_the_weights_all_the_same_is_a_note_or_nothing():
    assert only(vanishing_gradient, flowing(0.01, lambda i: 1e-3)).finding.severity == "note"
    assert only(vanishing_gradient, flowing(0.1, lambda i: 1e-3)).finding.severity == "note"
    assert findings(vanishing_gradient, flowing(0.3, lambda i: 1e-3)) == []
    learns = flowing(0.01, lambda i: 1e-3 * 10.0**-i, loss=[2.0] * 10 + [0.1] * 20)
    assert only(vanishing_gradient, learns).finding.severity == "note"


def test_vanishing_gradient_within_what_width_and_depth_scatter():
    tolerance = 3 * math.sqrt(5 * 6 / 400) / math.log(10)
    least = 10 ** -((tolerance + 1) / 5)
    assert findings(vanishing_gradient, flowing(least * 1.02, lambda i: 1e-3 * 10.0**-i)) == []
    assert len(findings(vanishing_gradient, flowing(least * 0.98, lambda i: 1e-3 * 10.0**-i))) == 1


def test_exploding_gradient():
    made = flowing(10.0, lambda i: 1.0, loss=[2.3, 1e6, *[50.0] * 28])
    finding, begins = only(exploding_gradient, made)
    assert (finding.severity, begins) == ("error", 0)
    assert evidence(finding, "per layer").measured == pytest.approx(10.0, rel=1e-5)
    assert evidence(finding, "a over that at f").measured == pytest.approx(1e5, rel=1e-5)
    assert evidence(finding, "first update").measured == pytest.approx(10.0, rel=1e-5)


def test_exploding_gradient_that_the_run_bears_is_a_note_or_nothing():
    assert findings(exploding_gradient, flowing(3.0, lambda i: 1e-4)) == []
    assert only(exploding_gradient, flowing(30.0, lambda i: 1e-4)).finding.severity == "note"
    learns = flowing(30.0, lambda i: 1.0, loss=[2.0] * 10 + [0.1] * 20)
    assert only(exploding_gradient, learns).finding.severity == "note"


# Data's scale ----------------------------------------------------------------------------------------------------------------


def channels(sizes, means=None):
    means = [0.0] * len(sizes) if means is None else means
    made = Made(loss=stuck())
    made.channels["input[0]", "input"] = [row(s, m) for s, m in zip(sizes, means, strict=True)]
    return made


def test_unscaled_inputs_by_spread():
    finding, begins = only(unscaled_inputs, channels([1.0, 2.0, 1.0, 300.0, 1.0]))
    assert (finding.severity, finding.where, begins) == ("error", ("data",), 0)
    assert "feature 3" in finding.summary
    assert evidence(finding, "over median").measured == pytest.approx(300, rel=1e-5)
    assert findings(unscaled_inputs, channels([1.0, 1.0, 29.0, 1.0])) == []


def test_unscaled_inputs_by_size_and_by_offset():
    assert "of size" in only(unscaled_inputs, channels([100.0] * 4)).finding.summary
    assert findings(unscaled_inputs, channels([16.0] * 4)) == []
    finding = only(unscaled_inputs, channels([10.0] * 4, [9.999] * 4)).finding
    assert "70.7 times their spread away from zero" in finding.summary
    assert finding.evidence[0].measured == pytest.approx(9.999 / math.sqrt(10**2 - 9.999**2), rel=1e-3)
    assert findings(unscaled_inputs, channels([0.5] * 4, [0.49999] * 4)) == []


def test_unscaled_inputs_leave_runs_that_learn_and_nets_that_normalize_at_once():
    made = channels([300.0] * 4)
    made.losses = [2.0] * 10 + [0.1] * 20
    assert findings(unscaled_inputs, made) == []
    made = channels([300.0] * 4)
    made.modules["a_act"]["class"] = "BatchNorm1d"
    assert findings(unscaled_inputs, made) == []


def targets(mean, std, **loss):
    made = Made(loss=stuck(at=mean**2 + std**2))
    made.details["loss"] = {
        "operations": ["MseLoss"], "sources": ["0:c"], "kind": "MseLoss", "softmax": None,
        "prediction": {"shape": [64, 1], "mean": 0.0, "std": 0.5}, "target": {"shape": [64, 1], "mean": mean, "std": std},
    } | loss  # fmt: skip
    return made


def test_unscaled_targets():
    finding, begins = only(unscaled_targets, targets(1000.0, 200.0))
    assert (finding.severity, finding.where, begins) == ("error", ("data",), 0)
    assert evidence(finding, "root mean square").measured == pytest.approx(math.hypot(1000, 200))
    assert findings(unscaled_targets, targets(25.0, 10.0)) == []
    assert len(findings(unscaled_targets, targets(29.0, 10.0))) == 1


def test_unscaled_targets_beside_large_outputs_and_class_numbers():
    assert (
        findings(unscaled_targets, targets(1000.0, 200.0, prediction={"shape": [64, 1], "mean": 0.0, "std": 100.0}))
        == []
    )
    assert findings(unscaled_targets, targets(1000.0, 200.0, target={"shape": [64], "dtype": "int64"})) == []


# Steps -------------------------------------------------------------------------------------------------------------------------


def test_learning_rate_too_high_by_a_loss_that_grows_tenfold():
    made = Made(loss=[2.0, 8.0, 19.0, 21.0, *[300.0] * 26])
    made.set("b.weight", "update", row(0.02, count=256))
    assert findings(learning_rate_too_high, made) == []  # no step was large: another batch
    made.set("b.weight", "update", [row(0.04 if i == 2 else 0.001, count=256) for i in range(30)])
    finding, begins = only(learning_rate_too_high, made)
    assert (finding.severity, finding.where, begins) == ("error", ("optimizer",), 2)
    assert evidence(finding, "largest loss").measured == pytest.approx(150)
    assert findings(learning_rate_too_high, Made(loss=[2.0, *[19.0] * 29])) == []
    assert findings(learning_rate_too_high, Made(loss=[2.0, 300.0, 9.0, 5.0, 3.0, *[0.5] * 25])) == []


def test_learning_rate_too_high_by_a_loss_that_does_not_settle():
    made = Made(loss=stuck())
    for name in "abc":
        made.set(f"{name}.weight", "update", row(0.04, count=256))
    assert "does not settle" in only(learning_rate_too_high, made).finding.summary
    for name in "abc":
        made.set(f"{name}.weight", "update", row(0.025, count=256))
    assert findings(learning_rate_too_high, made) == []


def test_learning_rate_too_high_by_layers_that_die():
    made = Made(loss=stuck())
    for name in "abc":
        made.set(f"{name}.weight", "update", row(0.005, count=256))
    made.look("b_act", silent=[3] * 5 + [16] * 7)
    assert "by step 5" in only(learning_rate_too_high, made).finding.summary
    for name in "abc":
        made.set(f"{name}.weight", "update", row(0.002, count=256))
    assert findings(learning_rate_too_high, made) == []


def slow(update, steps=120, loss=None):
    made = Made(loss=[2.3 - 1e-4 * i for i in range(steps)] if loss is None else loss, steps=steps)
    for name in "abc":
        made.set(f"{name}.weight", "update", row(update, count=256))
    return made


def test_learning_rate_too_low():
    finding, begins = only(learning_rate_too_low, slow(1e-5))
    assert (finding.severity, finding.where, begins) == ("error", ("optimizer",), 0)
    assert evidence(finding, "path").measured == pytest.approx(120 * 1e-4, rel=1e-4)
    assert evidence(finding, "gradient norm").measured == pytest.approx(1.0, rel=1e-5)
    assert findings(learning_rate_too_low, slow(1e-4)) == []


def test_learning_rate_too_low_is_not_said_of_a_run_that_has_arrived_or_moves():
    arrived = slow(1e-5)
    for name in arrived.parameters:
        arrived.set(name, "raw-gradient", [row(1e-2 if i < 40 else 1e-4) for i in range(120)])
    assert findings(learning_rate_too_low, arrived) == []
    assert findings(learning_rate_too_low, slow(1e-5, loss=np.linspace(2.3, 1.5, 120))) == []
    assert findings(learning_rate_too_low, slow(1e-5, loss=np.full(120, 0.2))) == []  # trained before
    assert findings(learning_rate_too_low, slow(1e-5, steps=99)) == []
    assert findings(learning_rate_too_low, slow(1e-5, loss=[2.3] * 119 + [math.nan])) == []


def test_a_schedule_that_ends_the_run():
    made = slow(1e-3, steps=60)
    made.rates = [0.1 * 0.7**i for i in range(60)]
    finding, begins = only(learning_rate_too_low, made)
    assert (finding.severity, finding.where) == ("error", ("optimizer", "loop"))
    assert begins == math.ceil(math.log(1e-3) / math.log(0.7))
    made.rates = [0.1 if i < 45 else 1e-6 for i in range(60)]
    assert findings(learning_rate_too_low, made) == []
    made.rates = [0.1 if i < 40 else 1e-6 for i in range(60)]
    made.losses = [2.0] * 10 + [0.1] * 50
    assert findings(learning_rate_too_low, made) == []


def test_a_warm_up_from_zero_ends_nothing():
    made = slow(1e-3, steps=60)
    made.rates = [0.0] * 30 + [0.1] * 30
    assert findings(learning_rate_too_low, made) == []


def test_a_schedule_is_judged_optimizer_by_optimizer():
    made = slow(1e-3, steps=60)
    made.rates, made.stepped = [0.1, 5e-5] * 30, [1, 2] * 30
    assert findings(learning_rate_too_low, made) == []
    made.rates[20:] = [1e-6, 1e-12] * 20
    finding, begins = only(learning_rate_too_low, made)
    assert begins == 21
    assert "from 5e-05 to 1e-12" in finding.summary


def clipped(factor, share=1.0, **more):
    """Steps of which a share is shortened by a factor."""
    made = Made(loss=stuck(40), steps=40, **more)
    for name in made.parameters:
        rows = [row(1e-2 / (factor if i % 20 < 20 * share else 1.0)) for i in range(40)]
        made.set(name, "parameter-gradient", rows)
        made.set(name, "raw-gradient", row(1e-2))
    return made


def test_clipping_dominates():
    finding, _ = only(clipping_dominates, clipped(50.0))
    assert (finding.severity, finding.where) == ("error", ("loop",))
    assert "50" in finding.summary
    assert evidence(finding, "clipped").measured == 1.0
    norm = math.sqrt(6 * 64) * 1e-2
    assert evidence(finding, "before clipping").measured == pytest.approx(norm, rel=1e-5)
    assert evidence(finding, "optimizer used").measured == pytest.approx(norm / 50, rel=1e-5)


def test_clipping_now_and_then_or_by_little_is_what_it_is_for():
    assert findings(clipping_dominates, clipped(50.0, 0.5)) == []
    assert findings(clipping_dominates, clipped(4.0)) == []
    assert findings(clipping_dominates, clipped(1.0)) == []


def test_clipping_under_adam_is_a_note_and_loss_scaling_is_no_clipping():
    assert only(clipping_dominates, clipped(50.0, optimizer="Adam")).finding.severity == "note"
    assert findings(clipping_dominates, clipped(65536.0)) == []


# nonfinite-loss -------------------------------------------------------------------------------------------------------------


def lost(*sites, step=6, steps=30):
    made = Made(loss=[2.0] * step + [math.nan] * (steps - step), steps=steps)
    for name, kind in sites:
        made.set(name, kind, [row(nonfinite=3 if i >= step else 0) for i in range(steps)])
    return made


def test_nonfinite_loss_names_the_first_output():
    finding, begins = only(nonfinite_loss, lost(("b", "output"), ("c", "output"), ("a.weight", "raw-gradient")))
    assert (finding.severity, finding.where, begins) == ("error", ("b",), 6)
    assert evidence(finding, "first step").measured == 6
    assert evidence(finding, "loss before").measured == 2.0


def test_nonfinite_loss_with_finite_outputs():
    assert only(nonfinite_loss, lost()).finding.where == ("loss",)
    assert only(nonfinite_loss, lost(("a.weight", "raw-gradient"))).finding.where == ("loss",)


def test_a_gradient_under_a_finite_loss():
    """The gradient at a is the first that is none: the backward pass of what runs behind it made it."""
    made = Made()
    made.set("a", "gradient", rows_with(5, 4))
    finding, begins = only(nonfinite_loss, made)
    assert begins == 5
    assert finding.where == ("b",)
    made.set("c", "gradient", rows_with(5, 4))  # the last output's own: it comes out of the loss
    assert only(nonfinite_loss, made).finding.where == ("loss",)
    made = Made()
    made.set("a.weight", "raw-gradient", rows_with(5, 4))
    assert only(nonfinite_loss, made).finding.where == ("a.weight",)


def test_parameters_that_were_lost_before():
    assert only(nonfinite_loss, lost(("a.weight", "parameter"), ("a", "output"))).finding.where == ("a.weight",)


# excessive-weight-decay, decayed-norm-parameters ----------------------------------------------------------------------


def falling(share, steps=30, size=0.1, count=256):
    """A parameter that loses a share of itself at each step."""
    return [row(size * (1 - share) ** i, count=count) for i in range(steps)]


def decaying(pull=0.1, loss=None, optimizer="SGD", **settings):
    """Weights that follow a decay with rate 0.1, all of them, and nothing else."""
    made = Made(loss=stuck() if loss is None else loss, optimizer=optimizer)
    made.settings = {"lr": 0.1, "weight_decay": pull / 0.1} | settings
    for name in "abc":
        made.set(f"{name}.weight", "parameter", falling(pull))
        made.set(f"{name}.weight", "update", falling(pull, size=0.1 * pull))
        made.set(f"{name}.weight", "parameter-gradient", row(1e-9, count=256))
    return made


def with_norms(made, share, own="weight"):
    """A norm behind each layer, with a gain that loses a share of itself at each step."""
    for name in "abc":
        norm = f"{name}_norm"
        made.modules[norm] = made._module("BatchNorm1d", ["weight", "bias"])
        made.links[norm] = {"operations": [], "sources": [name], "own": "NativeBatchNorm"}
        made.parameters[f"{norm}.{own}"] = made._parameter(norm, [16])
        made.set(f"{norm}.{own}", "parameter", falling(share, size=1.0, count=16))
    return made


def test_weights_that_follow_their_decay():
    finding, begins = only(excessive_weight_decay, decaying())
    assert (finding.severity, finding.where) == ("error", ("optimizer",))
    assert evidence(finding, "share of a weight").measured == pytest.approx(0.1)
    assert evidence(finding, "weights at the end").measured == pytest.approx(0.9**29, rel=1e-6)
    assert evidence(finding, "size of the decay's part").measured == pytest.approx(1.0)
    assert begins == 6  # 0.9 ** 7 is the first below a half
    assert "weight_decay=0.001" in finding.repairs[0].code


@pytest.mark.parametrize(
    ("optimizer", "settings", "pull"),
    [
        ("SGD", {"momentum": 0.9, "weight_decay": 0.1}, 0.1),
        ("SGD", {"momentum": 0.9, "dampening": 0.9, "weight_decay": 1.0}, 0.1),
        ("AdamW", {"weight_decay": 1.0, "momentum": 0.9}, 0.1),
        ("Adam", {"weight_decay": 1.0, "decoupled_weight_decay": True}, 0.1),
    ],
)
def test_the_pull_of_an_optimizer(optimizer, settings, pull):
    finding = only(excessive_weight_decay, decaying(optimizer=optimizer, **settings)).finding
    assert evidence(finding, "share of a weight").measured == pytest.approx(pull)


def test_a_decay_that_adam_divides_with_the_gradient():
    made = decaying(optimizer="Adam", weight_decay=0.01, lr=1e-3)
    pull = 1e-3 * 0.01 / math.hypot(0.01 * 0.1 * 0.9**14.5, 1e-9)
    finding = only(excessive_weight_decay, with_rate(made, 1e-3)).finding
    assert evidence(finding, "share of a weight").measured == pytest.approx(pull, rel=0.02)
    made.set("a.weight", "parameter-gradient", row(1.0, count=256))
    made.set("b.weight", "parameter-gradient", row(1.0, count=256))
    assert findings(excessive_weight_decay, with_rate(made, 1e-3)) == []


def with_rate(made, rate):
    """The record of a run with another rate at every step."""
    record = made.record
    for info in record.info:
        info["rates"] = [[rate]]
    return record


@pytest.mark.parametrize(
    "change",
    [
        {"weight_decay": 0.0},
        {"weight_decay": 1e-3},
        {"loss": list(np.geomspace(2.3, 0.3, 30))},
        {"optimizer": "Adagrad"},
        {"loss": [2.3] * 20 + [math.nan] * 10},
    ],
)
def test_a_decay_that_is_mild_or_does_no_harm(change):
    assert findings(excessive_weight_decay, decaying(**change)) == []


def test_weights_that_the_gradient_holds():
    made = decaying()
    for name in "abc":
        made.set(f"{name}.weight", "parameter", row(0.1, count=256))
        made.set(f"{name}.weight", "update", row(0.1 * 0.1 * 2, count=256))
    assert findings(excessive_weight_decay, made) == []
    for name in "abc":  # the same pull, and next to no step left of it
        made.set(f"{name}.weight", "update", row(1e-3, count=256))
    assert "spent on giving it back" in only(excessive_weight_decay, made).finding.summary


@pytest.mark.parametrize(("angle", "said"), [(0.4, True), (0.1, False), (0.04, False), (2.0, False)])
def test_the_angle_of_weights_before_a_norm(angle, said):
    made = with_norms(decaying(loss=list(np.geomspace(2.3, 1.1, 30))), 0.0)
    for name in "abc":
        made.set(f"{name}.weight", "update", [[256, 0, (angle * r[3]) ** 2 * 256, 1, 1, 0, 0] for r in falling(0.1)])
    found = [f for f in findings(excessive_weight_decay, made) if "angle" in f.finding.evidence[0].name]
    assert bool(found) == said
    if said:
        assert evidence(found[0].finding, "the same, as the decay's equilibrium").expected == pytest.approx(
            math.sqrt(0.2)
        )


def gains(share=0.1, loss=None, own="weight", decay=1.0):
    made = Made(loss=stuck() if loss is None else loss)
    made.settings = {"lr": 0.1, "weight_decay": decay}
    return with_norms(made, share, own)


def test_gains_that_follow_their_decay():
    finding, begins = only(decayed_norm_parameters, gains())
    assert (finding.severity, finding.where, begins) == ("error", ("optimizer",), 6)
    assert evidence(finding, "gains of the norms").measured == pytest.approx(0.9**29, rel=1e-6)
    assert evidence(finding, "the same, as decay alone").expected == pytest.approx(0.9**30, rel=1e-6)
    assert "p.ndim < 2" in finding.repairs[0].code


def test_gains_of_a_run_that_loses_what_it_had_learned():
    climbing = [2.3] * 5 + [0.5] * 10 + [1.0] * 15
    assert only(decayed_norm_parameters, gains(loss=climbing)).finding.severity == "warning"


@pytest.mark.parametrize(
    "change",
    [
        {"share": 0.0},  # held by the loss
        {"share": 0.02},
        {"decay": 1e-3},
        {"decay": 0.0},
        {"own": "bias"},
        {"loss": list(np.geomspace(2.3, 0.3, 30))},
    ],
)
def test_gains_that_stand_or_do_no_harm(change):
    assert findings(decayed_norm_parameters, gains(**change)) == []


def test_gains_that_start_at_zero_are_where_they_belong():
    made = gains()
    for name in "abc":
        made.set(f"{name}_norm.weight", "parameter", row(0.0, count=16))
    assert findings(decayed_norm_parameters, made) == []
