"""Changes of the loop and the optimizer: what each does to a setup, exactly."""

import copy
import math

import pytest
import torch
from repair_cases import make_setup
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR

from trimtab.errors import RepairError
from trimtab.repairs.change import Change
from trimtab.repairs.surgery import adopt, replace_module, scale_rates, split_groups


def rates(setup, steps):
    """The learning rate of each step."""
    found = []
    setup.optimizer.register_step_pre_hook(lambda o, args, kwargs: found.append(o.param_groups[0]["lr"]))
    for _ in setup.train(steps):
        pass
    return found


def scheduled(make, lr=0.1, **settings):
    setup = make_setup(0, lr=lr, steps=12, **settings)
    setup.scheduler = make(setup.optimizer)
    return setup


SCHEDULES = {
    "none": lambda o: None,
    "step": lambda o: StepLR(o, 4),
    "cosine": lambda o: CosineAnnealingLR(o, 12, eta_min=0.01),
    "lambda": lambda o: LambdaLR(o, lambda step: 1 / (step + 1)),
    "one cycle": lambda o: OneCycleLR(o, 0.1, total_steps=13),
    "sequential": lambda o: SequentialLR(o, [LambdaLR(o, lambda s: (s + 1) / 4), CosineAnnealingLR(o, 8)], [4]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_scaled_rate_is_scaled_at_every_step(name):
    plain = rates(scheduled(SCHEDULES[name]), 12)
    setup = scheduled(SCHEDULES[name])
    scale_rates(setup, 0.1)
    assert rates(setup, 12) == pytest.approx([0.1 * rate for rate in plain])


def test_a_scaled_rate_under_a_plateau_schedule():
    setup = scheduled(lambda o: ReduceLROnPlateau(o, patience=0, min_lr=0.01))
    scale_rates(setup, 0.1)
    assert setup.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert setup.scheduler.min_lrs == pytest.approx([0.001])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_warm_up_rises_to_the_schedule(name):
    plain = rates(scheduled(SCHEDULES[name]), 12)
    setup = Change("warm-up", {"share": 0.25}).apply(scheduled(SCHEDULES[name]))
    setup.optimizer.register_step_pre_hook(lambda o, args, kwargs: None)
    ramp = [min((step + 1) / 3, 1.0) for step in range(12)]
    assert rates(setup, 12) == pytest.approx([rate * share for rate, share in zip(plain, ramp, strict=True)])


def test_a_schedule_is_left_out_or_stretched():
    kept = Change("keep-rate").apply(scheduled(SCHEDULES["step"]))
    assert rates(kept, 12) == [0.1] * 12
    stretched = Change("stretch-schedule", {"factor": 2}).apply(scheduled(SCHEDULES["step"]))
    assert rates(stretched, 12) == pytest.approx([0.1] * 8 + [0.01] * 4)
    for change in (Change("keep-rate"), Change("stretch-schedule", {"factor": 2})):
        with pytest.raises(RepairError, match="there is no schedule"):
            change.apply(make_setup(0))


def gradients(setup, of=None):
    """Gradients that the optimizer uses at its first step."""
    found = []
    setup.optimizer.register_step_pre_hook(
        lambda o, args, kwargs: found.append([p.grad.clone() for g in o.param_groups for p in g["params"]])
    )
    for _ in setup.train(1):
        pass
    return found[0]


def norm(tensors):
    return float(torch.stack([t.norm() for t in tensors]).norm())


def test_clipping_shortens_all_gradients_together():
    plain = gradients(make_setup(0))
    clipped = gradients(Change("clip", {"bound": 0.01}).apply(make_setup(0)))
    assert norm(clipped) == pytest.approx(0.01, rel=1e-3)
    for a, b in zip(plain, clipped, strict=True):
        torch.testing.assert_close(a * (0.01 / norm(plain)), b, rtol=1e-3, atol=1e-8)


def clipping_step(bound):
    def step(setup, batch):
        setup.optimizer.zero_grad()
        loss = setup.loss(setup.model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(setup.model.parameters(), bound)
        setup.optimizer.step()
        return loss

    return step


@pytest.mark.parametrize(("bound", "expected"), [(None, None), (0.5, 0.5), (100.0, None)])
def test_loosened_clipping_gives_back_what_was_taken(bound, expected):
    plain = gradients(make_setup(0))
    found = gradients(Change("loosen-clipping", {"bound": bound}).apply(make_setup(0, step=clipping_step(1e-3))))
    scale = 1.0 if expected is None else expected / norm(plain)
    for a, b in zip(plain, found, strict=True):
        torch.testing.assert_close(a * scale, b, rtol=1e-4, atol=1e-7)


def test_gradients_that_nobody_clips_are_left_as_they_are():
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            gradients(make_setup(0)),
            gradients(Change("loosen-clipping", {"bound": 1e-3}).apply(make_setup(0))),
            strict=True,
        )
    )


def test_gradients_are_cleared_after_each_step():
    def forgets(setup, batch):
        loss = setup.loss(setup.model, batch)
        loss.backward()
        setup.optimizer.step()
        return loss

    mended = Change("zero-grad").apply(make_setup(0, step=forgets))
    plain = make_setup(0)
    assert [x.item() for x in mended.train(5)] == [x.item() for x in plain.train(5)]


def half_step(setup, batch):
    setup.optimizer.zero_grad()
    loss = F.cross_entropy(setup.model(batch[0]), batch[1])  # not by setup.loss
    loss.backward()
    setup.optimizer.step()
    return loss


@pytest.mark.parametrize("step", [None, half_step])
def test_a_scaled_loss_gives_the_same_gradients_and_is_reported_as_it_is(step):
    plain, scaled = make_setup(0, step=step), Change("scale-loss", {"scale": 2.0**10}).apply(make_setup(0, step=step))
    assert [x.item() for x in scaled.train(3)] == [x.item() for x in plain.train(3)]  # powers of two change no digit
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), scaled.model.parameters(), strict=True))


