"""Each fact is found where it is so, and a healthy net has none amiss."""

import copy
import re

import pytest
import torch
from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms.auditing import Fact, audit, momentum_for_updates
from trimtab.norms.auditing.statistics import least_eps


def found(model, code, *args, **more):
    """The facts of one code that are amiss."""
    return [fact for fact in audit(model, *args, **more) if fact.code == code]


def one(model, code, *args, **more):
    (fact,) = found(model, code, *args, **more)
    assert fact.amiss
    return fact


def healthy():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.GroupNorm(2, 8),
        nn.Flatten(),
        nn.Linear(8 * 16, 16),
        nn.LayerNorm(16),
        nn.Linear(16, 16),
        nn.BatchNorm1d(16),
        nn.RMSNorm(16),
    )


def groups_of(model, decay):
    norms = [p for m in model.modules() for p in m.parameters(recurse=False) if p.dim() < 2]
    rest = [p for p in model.parameters() if p.dim() >= 2]
    return [{"params": norms, "weight_decay": 0.0}, {"params": rest, "weight_decay": decay}]


# ------------------------------------------------------------------------------------------------------------ healthy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_healthy_net_has_nothing_amiss_before_and_after_training(dtype):
    model = healthy().to(dtype)
    optimizer = torch.optim.AdamW(groups_of(model, 0.1), lr=1e-3)
    x = torch.randn(32, 3, 8, 8, dtype=dtype)
    assert audit(model) == audit(model, optimizer, x) == []
    for _ in range(60):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert audit(model, optimizer, x) == []
    assert audit(model.eval(), [optimizer], (x,)) == []


def test_everything_gives_what_is_in_order_too():
    model, x = healthy(), torch.randn(32, 3, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    facts = audit(model, optimizer, x, everything=True)
    assert not any(fact.amiss for fact in facts)
    counts = {fact.module: fact.value for fact in facts if fact.code == "elements-per-statistic"}
    assert counts == {"1": 32 * 36, "4": 4 * 16, "7": 16, "9": 32, "10": 16}
    documented = {line.split("|")[1].strip() for line in audit.__doc__.splitlines() if line.strip().startswith("| ")}
    assert {fact.code for fact in facts} <= documented - {"code"}
    assert all(isinstance(fact, Fact) and fact.text and fact.expected for fact in facts)


def test_the_model_and_the_random_state_are_untouched():
    model, x = healthy(), torch.randn(4, 3, 8, 8)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    audit(model, torch.optim.SGD(model.parameters(), lr=0.1), x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training and not module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# --------------------------------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize(
    ("norm", "shape", "count", "text"),
    [
        (nn.BatchNorm1d(4), (1, 4), 1, "training raises"),
        (nn.BatchNorm1d(4), (2, 4), 2, r"\+1 and -1"),
        (nn.BatchNorm1d(4), (8, 4), 8, "1.14 times"),
        (nn.BatchNorm2d(4), (1, 4, 2, 3), 6, "1.2 times"),
        (nn.SyncBatchNorm(4), (2, 4, 2), 4, "1.33 times"),
        (nn.GroupNorm(4, 4), (8, 4), 1, "erased"),
        (nn.GroupNorm(2, 4), (8, 4), 2, "degree of freedom"),
        (nn.InstanceNorm2d(4), (8, 4, 1, 1), 1, "forward pass raises"),
        (nn.LayerNorm(1), (8, 1), 1, "erased"),
        (nn.RMSNorm(1), (8, 1), 1, "only the sign"),
    ],
)
def test_too_few_elements(norm, shape, count, text):
    fact = one(nn.Sequential(norm), "elements-per-statistic", example=torch.randn(shape))
    assert (fact.module, fact.value) == ("0", count)
    assert re.search(text, fact.text)
    assert str(shape) in fact.text
    assert f": {count} value{'' if count == 1 else 's'} per statistic" in fact.text


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(4), (9, 4)),
        (nn.BatchNorm2d(4), (1, 4, 3, 3)),
        (nn.GroupNorm(4, 4), (1, 4, 2, 2)),
        (nn.LayerNorm(4), (1, 4)),
    ],
)
def test_enough_elements(norm, shape):
    assert found(nn.Sequential(norm), "elements-per-statistic", example=torch.randn(shape)) == []


