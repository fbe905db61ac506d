"""The rules about norms and residual sums: what they need to speak, and what keeps them silent."""

import math

import numpy as np
import pytest
import torch
from diagnosis_cases import Made, evidence, findings, only, row, stuck, watched
from problems import (
    batch_norm_scales_the_answer,
    build,
    classify,
    cross_entropy,
    group_norm_of_pairs_that_learns,
    group_of_one,
    layer_norm_of_one_gate,
    root_mean_square_in_half,
    squared_error,
    twenty_blocks_added_up,
    unscaled_blocks_under_a_last_norm,
)
from torch import nn
from torch.nn import functional as F

import trimtab
from trimtab import Setup
from trimtab.diagnosis.norms import eps_of, is_only_way, kind_of, values_per_statistic
from trimtab.diagnosis.rules import (
    degenerate_normalization,
    exploding_gradient,
    norm_placement,
    norm_precision,
    residual_growth,
)
from trimtab.diagnosis.rules.residual_growth import Stream
from trimtab.recording.facts import module_facts


def run(net, x, y=None, loss=None, steps=12, rate=1e-3):
    """The record of a few steps over one batch."""
    y = torch.randn(len(x), 1) if y is None else y
    loss = squared_error if loss is None else loss
    return watched(Setup(net, torch.optim.SGD(net.parameters(), rate), lambda: [(x, y)], loss, steps))


# What a record tells of norms -----------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    """A norm that only its name tells."""


@pytest.mark.parametrize(
    ("norm", "shape", "values"),
    [
        (nn.LayerNorm(6), None, 6),
        (nn.LayerNorm((2, 3)), [8, 2, 3], 6),
        (nn.RMSNorm(1), [8, 1], 1),
        (nn.GroupNorm(8, 8), [4, 8], 1),
        (nn.GroupNorm(4, 8), [4, 8, 3, 3], 18),
        (nn.GroupNorm(4, 8), None, None),
        (nn.InstanceNorm1d(8), [4, 8, 5], 5),
        (nn.InstanceNorm1d(8), [8, 5], 5),
        (nn.InstanceNorm2d(8), [8, 1, 1], 1),
        (nn.InstanceNorm2d(8), [4, 8, 1, 1], 1),
        (nn.InstanceNorm2d(8, track_running_stats=True).eval(), [4, 8, 1, 1], None),
        (nn.BatchNorm2d(8), [4, 8, 5, 5], 100),
        (nn.SyncBatchNorm(8), [4, 8], 4),
        (RMSNorm(), [4, 8], None),
        (nn.Linear(3, 3), [4, 3], None),
    ],
)
def test_values_per_statistic(norm, shape, values):
    assert values_per_statistic(module_facts(norm), shape) == values


def test_kinds_of_norms():
    class Permuted(nn.LayerNorm):
        pass

    kinds = [
        kind_of(module_facts(m)) for m in (Permuted(4), RMSNorm(), nn.InstanceNorm1d(2), nn.BatchNorm1d(2), nn.ReLU())
    ]
    assert kinds == ["layer", "rms", "instance", "batch", ""]


@pytest.mark.parametrize(("eps", "found"), [(1e-6, 1e-6), (None, None)])
def test_the_epsilon_under_any_of_its_names(eps, found):
    module = nn.Module()
    module.variance_epsilon = eps
    assert eps_of(module_facts(module)) == found


@pytest.mark.parametrize(
    ("end", "operations", "only_way"),
    [
        (["norm"], [], True),
        (["last"], [], True),
        (["sum"], ["Add"], False),  # the norm beside a skip
        (["hidden"], ["Add"], False),  # the other term may be the input
        (["elsewhere"], [], False),
        ([], [], False),
    ],
)
def test_the_only_way_to_the_loss(end, operations, only_way):
    def link(sources, operations=()):
        return {"sources": sources, "operations": list(operations)}

    links = {
        "first": link([]), "norm": link(["first"]), "last": link(["norm"]), "sum": link(["norm", "first"], operations),
        "hidden": link(["norm"], operations), "elsewhere": link(["first"]),
    }  # fmt: skip
    assert is_only_way(links, end, "norm") is only_way