def test_a_scaled_loss_reaches_gradients_that_half_precision_loses():
    class Half(nn.Linear):
        def forward(self, x):
            return F.linear(x.half(), self.weight.half(), self.bias.half()).float()

    def tiny(m, batch):
        return 1e-7 * F.cross_entropy(m(batch[0]), batch[1])

    net = lambda: nn.Sequential(Half(2, 4))  # noqa: E731
    broken, mended = make_setup(0, net=net), make_setup(0, net=net)
    broken.loss = mended.loss = tiny
    assert norm(gradients(broken)) == 0
    exact = make_setup(0, net=net)
    wanted = norm(gradients(exact)) * 1e-7
    assert norm(gradients(Change("scale-loss", {"scale": 2.0**16}).apply(mended))) == pytest.approx(wanted, rel=0.02)


def test_a_step_with_overflown_gradients_is_left_out():
    setup = Change("scale-loss", {"scale": 2.0**127}).apply(make_setup(0))
    before = copy.deepcopy(setup.model.state_dict())
    setup.loss = lambda m, batch: 1e3 * F.cross_entropy(m(batch[0]), batch[1])
    for _ in setup.train(2):
        pass
    assert all(torch.equal(before[k], v) for k, v in setup.model.state_dict().items())


class TestPoles:
    def test_the_logarithm_of_zero(self):
        setup = make_setup(0, optimizer=torch.optim.Adam, lr=1e-3)
        setup.loss = lambda m, batch: -(torch.softmax(1e4 * m(batch[0]), 1).log()).mean()
        assert not math.isfinite(next(iter(setup.train(1))).item())
        mended = make_setup(0, optimizer=torch.optim.Adam, lr=1e-3)
        mended.loss = setup.loss
        Change("off-poles", {"eps": 1e-6}).apply(mended)
        losses = [x.item() for x in mended.train(5)]
        assert all(map(math.isfinite, losses))
        assert max(losses) <= -math.log(1e-6) + 1e-3

    @pytest.mark.parametrize("function", [torch.sqrt, torch.Tensor.sqrt, torch.log, torch.acos])
    def test_slopes_stay_finite(self, function):
        edge = 1.0 if function is torch.acos else 0.0
        setup = make_setup(0)
        setup.loss = lambda m, batch: function((m(batch[0]).sum() * 0).reshape(1) + edge).sum()
        Change("off-poles", {"eps": 1e-4}).apply(setup)
        assert all(bool(torch.isfinite(g).all()) for g in gradients(setup))

    def test_the_optimizers_own_roots_are_left_alone(self):
        """Adam with tiny second moments: a floor under its root would change its steps."""
        plain, mended = (make_setup(0, optimizer=torch.optim.Adam, lr=1e-2) for _ in range(2))
        for setup in (plain, mended):
            setup.loss = lambda m, batch: 1e-6 * F.cross_entropy(m(batch[0]), batch[1])
        Change("off-poles", {"eps": 1e-3}).apply(mended)
        assert [x.item() for x in plain.train(5)] == [x.item() for x in mended.train(5)]


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 8)
        self.layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
        self.named = {"a": nn.Linear(8, 8)}
        self.scales = [nn.Parameter(torch.ones(1))]
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(self.named["a"](x) * self.scales[0])


