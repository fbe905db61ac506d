"""`attention-logit-growth`, `output-logit-drift` and `missing-warmup` on records made by hand, and their place among the causes."""

import math

import numpy as np
import pytest
from diagnosis_cases import Made, evidence, findings, only, row, stuck

from trimtab.diagnosis.causes import EXPLAINS, LATER, RANK, UNSTABLE
from trimtab.diagnosis.progress import progress
from trimtab.diagnosis.rules import attention_logit_growth, missing_warmup, output_logit_drift

STEPS = 60


class Attends(Made):
    """A chain that does not learn, with an attention behind b whose queries and keys a makes."""

    def __init__(self, **more):
        more.setdefault("loss", stuck(STEPS))
        super().__init__(steps=STEPS, optimizer="Adam", **more)
        self.looks = {}

    def attend(self, share, largest, name="0:b", sources=("0:a",)):
        """Looks by step: entropy over that of equal weights, and the largest logit."""
        for step, s, z in zip((0, 1, 2, 4, 8, 16, 32, 45), share, largest, strict=True):
            look = {"name": name, "sources": list(sources), "entropy": s * math.log(8), "uniform": math.log(8)}
            self.looks.setdefault(step, []).append(look | {"largest": z})

    @property
    def record(self):
        record = super().record
        record.details["attention"] = list(self.looks.items())
        return record


CLOSING = (1.0, 0.9, 0.7, 0.3, 0.09, 0.05, 0.02, 0.01)
GROWING = (1.0, 2.0, 5.0, 20.0, 60.0, 100.0, 300.0, 500.0)


def closing(share=CLOSING, largest=GROWING, **more):
    made = Attends(**more)
    made.attend(share, largest)
    return made


# Attention that closes ------------------------------------------------------------------------------------------------


def test_an_attention_that_closes_is_found_where_its_queries_are_made():
    finding, begins = only(attention_logit_growth, closing())
    assert (finding.severity, finding.where, begins) == ("error", ("a",), 8)
    assert evidence(finding, "largest logit").measured == 500
    assert evidence(finding, "largest logit").expected == 1
    assert evidence(finding, "entropy").measured == pytest.approx(0.01)
    assert evidence(finding, "attentions").measured == 1
    assert "from 1 to 500 by step 45" in finding.summary


@pytest.mark.parametrize(
    ("share", "largest"),
    [
        ((0.4, *CLOSING[1:]), GROWING),  # closed from the start: another code's affair
        ((*CLOSING[:6], 0.2, 0.2), GROWING),  # open enough
        (CLOSING, (*GROWING[:6], 40.0, 45.0)),  # logits that are not large
        (CLOSING, (60.0, *GROWING[1:])),  # they have not grown
        (CLOSING, (None,) * 8),  # nobody knows
    ],
)
def test_what_is_no_growth(share, largest):
    assert findings(attention_logit_growth, closing(share, largest)) == []


def test_sharp_attention_of_a_run_that_learns_is_none():
    assert findings(attention_logit_growth, closing(loss=np.geomspace(2.3, 0.1, STEPS))) == []


@pytest.mark.parametrize(
    ("loss", "severity"),
    [
        (np.geomspace(2.3, 1.4, STEPS), "warning"),  # held back
        ([*np.geomspace(2.3, 1.0, 20), *np.geomspace(1.0, 1.5, 40)], "error"),  # lost again
        ([*np.geomspace(2.3, 1.4, 50), *[math.nan] * 10], "error"),
    ],
)
def test_it_weighs_what_it_costs(loss, severity):
    assert only(attention_logit_growth, closing(loss=loss)).finding.severity == severity


def test_two_attentions_of_which_one_has_closed():
    made = closing()
    made.attend([1.0] * 8, [1.0] * 8, name="0:c", sources=("0:b",))
    assert only(attention_logit_growth, made).finding.where == ("a",)
    assert [course.places for course in made.view.attentions] == [("a",), ("b",)]


def test_a_module_that_attends_twice_has_two_courses():
    made = closing()
    made.attend([1.0] * 8, [1.0] * 8)
    assert [course.share[-1] for course in made.view.attentions] == pytest.approx([0.01, 1.0])


# Logits that drift away -----------------------------------------------------------------------------------------------


def drifting(log_z, loss=None, dtype="float32", shape=(64, 10)):
    """A chain with ten classes whose logits have the mean log Z - 3 at the looks."""
    made = Made(steps=STEPS, loss=stuck(STEPS) if loss is None else loss, optimizer="Adam")
    values = np.interp(np.arange(STEPS), (0, 20, STEPS), log_z)
    made.set("c", "output", [row(abs(z - 3) + 1, z - 3, count=640) for z in values])
    made.links["c"]["dtype"] = dtype
    losses = made.details.pop("loss")
    losses["prediction"] = {"shape": list(shape), "mean": -3.0, "std": 0.3, "nonfinite": 0}

    class Drifting(type(made)):
        record = property(lambda self: with_losses(Made.record.fget(self), losses))

    made.__class__ = Drifting
    return made


def with_losses(record, losses):
    record.details["loss"] = [(step, losses) for step in (0, 1, 2, 4, 8, 16, 32, 45)]
    return record


def test_log_z_is_the_mean_of_the_logits_less_that_of_log_p():
    source, steps, log_z = output_logit_drift.normalizers(drifting((2.3, 20.0, 40.0)).view)
    assert source == "0:c"
    assert log_z[[0, -1]] == pytest.approx([2.3, 32.5], rel=1e-5)
    assert steps[-1] == 45