# degenerate-normalization ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "shape", "left"),
    [
        (nn.LayerNorm(1), (8, 1), 0),
        (nn.GroupNorm(8, 8), (8, 8), 0),
        (nn.GroupNorm(4, 8), (8, 8), 0),
        (nn.LayerNorm(2), (8, 2), 0),
        (nn.RMSNorm(1), (8, 1), 0),
        (nn.RMSNorm(2), (8, 2), None),
        (nn.LayerNorm(3), (8, 3), None),
        (nn.GroupNorm(8, 8), (8, 8, 2, 2), None),
        (nn.BatchNorm1d(1), (2, 1), None),
    ],
)
def test_degenerate_normalization_counts_degrees_of_freedom(norm, shape, left):
    torch.manual_seed(0)
    inside = math.prod(shape[1:])
    net = nn.Sequential(nn.Linear(6, inside), nn.Unflatten(1, shape[1:]), norm, nn.Flatten(), nn.Linear(inside, 1))
    found = findings(degenerate_normalization, run(net, torch.randn(shape[0], 6)))
    assert len(found) == (left is not None)
    if found:
        finding = found[0].finding
        assert finding.where == ("2",)
        many = isinstance(norm, nn.GroupNorm) and norm.num_groups == 4  # four signs a sample, which may do
        assert finding.severity == ("warning" if many else "error")  # nothing goes around it, and nothing was learned
        assert evidence(finding, "degrees of freedom").measured == left
        assert evidence(finding, "values per statistic").measured < evidence(finding, "values per statistic").expected


def test_degenerate_normalization_is_said_once_for_all_norms_and_calls():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm, self.other, self.last = (
                nn.Linear(6, 4),
                nn.GroupNorm(4, 4),
                nn.GroupNorm(4, 4),
                nn.Linear(4, 1),
            )

        def forward(self, x):
            return self.last(x[:, :4] + self.norm(self.a(x)) + self.norm(2 * self.a(x)) + self.other(self.a(x)))

    finding, _ = only(degenerate_normalization, run(Net(), torch.randn(8, 6)))
    assert finding.where == ("norm", "other")


def test_degenerate_normalization_before_training():
    assert trimtab.check(build(group_of_one, True)).roots[0].code == "degenerate-normalization"
    assert trimtab.check(build(group_of_one, False)).healthy
    beside = trimtab.check(build(layer_norm_of_one_gate, True))
    assert [(f.code, f.severity) for f in beside.roots] == [("degenerate-normalization", "warning")]


def test_signs_that_are_enough_to_learn_from_are_a_note():
    for look in (trimtab.check, trimtab.diagnose):
        finding = look(build(group_norm_of_pairs_that_learns))["degenerate-normalization"]
        assert finding.severity == "note"


# norm-precision -------------------------------------------------------------------------------------------------------


def broken_norm(**more):
    """A chain a, b (a norm), c whose norm gives NaN at step 5."""
    made = Made(loss=[2.3] * 5 + [math.nan] * 25)
    made.modules["b"] |= {"class": "HalfNorm", "library": False, "attributes": {"eps": 1e-9}} | more
    made.parameters["b.weight"]["shape"] = made.parameters["b.bias"]["shape"] = [16]
    made.set("a_act", "output", row())
    for name in ("b", "b_act", "c"):
        made.set(name, "output", [row(nonfinite=3 if i >= 5 else 0) for i in range(30)])
    return made


def test_norm_precision_of_finite_input():
    finding, begins = only(norm_precision, broken_norm())
    assert (finding.severity, finding.where, begins) == ("error", ("b",), 5)
    assert evidence(finding, "eps, as half precision").measured == 0
    assert "zero in half precision" in finding.summary


def test_norm_precision_says_which_number_does_not_fit():
    made = broken_norm(attributes={"eps": 1e-3})
    assert "what it divides by" in only(norm_precision, made).finding.summary
    made.set("a_act", "output", row(400.0))
    assert "squares of values up to 800" in only(norm_precision, made).finding.summary
    assert "eps is zero" in only(norm_precision, broken_norm(attributes={"eps": 0.0})).finding.summary