def held(setup):
    return [id(p) for o in setup.optimizers for g in o.param_groups for p in g["params"]]


def test_hidden_layers_are_registered_and_trained():
    setup = make_setup(0, net=Hidden)
    hidden = [*setup.model.layers, *setup.model.named.values()]
    expected = {id(p) for layer in hidden for p in layer.parameters()} | {id(setup.model.scales[0])} | set(held(setup))
    Change("add-parameters").apply(setup)
    assert set(held(setup)) == expected == {id(p) for p in setup.model.parameters()}
    assert len(held(setup)) == len(expected)
    before = hidden[0].weight.clone()
    for _ in setup.train(2):
        pass
    assert not torch.equal(before, setup.model.layers[0].weight)
    with pytest.raises(RepairError, match="hold every parameter"):
        Change("add-parameters").apply(setup)


def test_frozen_parameters_are_thawed_and_trained():
    setup = make_setup(0)
    setup.model[0].requires_grad_(False)
    setup.optimizer = torch.optim.SGD([p for p in setup.model.parameters() if p.requires_grad], lr=0.1)
    Change("unfreeze", {"where": ["0"]}).apply(setup)
    assert set(held(setup)) == {id(p) for p in setup.model.parameters()}
    with pytest.raises(RepairError, match="no parameter of 0 is frozen"):
        Change("unfreeze", {"where": ["0"]}).apply(setup)


def test_vectors_are_spared_with_the_schedule_in_step():
    def net():
        return nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))

    setup = scheduled(lambda o: LambdaLR(o, [lambda s: 1 / (s + 1)]), net=net, weight_decay=0.1)
    Change("spare-vectors").apply(setup)
    decayed, spared = setup.optimizer.param_groups
    assert {id(p) for p in decayed["params"]} == {id(p) for p in setup.model.parameters() if p.ndim > 1}
    assert {id(p) for p in spared["params"]} == {id(p) for p in setup.model.parameters() if p.ndim == 1}
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    for _ in setup.train(3):
        pass
    assert decayed["lr"] == spared["lr"] == pytest.approx(0.1 / 4)
    with pytest.raises(RepairError, match="no norm parameter or bias is decayed"):
        Change("spare-vectors").apply(setup)


def test_decay_and_eps():
    setup = make_setup(0, optimizer=torch.optim.AdamW, lr=1e-3, weight_decay=0.2, eps=1e-3)
    Change("scale-decay", {"factor": 0.01}).apply(setup)
    Change("adam-eps", {"eps": 1e-8}).apply(setup)
    group = setup.optimizer.param_groups[0]
    assert group["weight_decay"] == pytest.approx(0.002)
    assert group["eps"] == 1e-8
    with pytest.raises(RepairError, match="no optimizer has another eps"):
        Change("adam-eps", {"eps": 1e-8}).apply(setup)
    with pytest.raises(RepairError, match="there is no weight decay"):
        Change("scale-decay", {"factor": 0.01}).apply(make_setup(0))