def test_groups_that_do_not_divide():
    norm = nn.GroupNorm(2, 48)
    norm.num_groups = 32
    fact = one(nn.Sequential(norm), "group-divisibility")
    assert "12 would do" in fact.text


def test_shared_norms():
    norm = nn.BatchNorm1d(4)
    fact = one(nn.Sequential(norm, nn.ReLU(), norm), "shared-norm", example=torch.randn(16, 4))
    assert (fact.module, fact.value) == ("0", 2)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(self.norm(x))

    assert found(Twice(), "shared-norm") == []
    assert one(Twice(), "shared-norm", example=torch.randn(16, 4)).value == 2


@pytest.mark.parametrize(
    ("eps", "dtype", "amiss"),
    [
        (1e-12, torch.float16, True),
        (1e-8, torch.float16, True),
        (1e-7, torch.float16, False),
        (1e-5, torch.float16, False),
        (1e-12, torch.bfloat16, False),
        (1e-12, torch.float32, False),
        (1e-40, torch.float32, True),
    ],
)
def test_eps_that_the_dtype_cannot_hold(eps, dtype, amiss):
    model = nn.Sequential(nn.LayerNorm(8, eps=eps)).to(dtype)
    assert bool(found(model, "eps-and-dtype")) is amiss
    assert bool(torch.tensor(eps, dtype=dtype) == 0) is (amiss and dtype == torch.float16)
    of_input = nn.Sequential(nn.LayerNorm(8, eps=eps))
    if dtype != torch.float32:
        assert bool(found(of_input.to(dtype), "eps-and-dtype", example=torch.randn(4, 8, dtype=dtype))) is amiss


def test_least_eps_of_a_half_is_where_it_begins_to_vanish():
    least = least_eps(torch.float16)
    assert torch.tensor(least * 1.001, dtype=torch.float16) > 0
    assert torch.tensor(least * 0.999, dtype=torch.float16) == 0


@pytest.mark.parametrize(("eps", "deviation"), [(1e-6, 0.71), (1e-5, 0.30), (1e-3, 0.03)])
def test_eps_against_the_variance_of_a_small_signal(eps, deviation):
    norm = nn.LayerNorm(512, eps=eps)
    x = torch.randn(64, 512) * 1e-3
    assert norm(x).std().item() == pytest.approx(deviation, abs=0.01)
    fact = one(nn.Sequential(norm), "eps-and-variance", example=x)
    told = float(re.search(r"deviation of (\S+) instead of 1", fact.text).group(1))
    assert told == pytest.approx(deviation, abs=0.01)
    assert found(nn.Sequential(nn.LayerNorm(512, eps=1e-8)), "eps-and-variance", example=x) == []


def test_eps_against_the_running_variance_needs_no_example():
    model = nn.Sequential(nn.BatchNorm1d(8))
    model[0].running_var.fill_(2e-5)
    assert "running variance" in one(model, "eps-and-variance").text


def test_variances_are_those_of_the_statistics():
    x = torch.randn(6, 8, 5) * torch.arange(1, 9).view(1, 8, 1) + 3
    model = nn.ModuleDict({
        "batch": nn.BatchNorm1d(8),
        "group": nn.GroupNorm(2, 8),
        "instance": nn.InstanceNorm1d(8),
        "layer": nn.LayerNorm(5),
        "rms": nn.RMSNorm(5),
    })

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = model

        def forward(self, x):
            return [norm(x) for norm in self.norms.values()]

    facts = audit(Net(), example=x, everything=True)
    limits = {f.module.split(".")[1]: float(f.expected.split()[1]) * 10 for f in facts if f.code == "eps-and-variance"}
    expected = {
        "batch": x.movedim(1, 0).flatten(1).var(1, correction=0).median(),
        "group": x.reshape(12, -1).var(1, correction=0).median(),
        "instance": x.var(2, correction=0).median(),
        "layer": x.var(2, correction=0).median(),
        "rms": x.square().mean(2).median(),
    }
    for name, value in expected.items():
        assert limits[name] == pytest.approx(value.item(), rel=1e-2), name


# ------------------------------------------------------------------------------------------------------------ buffers


@pytest.mark.parametrize(
    ("momentum", "amiss"), [(0.99, True), (0.9, True), (0.5, False), (0.1, False), (None, False), (1, True)]
)
def test_momentum_of_the_other_convention(momentum, amiss):
    facts = found(nn.Sequential(nn.BatchNorm1d(4, momentum=momentum)), "momentum-convention")
    assert bool(facts) is amiss
    if momentum == 0.99:
        assert "in Keras' convention this would be 0.01" in facts[0].text