def test_norm_precision_is_no_matter_of_what_came_in():
    made = broken_norm()
    made.set("a_act", "output", [row(nonfinite=1 if i >= 5 else 0) for i in range(30)])
    assert findings(norm_precision, made) == []
    made = broken_norm()
    made.set("b.weight", "parameter", [row(0.1, count=16, nonfinite=1 if i >= 5 else 0) for i in range(30)])
    assert findings(norm_precision, made) == []
    made = broken_norm()
    made.set("a_act", "output", row(1e19))  # the signal has exploded
    assert findings(norm_precision, made) == []
    made = broken_norm()
    made.links["b"]["operations"] = ["Div"]  # which may have made it
    assert findings(norm_precision, made) == []


def test_a_layer_with_an_eps_is_no_norm():
    made = broken_norm()
    made.parameters["b.weight"]["shape"] = [16, 16]
    made.modules["b"]["class"] = "Attention"
    assert findings(norm_precision, made) == []


class SpreadNorm(nn.Module):
    """A layer norm with its eps outside the root, as in many a tutorial."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), 1e-6

    def forward(self, x):
        return self.weight * (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True).sqrt() + self.eps) + self.bias


def test_norm_precision_of_the_backward_pass():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16, bias=False), SpreadNorm(16), nn.Linear(16, 1))
    x = torch.randn(8, 6)
    x[3] = 0  # a row of padding
    found = trimtab.diagnose(run(net, x))
    assert [f.code for f in found.roots] == ["norm-precision"]
    assert found.roots[0].where == ("1",)
    assert "under the root" in found.roots[0].summary


def test_gradients_that_a_scaler_lets_overflow_are_no_fault():
    made = broken_norm()
    made.losses = list(np.geomspace(2.3, 0.3, 30))
    for name in ("b", "b_act", "c"):
        made.set(name, "output", row())
    made.set("a_act", "gradient", [row(nonfinite=9 if i == 0 else 0) for i in range(30)])
    made.set("b", "gradient", row())
    assert findings(norm_precision, made) == []


class HalfNorm(nn.Module):
    """A layer norm that takes its variance in half precision."""

    def __init__(self):
        super().__init__()
        self.eps = 1e-3

    def forward(self, x):
        x = x.half()
        x = x - x.mean(-1, keepdim=True)
        return (x / ((x * x).mean(-1, keepdim=True) + self.eps).sqrt()).float()


class UnitNorm(nn.Module):
    """A norm whose outputs are small by design."""

    def forward(self, x):
        return F.normalize(x, dim=-1)


def test_a_norm_to_unit_length_is_not_held_to_a_mean_square_of_one():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 256), UnitNorm(), nn.Linear(256, 1))
    assert findings(norm_precision, run(net, 5000 * torch.randn(32, 6))) == []


@pytest.mark.parametrize(("size", "found"), [(5000.0, True), (10.0, False)])
def test_norm_precision_of_squares_that_do_not_fit(size, found):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), HalfNorm(), nn.Linear(16, 1))
    record = run(net, size * torch.randn(32, 6))
    said = [f.finding for f in findings(norm_precision, record)]
    assert [f.where for f in said] == [("1",)] * found
    if found:
        assert "dividing by infinity" in said[0].summary


def test_eps_is_weighed_against_the_input():
    torch.manual_seed(0)
    x = torch.randn(64, 16)
    for eps, size, expected in [(1.0, 0.1, True), (1e-5, 0.1, False), (1.0, 10.0, False)]:
        net = nn.Sequential(nn.LayerNorm(16, eps=eps), nn.Linear(16, 1))
        said = [f.finding for f in findings(norm_precision, run(net, size * x))]
        assert bool(said) is expected, (eps, size)
        if expected:
            share = evidence(said[0], "mean square of the output").measured
            assert share == pytest.approx(size**2 / (size**2 + eps), rel=0.2)
            assert share <= evidence(said[0], "the same, as eps").expected * 1.01
            assert said[0].severity == "error"


def test_eps_above_the_variance_in_a_run_that_learns_is_a_note():
    torch.manual_seed(0)
    x = 0.1 * torch.randn(64, 16)
    net = nn.Sequential(nn.LayerNorm(16, eps=1.0, elementwise_affine=False), nn.Linear(16, 1, bias=False))
    record = run(net, x, 30 * x[:, :1], steps=100, rate=10.0)
    assert only(norm_precision, record).finding.severity == "note"


def test_a_norm_that_is_given_nothing_but_zeros_is_no_matter_of_eps():
    net = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 1))
    nn.init.zeros_(net[0].weight)
    nn.init.zeros_(net[0].bias)
    assert findings(norm_precision, run(net, torch.zeros(8, 16))) == []


@pytest.mark.parametrize(
    ("dtype", "momentum", "severity"),
    [
        (torch.bfloat16, 0.1, "note"),
        (torch.bfloat16, 0.01, "warning"),
        (torch.float32, 0.1, None),
        (torch.bfloat16, None, None),
    ],
)
def test_running_statistics_in_a_short_format(dtype, momentum, severity):
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 1)).to(dtype)
    record = run(net, torch.randn(16, 6, dtype=dtype), torch.randn(16, 1, dtype=dtype))
    assert [f.finding.severity for f in findings(norm_precision, record)] == [severity] * (severity is not None)


def test_norm_precision_before_training():
    assert trimtab.check(build(root_mean_square_in_half, True)).roots[0].code == "norm-precision"
    assert trimtab.check(build(root_mean_square_in_half, False)).healthy


# norm-placement -------------------------------------------------------------------------------------------------------


def placed(*ends, size=4, loss=squared_error, train=True):
    """The record of a regression with these modules at its end, in batches of `size`."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1), *ends).train(train)
    x = torch.randn(128, 6)
    y = x[:, :1] + x[:, 1:2] * x[:, 2:3]

    def batches():
        return list(zip(x.split(size), y.split(size), strict=True))

    return watched(Setup(net, torch.optim.Adam(net.parameters(), 1e-3), batches, loss, 40))