class TestSurgery:
    def test_a_replaced_module_takes_the_place_of_the_old_one_in_its_group(self):
        setup = make_setup(0)
        first, last = setup.model[0], setup.model[2]
        setup.optimizer = torch.optim.Adam(
            [{"params": first.parameters(), "lr": 0.3}, {"params": last.parameters(), "lr": 0.1}], lr=1.0
        )
        new = nn.Linear(2, 16)
        replace_module(setup, "0", new)
        assert setup.model[0] is new
        assert [id(p) for p in setup.optimizer.param_groups[0]["params"]] == [id(p) for p in new.parameters()]
        assert len(setup.optimizer.param_groups[1]["params"]) == 2

    def test_weights_that_are_shared_stay(self):
        setup = make_setup(0, net=lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 4)))
        setup.model[1].weight = setup.model[0].weight
        replace_module(setup, "1", nn.Linear(2, 2))
        assert id(setup.model[0].weight) in held(setup)
        assert set(held(setup)) >= {id(p) for p in setup.model.parameters()}

    def test_a_wrapped_module_keeps_its_parameters_once(self):
        setup = make_setup(0)
        replace_module(setup, "0", nn.Sequential(setup.model[0], nn.LayerNorm(16)))
        assert sorted(held(setup)) == sorted(id(p) for p in setup.model.parameters())

    def test_the_model_itself_is_not_replaced(self):
        with pytest.raises(RepairError, match="the model itself cannot be replaced"):
            replace_module(make_setup(0), "", nn.Linear(2, 4))

    def test_state_goes_with_its_parameter(self):
        setup = make_setup(0, optimizer=torch.optim.Adam, lr=1e-3)
        for _ in setup.train(1):
            pass
        old = list(setup.model[0].parameters())
        adopt(setup, [], gone=old)
        assert not any(p in setup.optimizer.state for p in old)
        assert all(p in setup.optimizer.state for p in setup.model[2].parameters())

    def test_a_group_as_a_whole_is_not_split(self):
        setup = make_setup(0, weight_decay=0.1)
        assert split_groups(setup, lambda p: True, weight_decay=0.0) == 4
        assert len(setup.optimizer.param_groups) == 1


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", [*SCHEDULES, "plateau"])
def test_groups_split_apart_keep_the_rates_of_their_schedule(name, lr):
    """Of two groups and of three, as many as OneCycleLR has phases; SequentialLR has as many milestones as there was one group."""
    schedules = {**SCHEDULES, "plateau": lambda o: ReduceLROnPlateau(o, patience=0, threshold=1.0)}

    def make():
        return make_setup(0, lr=torch.clone(lr) if isinstance(lr, torch.Tensor) else lr, steps=12)

    def trained(setup):
        found = []
        setup.optimizer.register_step_pre_hook(
            lambda o, args, kwargs: found.append([float(group["lr"]) for group in o.param_groups])
        )
        assert len(list(setup.train(12))) == 12
        return found

    plain, setup = make(), make()
    for one in (plain, setup):
        one.scheduler = schedules[name](one.optimizer)
    for parameter in (setup.model[0].weight, setup.model[2].weight):
        split_groups(setup, lambda p, own=parameter: p is own, weight_decay=1e-9)
    usual = [rates for (rates,) in trained(plain)]
    assert trained(setup) == [pytest.approx([rate] * 3) for rate in usual]


def test_a_schedule_that_goes_by_the_loss_is_not_stretched():
    setup = scheduled(lambda o: ReduceLROnPlateau(o))
    with pytest.raises(RepairError, match="goes by the loss"):
        Change("stretch-schedule", {"factor": 2}).apply(setup)
