"""The rules about wiring on records made by hand: losses of all pairs and cut graphs."""

import numpy as np
import pytest
from diagnosis_cases import Made, evidence, findings, fresh_quantiles, only, row, stuck, trained_quantiles

from trimtab.diagnosis.fresh import looks_drawn
from trimtab.diagnosis.rules import broadcast_loss, detached_graph, frozen_parameters, loss_scale_underflow

# broadcast-loss ----------------------------------------------------------------------------------------------------------


def pairs(prediction, target, result, **more):
    made = Made()
    facts = {"operation": "Sub", "prediction": prediction, "target": target, "result": result, "sources": ["0:c"]}
    made.details["loss"]["broadcasts"] = [{"named": False, "laid_out": False} | facts | more]
    return made


def test_a_table_of_all_pairs():
    finding, begins = only(broadcast_loss, pairs([32, 1], [32], [32, 32]))
    assert (finding.severity, finding.where, begins) == ("error", ("loss", "c"), 0)
    terms = evidence(finding, "terms")
    assert (terms.measured, terms.expected) == (1024, 32)
    assert "(32, 1)" in finding.summary
    assert "(32,)" in finding.summary


def test_a_list_against_a_column_is_the_losss_own():
    assert only(broadcast_loss, pairs([32], None, [32, 32])).finding.where == ("loss",)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (pairs([32, 1], [5], [32, 5]), False),  # thresholds, prototypes
        (pairs([32, 1], [32], [32, 32], laid_out=True), False),
        (pairs([32, 1], [32], [32, 32], laid_out=True, named=True), True),
        (pairs([32, 1], [5], [32, 5], named=True), True),
        (pairs([8, 8], [8, 8, 1], [8, 8, 8]), True),
    ],
)
def test_pairs_that_are_meant(made, said):
    assert bool(findings(broadcast_loss, made)) == said


# detached-graph ----------------------------------------------------------------------------------------------------------


def severed(at="b", front="0:a_act", missed=("a.weight", "a.bias"), **more):
    """`at` gets the numbers of `front` without their graph."""
    made = Made(loss=stuck(), **more)
    for link in made.links.values():
        link |= {"severed": None, "graph": True}
    made.links[at] |= {"severed": front, "sources": []}
    for name in missed:
        made.set(name, "raw-gradient", None)
        shape = made.parameters[name]["shape"]
        if len(shape) > 1:
            made.parameters[name]["quantiles"] = fresh_quantiles(shape)
    return made


def test_a_detached_part():
    made = severed()
    finding, _ = only(detached_graph, made)
    assert (finding.severity, finding.where) == ("error", ("a",))
    assert finding.summary.startswith("b goes on from the numbers of a_act")
    assert evidence(finding, "without any gradient").measured == 2
    assert findings(frozen_parameters, made) == []
    made.losses = [2.0] * 10 + [0.1] * 20
    assert only(detached_graph, made).finding.severity == "warning"


def test_the_last_cut_is_named():
    made = severed("c", "0:b_act", ("a.weight", "b.weight"))
    made.links["b"] |= {"severed": "0:a_act", "sources": []}
    finding = only(detached_graph, made).finding
    assert finding.where == ("a", "b")
    assert finding.summary.startswith("c goes on")


def test_numbers_from_nowhere_right_behind_a_part_that_gets_nothing():
    assert only(detached_graph, severed(front="")).finding.where == ("a",)
    assert findings(detached_graph, severed("c", front="")) == []  # b, which learns, lies between


def test_a_part_that_ran_without_a_graph():
    made = severed(front=None)
    made.links["a"]["graph"] = made.links["a_act"]["graph"] = False
    made.links["b"]["sources"] = ["a_act"]
    assert only(detached_graph, made).finding.where == ("a",)
    made.links["b"]["sources"] = []  # nobody who learns is given what it says
    assert findings(detached_graph, made) == []
    assert findings(frozen_parameters, made) == []


def test_a_detached_output_of_a_part_that_learns_elsewhere():
    assert findings(detached_graph, severed(missed=())) == []