def by_hand(model, batch):
    return ((model(batch[0]) - batch[1]) ** 2).mean()


def absolute(model, batch):
    return 0.5 * F.l1_loss(model(batch[0]).squeeze(1), batch[1].squeeze(1))


@pytest.mark.parametrize("loss", [squared_error, by_hand, absolute])
def test_norm_placement_before_the_loss(loss):
    finding, _ = only(norm_placement, placed(nn.BatchNorm1d(1), loss=loss))
    assert (finding.severity, finding.where) == ("error", ("3",))
    share = evidence(finding, "share of the targets' variance")
    assert share.measured == pytest.approx(1.5 / 4, rel=0.3)
    assert share.expected == 1.5 / 4


def test_norm_placement_looks_through_functions_of_one_element():
    finding, _ = only(norm_placement, placed(nn.BatchNorm1d(1), nn.Softplus(), nn.Flatten()))
    assert finding.where == ("3",)


@pytest.mark.parametrize(("size", "severity"), [(4, "error"), (16, "warning"), (64, "note")])
def test_norm_placement_weighs_by_the_batch(size, severity):
    assert only(norm_placement, placed(nn.BatchNorm1d(1), size=size)).finding.severity == severity


def cosine(model, batch):
    return -F.cosine_similarity(model(batch[0]), batch[1], dim=0).mean()


@pytest.mark.parametrize(
    ("ends", "loss"),
    [
        ((nn.BatchNorm1d(1), nn.Linear(1, 1)), squared_error),  # a layer can still learn a scale
        ((nn.BatchNorm1d(1), nn.PReLU()), cosine),
        ((nn.BatchNorm1d(1),), cosine),  # a loss that does not mind the scale
        ((nn.Identity(),), squared_error),
    ],
)
def test_norm_placement_keeps_silent(ends, loss):
    assert findings(norm_placement, placed(*ends, loss=loss)) == []


def test_a_norm_before_the_loss_that_is_frozen_has_no_batches():
    made = last_norm("BatchNorm1d")
    assert len(findings(norm_placement, made)) == 1
    made.modules["c"]["training"] = False
    assert findings(norm_placement, made) == []