@pytest.mark.parametrize(("momentum", "steps", "weight"), [(0.1, 20, 0.122), (0.01, 100, 0.366)])
def test_initial_statistics_that_still_weigh(momentum, steps, weight):
    model = nn.Sequential(nn.BatchNorm1d(4, momentum=momentum))
    for _ in range(steps):
        model(torch.zeros(8, 4))
    assert model[0].running_var[0].item() == pytest.approx(weight, abs=5e-4)  # of zeros: what is left of the initial 1
    assert one(model, "initial-weight").value == pytest.approx(weight, abs=5e-4)
    for _ in range(400):
        model(torch.zeros(8, 4))
    assert found(model, "initial-weight") == []


def test_statistics_that_never_came_are_amiss_in_evaluation_alone():
    model = nn.Sequential(nn.BatchNorm1d(4))
    assert found(model, "initial-weight") == []
    assert one(model.eval(), "initial-weight").value == 1.0
    model[0].running_mean.normal_()  # loaded from somewhere that counts no batches
    assert found(model, "initial-weight") == []


def test_a_flag_that_says_otherwise_than_the_buffers():
    model, x = nn.Sequential(nn.BatchNorm1d(4)), torch.randn(8, 4) + 5
    model(x)
    model[0].track_running_stats = False
    before = model[0].running_mean.clone()
    model(x)
    assert torch.equal(model[0].running_mean, before)
    assert torch.equal(model.eval()(x[:2])[0], model(x)[0])  # evaluation still uses the buffers
    assert "in evaluation by its buffers" in one(model.train(), "effective-mode").text


def test_frozen_layers_whose_buffers_move():
    model, x = nn.Sequential(nn.BatchNorm1d(4)), torch.randn(8, 4) + 5
    model.requires_grad_(False)
    before = model[0].running_mean.clone()
    model(x)
    assert not torch.equal(model[0].running_mean, before)
    assert "requires_grad=False freezes no buffer" in one(model, "frozen-but-moving").text
    model[0].eval()
    assert found(model, "frozen-but-moving") == []
    assert found(model, "mode") == []


def test_a_layer_left_in_evaluation_mode():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].eval()
    assert one(model, "mode").value == "eval"
    assert found(model.eval(), "mode") == []


def test_buffers_in_half_precision_and_what_that_does():
    norm = nn.BatchNorm1d(1, momentum=0.01).bfloat16()
    x = torch.tensor([[0.0], [2.0]]).repeat(500, 1).bfloat16()
    for _ in range(2000):
        norm(x)
    assert norm.running_mean.item() == pytest.approx(0.832, abs=0.005)  # stalls short of 1
    assert one(nn.Sequential(norm), "buffer-dtype").value == "torch.bfloat16"


def test_buffers_that_are_not_finite():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    x = torch.randn(8, 4)
    x[0, 0] = torch.inf
    model[1](x)
    for _ in range(50):
        model[1](torch.randn(8, 4))
    fact = one(model, "nonfinite-buffers")
    assert (fact.module, fact.value) == ("1", 2)


def test_one_layer_with_twice_the_updates_of_the_others():
    model = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(3)))
    for _ in range(60):
        model(torch.randn(8, 4))
        model[1](torch.randn(8, 4))
    fact = one(model, "buffers-updated-twice")
    assert (fact.module, fact.value, fact.expected) == ("1", 120, "60")
    assert "with 2 updates a step, momentum 0.05132 does what 0.1 does with one" in fact.text


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_updates_against_optimizer_steps(optimizer):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = optimizer(model.parameters(), lr=1e-3)
    for _ in range(20):
        for _ in range(4):  # micro-batches
            model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    facts = found(model, "buffers-updated-twice", optimizer)
    if isinstance(optimizer, torch.optim.SGD):
        assert facts == []  # SGD counts no steps
    else:
        assert (facts[0].value, facts[0].expected) == (80, "20")
        assert "with 4 updates a step, momentum 0.026 does" in facts[0].text


@pytest.mark.parametrize(("momentum", "k"), [(0.1, 2), (0.1, 8), (0.01, 2), (0.9, 3)])
def test_law_momentum_for_updates_moves_as_far(momentum, k):
    smaller = momentum_for_updates(momentum, k)
    value = 1.0
    for _ in range(k):
        value *= 1 - smaller
    assert value == pytest.approx(1 - momentum, rel=1e-12)