def test_values_that_follow_others_are_not_left_alone():
    made = severed()
    for name in ("a.weight", "a.bias"):
        made.set(name, "parameter", [row(0.1 + 0.001 * i) for i in range(30)])
    assert findings(detached_graph, made) == []
    assert findings(frozen_parameters, made) == []


def test_weights_that_were_trained_before_make_it_a_note():
    made = severed()
    made.parameters["a.weight"]["quantiles"] = trained_quantiles([256, 64])
    made.parameters["a.weight"]["shape"] = [256, 64]
    finding = only(detached_graph, made).finding
    assert finding.severity == "note"
    assert "may be meant" in finding.summary


def test_five_steps():
    assert findings(detached_graph, severed(steps=4)) == []


def test_a_loss_that_is_cut_off():
    made = Made(loss=stuck())
    for name in made.parameters:
        made.set(name, "raw-gradient", None)
    assert only(detached_graph, made).finding.where == ("loss",)


def test_any_draw_looks_drawn():
    generator = np.random.default_rng(0)
    points = np.linspace(0, 1, 33)
    for draw in (generator.normal(0, 0.37, 4096), generator.uniform(-0.4, 0.4, 4096)):
        assert looks_drawn({"shape": [64, 64], "quantiles": np.quantile(draw, points).tolist()})
    assert not looks_drawn({"shape": [256, 64], "quantiles": trained_quantiles([256, 64])})
    assert looks_drawn({"shape": [64, 64]})


# loss-scale-underflow ----------------------------------------------------------------------------------------------------


def half(dtype="float16", loss=2e-6, **gradients):
    """Gradients as (share of zeros, size of the rest) by layer, in a chain whose outputs are in half precision."""
    made = Made(loss=stuck(at=loss) if loss > 1 else [loss] * 30)
    for link in made.links.values():
        link["dtype"] = dtype
    for name, (zeros, left) in gradients.items():
        made.set(name, "gradient", [640, 0.0, left**2 * 640, left * (1 - zeros), 3 * left, 640 * zeros, 0])
    return made


def test_gradients_that_are_all_zero_for_their_size():
    made = half(a=(1.0, 0.0), b=(1.0, 0.0), c=(1.0, 0.0))
    finding, begins = only(loss_scale_underflow, made)
    assert (finding.severity, finding.where, begins) == ("error", ("loop",), 0)
    assert "output of c" in finding.summary
    assert evidence(finding, "share of the gradient").measured == 1
    assert evidence(finding, "size that one entry").measured == pytest.approx(2e-6 / 640, rel=1e-6)
    assert findings(loss_scale_underflow, half(loss=2.3, a=(1.0, 0.0), b=(1.0, 0.0), c=(1.0, 0.0))) == []  # a flat loss


@pytest.mark.parametrize(
    ("gradients", "said"),
    [
        ({"c": (0.9, 1e-7)}, True),
        ({"b": (0.9, 1e-7)}, True),
        ({"c": (0.5, 1e-4)}, False),  # a rectifier
        ({"c": (0.3, 1e-7)}, False),
        ({"b": (1.0, 0.0), "c": (0.1, 1e-6)}, True),  # it has faded on its way
        ({"b": (1.0, 0.0), "c": (0.1, 1e-2)}, False),  # a branch that starts at zero
    ],
)
def test_zeros_are_lost_where_the_rest_is_as_small_as_can_be(gradients, said):
    assert bool(findings(loss_scale_underflow, half(**gradients))) == said
    assert findings(loss_scale_underflow, half("bfloat16", **gradients)) == []
    assert findings(loss_scale_underflow, half("float32", **gradients)) == []


def test_a_loss_scale_lifts_the_gradient():
    made = half(c=(0.6, 1e-7))
    assert findings(loss_scale_underflow, made)
    record = made.record
    for info in record.info:
        info["loss_scale"] = 2.0**16
    assert findings(loss_scale_underflow, record) == []


def test_a_run_that_learns_gets_a_note():
    made = half(c=(0.9, 1e-7))
    made.losses = [2e-6] * 10 + [1e-7] * 20
    assert only(loss_scale_underflow, made).finding.severity == "note"