def last_norm(cls, loss=None):
    """A chain that ends in a norm before a squared error."""
    made = Made(loss=stuck() if loss is None else loss)
    base = "_BatchNorm" if cls.startswith("Batch") else cls
    made.modules["c"] |= {"class": cls, "bases": [base], "attributes": {"normalized_shape": [16]}}
    made.links["c"] |= {"input": [4, 16], "output": [4, 16]}
    made.details["loss"] |= {
        "operations": ["MseLoss"],
        "kind": "MseLoss",
        "target": {"shape": [4, 16], "std": 2.0, "mean": 1.0},
    }
    return made


def test_a_layer_norm_before_a_regression_loss():
    assert only(norm_placement, last_norm("LayerNorm")).finding.severity == "error"
    assert findings(norm_placement, last_norm("LayerNorm", [2.0] * 5 + [0.1] * 25)) == []


def test_norm_placement_before_training():
    assert "norm-placement" in trimtab.check(build(batch_norm_scales_the_answer, True))
    assert trimtab.check(build(batch_norm_scales_the_answer, False)).healthy


def stack(norms=14, closed=True, update=0.005, steps=30, post=True, **more):
    """Layers a, b, ... with a norm behind each sum (or in front of each layer), of which the first ones get no more gradient."""
    names = "abcdefghijklmnopqrst"[:norms]
    made = Made(names, steps=steps, loss=more.get("loss", stuck(steps)))
    before = "a"
    for i, name in enumerate(names):
        norm = f"{name}_act"
        made.modules[norm] = made._module("LayerNorm")
        made.links[name] |= {"sources": [before] if i else []}
        skip = before if post else "a"
        made.links[norm] = {"operations": ["Add"], "sources": [name, skip] if i else [name], "own": "NativeLayerNorm"}
        falls = closed and i < norms // 2
        made.set(norm, "gradient", [row(1e-2 if s < 3 or not falls else 1e-6) for s in range(steps)])
        made.set(f"{name}.weight", "update", row(0.1 * update, count=256))
        before = norm
    return made


def test_norm_placement_in_a_deep_post_norm_stack():
    finding, _ = only(norm_placement, stack())
    assert finding.severity == "error"
    assert len(finding.where) == 13
    ratios = [e.measured for e in finding.evidence if e.name.startswith("squared gradient")]
    assert ratios == pytest.approx([1.0, 1e-8])


@pytest.mark.parametrize(
    "more",
    [
        {"norms": 8},
        {"closed": False},
        {"post": False},
        {"update": 0.5},  # at such a rate no net learns
        {"loss": [2.3] * 5 + [0.3] * 25},
    ],
)
def test_norm_placement_leaves_these_stacks_in_peace(more):
    assert findings(norm_placement, stack(**more)) == []


def test_norm_placement_minds_a_warm_up():
    made = stack()
    made.rates = [0.01 * (1 + i) for i in range(30)]
    assert findings(norm_placement, made) == []


def test_a_post_norm_stack_that_learns_nothing_in_a_hundred_lively_steps():
    assert len(findings(norm_placement, stack(closed=False, steps=120))) == 1
    assert findings(norm_placement, stack(closed=False, steps=120, update=1e-4)) == []  # which is merely slow


# residual-growth ------------------------------------------------------------------------------------------------------


def test_the_growth_of_a_stream_is_that_of_the_law():
    """Depth 32, width 600: x + W relu(x) doubles per block; scaled by 1/sqrt(L) it multiplies by 1 + 1/L."""
    draw = torch.Generator().manual_seed(0)
    for scale, law in [(1.0, 2.0), (32**-0.5, 1 + 1 / 32)]:
        x, moments = torch.randn(64, 600, generator=draw), []
        for _ in range(32):
            weight = torch.randn(600, 600, generator=draw) * (2 / 600) ** 0.5
            x = x + scale * x.relu() @ weight
            moments.append(float(x.square().mean()))
        stream = Stream(0, tuple(map(str, range(32))), tuple(moments), 600)
        assert 31 * abs(stream.log_growth - math.log(law)) < stream.tolerance