def test_a_drift_under_a_loss_that_stands_is_an_error():
    finding, begins = only(output_logit_drift, drifting((2.3, 20.0, 40.0)))
    assert (finding.severity, finding.where, begins) == ("error", ("c",), 8)  # 9.4 there, four times log 10 is 9.2
    assert evidence(finding, "log Z").measured == pytest.approx(32.5, rel=1e-5)
    assert "1e-4 * torch.logsumexp" in finding.repairs[0].code


def test_it_may_go_below_zero():
    assert only(output_logit_drift, drifting((2.3, -20.0, -40.0))).finding.severity == "error"


@pytest.mark.parametrize(
    "made",
    [
        drifting((2.3, 5.0, 8.0)),
        drifting((2.3, 20.0, 40.0), loss=np.geomspace(2.3, 0.1, STEPS)),  # a classifier that learns
        drifting((2.3, 20.0, 40.0), loss=np.geomspace(2.3, 1.5, STEPS)),  # on its way
        drifting((2.3, 20.0, 40.0), shape=(32, 10)),  # a part of the output: its mean is another one
    ],
)
def test_what_is_no_drift(made):
    assert findings(output_logit_drift, made) == []


@pytest.mark.parametrize(("dtype", "log_z"), [("bfloat16", 150.0), ("float16", 1500.0)])
def test_half_precision_cannot_tell_large_logits_apart(dtype, log_z):
    slow = np.geomspace(2.3, 1.5, STEPS)
    finding = only(output_logit_drift, drifting((2.3, log_z, log_z), slow, dtype)).finding
    assert finding.severity == "warning"
    assert evidence(finding, "distance").measured == 1.0
    assert findings(output_logit_drift, drifting((2.3, log_z / 4, log_z / 4), slow, dtype)) == []
    assert findings(output_logit_drift, drifting((2.3, log_z, log_z), slow)) == []


# First steps at the full rate -----------------------------------------------------------------------------------------


def jumped(first=0.3, later=0.01, jump=0.3, attends=True, **more):
    """A run that jumps up in its first steps and stays, with updates that are large in them."""
    loss = [2.3, 2.3 * (1 + jump), 2.4, *stuck(STEPS - 3)]
    made = Attends(loss=loss, **more)
    for name in "abc":
        sizes = [0.1 * (first if step < 3 else later) for step in range(STEPS)]
        made.set(f"{name}.weight", "update", [row(size, count=256) for size in sizes])
    if attends:
        made.attend([1.0] * 8, [1.0] * 8)
    return made


def test_first_steps_that_break_a_run():
    finding, begins = only(missing_warmup, jumped())
    assert (finding.severity, finding.where, begins) == ("error", ("optimizer",), 1)
    assert evidence(finding, "update over its weight").measured == pytest.approx(0.3, rel=1e-5)
    assert evidence(finding, "the same behind").measured == pytest.approx(0.01, rel=1e-5)
    assert evidence(finding, "rise").measured == pytest.approx(0.3, rel=1e-5)
    assert "LambdaLR" in finding.repairs[0].code


@pytest.mark.parametrize(
    "change",
    [
        {"first": 0.05},  # small steps
        {"first": 2.0},  # too high whatever the step
        {"later": 0.2},  # as large later on: the rate is too high for good
        {"jump": 0.02},
        {"attends": False},  # neither a transformer nor norms behind sums
    ],
)
def test_what_is_no_early_instability(change):
    assert findings(missing_warmup, jumped(**change)) == []


def test_a_run_with_warm_up_or_an_optimizer_that_has_one_is_left_alone():
    made = jumped()
    made.rates = [0.1 * min(1, (step + 1) / 10) for step in range(STEPS)]
    assert findings(missing_warmup, made) == []
    made = jumped()
    made.optimizer = "RAdam"
    assert findings(missing_warmup, made) == []
    made = jumped()
    made.optimizer = "SGD"
    assert findings(missing_warmup, made) == []


def test_a_run_that_comes_down_and_breaks_later_has_another_fault():
    made = jumped()
    made.losses[10:30] = np.linspace(2.3, 1.0, 20)
    assert findings(missing_warmup, made) == []


def test_an_attention_that_goes_on_growing_is_the_reason_itself():
    made = jumped(attends=False)
    made.attend(CLOSING, GROWING)
    assert findings(missing_warmup, made) == []
    made = jumped(attends=False)
    made.attend((1.0, 0.2, *[0.05] * 6), (1.0, 100.0, *[300.0] * 6))
    assert len(findings(missing_warmup, made)) == 1


# Among the causes -----------------------------------------------------------------------------------------------------


def test_their_place_among_the_causes():
    for code in sorted(UNSTABLE):
        assert code in EXPLAINS["learning-rate-too-high"]
        assert all(code in EXPLAINS[cause] for cause in ("unscaled-inputs", "norm-placement", "residual-growth"))
        assert "learning-rate-too-high" not in EXPLAINS[code]
    assert {"attention-logit-growth", "output-logit-drift", "signal-collapse"} <= EXPLAINS["missing-warmup"]
    assert ("signal-collapse", "missing-warmup") in LATER
    assert RANK.index("unscaled-attention") < RANK.index("attention-logit-growth") < RANK.index("output-logit-drift")


def test_what_a_run_gives_back():
    made = Made(steps=200, loss=[*np.linspace(2.0, 1.0, 100), *np.linspace(1.0, 1.5, 100)])
    found = progress(made.record)
    assert found.given_back == pytest.approx((found.last - found.best) / (found.first - found.best))
    assert 0.35 < found.given_back < 0.5
    assert progress(Made(loss=np.linspace(1.0, 2.0, 30)).record).given_back == 0