def test_momentum_for_updates_refuses_nonsense():
    with pytest.raises(NormalizationError, match=r"momentum is 1.5"):
        momentum_for_updates(1.5, 2)
    with pytest.raises(NormalizationError, match="updates is 0"):
        momentum_for_updates(0.1, 0)


# --------------------------------------------------------------------------------------------------------- parameters


def test_decay_on_norm_parameters():
    model = healthy()
    facts = found(model, "decay-on-norm", torch.optim.AdamW(model.parameters(), weight_decay=0.1))
    assert [fact.module for fact in facts] == ["1", "4", "7", "9", "10"]
    assert all(fact.value == 0.1 for fact in facts)
    assert found(model, "decay-on-norm", torch.optim.AdamW(groups_of(model, 0.1))) == []
    several = [
        torch.optim.SGD(model[:5].parameters(), lr=1.0),
        torch.optim.SGD(model[5:].parameters(), lr=1.0, weight_decay=1e-4),
    ]
    assert [fact.module for fact in found(model, "decay-on-norm", several)] == ["7", "9", "10"]


def biases(model, example=None):
    return {
        fact.module: fact.value
        for fact in audit(model, example=example, everything=True)
        if fact.code == "bias-before-norm"
    }


def test_biases_that_a_norm_takes_off_are_facts_but_not_amiss():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, bias=False), nn.InstanceNorm2d(4))
    assert biases(model) == {"1": True, "3": False}
    assert found(model, "bias-before-norm") == []
    model(torch.randn(4, 3, 9, 9)).square().mean().backward()
    loss = model(torch.randn(4, 3, 9, 9)).pow(3).mean()
    gradient = torch.autograd.grad(loss, [model[0].bias, model[0].weight])
    assert gradient[0].abs().max() < 1e-5 * gradient[1].abs().max()
    assert biases(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))) == {}  # takes off the mean over features alone
    assert biases(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()) == {}


def test_an_example_of_one_sample_does_not_raise():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert one(model, "elements-per-statistic", example=torch.randn(1, 4)).value == 1


def test_a_pass_that_pytorch_stops_is_told_apart_from_a_fault_of_the_model():
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 4), nn.BatchNorm1d(4)
    )
    with pytest.raises(ValueError, match="more than 1 value per channel when training"):
        model.eval()(torch.randn(1, 4))  # in evaluation mode, and no layer is named
    assert one(model.train(), "elements-per-statistic", example=torch.randn(1, 4)).module == "1"

    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            raise ValueError("of the model's own")

    with pytest.raises(ValueError, match="of the model's own"):
        audit(Broken(), example=torch.randn(8, 4))


# ----------------------------------------------------------------------------------------------------- spectral norms


def test_vectors_of_a_spectral_norm_that_lost_their_length_are_told():
    model = nn.Sequential(nn.Linear(6, 5), nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)))
    assert [fact.value for fact in audit(model, everything=True) if fact.code == "spectral-vectors"] == [
        pytest.approx(1.0, abs=1e-6)
    ]
    assert found(model.bfloat16(), "spectral-vectors") == []
    model.float().eval()
    step = model[1].parametrizations.weight[0]
    true = model[1].weight.norm()
    step._u.mul_(0.5)
    step._v.mul_(0.5)
    fact = one(model, "spectral-vectors")
    assert (fact.module, fact.value) == ("1", pytest.approx(0.25, rel=1e-2))
    assert "1.weight: u and v of its spectral norm are 0.5 and 0.5 long" in fact.text
    assert (model[1].weight.norm() / true).item() == pytest.approx(1.0 / 0.25, rel=1e-2)  # what it tells of
    model.train()[1](torch.randn(1, 3, 4, 4))
    assert found(model, "spectral-vectors") == []
    step._u.fill_(torch.nan)
    assert one(model, "spectral-vectors").module == "1"


# ------------------------------------------------------------------------------------------------------------- errors


def test_wrong_arguments_say_what_was_expected():
    with pytest.raises(NormalizationError, match=r"model is \[\]; a torch.nn.Module is needed"):
        audit([])
    with pytest.raises(NormalizationError, match=r"optimizer is 'adam'; a torch.optim.Optimizer, or a list of them"):
        audit(nn.Linear(2, 2), ["adam"])