def test_residual_growth_before_training():
    found = trimtab.check(build(twenty_blocks_added_up, True))
    assert (found.roots[0].code, found.roots[0].severity) == ("residual-growth", "error")
    growth = evidence(found.roots[0], "second moment, per block")
    assert growth.measured == pytest.approx(3, rel=0.1)  # both layers of a branch are drawn for a ReLU in front
    assert growth.expected == 1 + 1 / 20
    assert trimtab.check(build(twenty_blocks_added_up, False)).healthy
    assert trimtab.check(build(unscaled_blocks_under_a_last_norm)).healthy


class Sums(nn.Module):
    """Ten residual blocks, as they are asked for."""

    def __init__(self, branch, last=None, first=None):
        super().__init__()
        self.first = nn.Linear(16, 64) if first is None else first
        self.branches = nn.ModuleList(branch() for _ in range(10))
        self.norm, self.head = nn.Identity() if last is None else last, nn.Linear(64, 10)

    def forward(self, x):
        x = self.first(x)
        for branch in self.branches:
            x = x + branch(x)
        return self.head(self.norm(x))


def plain():
    branch = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    for layer in (branch[0], branch[2]):
        nn.init.kaiming_normal_(layer.weight)
    return branch


def normalized():
    return nn.Sequential(nn.LayerNorm(64), *plain())


def normalized_at_the_end():
    return nn.Sequential(*plain(), nn.BatchNorm1d(64))


@pytest.mark.parametrize(
    ("net", "found"),
    [
        (lambda: Sums(plain), True),
        (lambda: Sums(plain, first=nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64))), True),
        (lambda: Sums(plain, last=nn.LayerNorm(64)), False),
        (lambda: Sums(normalized), False),
        (lambda: Sums(normalized_at_the_end), False),
    ],
)
def test_residual_growth_and_where_norms_stand(net, found):
    """Every one of these runs is thrown off its course by its rate."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 16), torch.randint(10, (64,))
    said = findings(residual_growth, run(net(), x, y, cross_entropy, rate=30.0))
    assert len(said) == found


def test_residual_growth_in_a_run_that_learns_is_no_fault():
    torch.manual_seed(0)
    x, y = torch.randn(64, 16), torch.randint(10, (64,))
    net = Sums(plain)
    record = watched(Setup(net, torch.optim.Adam(net.parameters(), 1e-4), lambda: [(x, y)], cross_entropy, 60))
    assert findings(residual_growth, record) == []


def test_a_bias_that_is_added_is_no_residual_sum():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(10))
            self.biases = nn.ParameterList(torch.zeros(64) for _ in range(10))
            for layer in self.layers:
                nn.init.normal_(layer.weight, std=0.3)

        def forward(self, x):
            for layer, bias in zip(self.layers, self.biases, strict=True):
                x = torch.relu(layer(x) + bias)
            return x[:, :10]

    torch.manual_seed(0)
    record = run(Biased(), torch.randn(64, 64), torch.randint(10, (64,)), cross_entropy, rate=0.1)
    assert findings(residual_growth, record) == []
    assert findings(exploding_gradient, record)


class Halved(nn.Module):
    """An RMS norm written by hand that computes in half precision, behind a factor that no module applies."""

    def __init__(self, dtype):
        super().__init__()
        self.weight, self.dtype, self.eps = nn.Parameter(torch.ones(32)), dtype, 1e-6

    def forward(self, x):
        h = x.to(self.dtype)
        return self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_squares_that_overflow_behind_a_function_are_seen_at_the_norm_itself(dtype):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift, self.norm, self.head = nn.Linear(64, 32), Halved(dtype), nn.Linear(32, 10)

        def forward(self, x):
            return self.head(self.norm(600 * self.lift(x)))

    torch.manual_seed(0)
    net = Net()
    diagnosis = trimtab.diagnose(classify(net, torch.optim.SGD(net.parameters(), 0.1), 40))
    codes = [f.code for f in diagnosis.roots if f.severity != "note"]
    assert codes == (["norm-precision"] if dtype == torch.float16 else [])
