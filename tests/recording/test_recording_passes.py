"""Which passes count: those whose gradients an optimizer's step uses, each once, and nothing else."""

import pytest
import torch
from recording_cases import Net, by_hand, check, count, grads, record_of, seen, watching
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

x = torch.randn(16, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
y = torch.randn(16, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
NAMES = ("a", "act", "b")


def made(lr=0.1):
    net = Net().double()
    return net, torch.optim.SGD(net.parameters(), lr)


def reference(net):
    outputs = by_hand(net, x)
    loss = F.mse_loss(outputs[-1], y)
    return [o.detach() for o in outputs], torch.autograd.grad(loss, outputs), loss.item()


def train(net, optimizer):
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()


def only_the_training_pass(record, told, step=0):
    outputs, gradients, loss = told
    for i, name in enumerate(NAMES):
        check(record, name, "output", outputs[i], step=step)
        check(record, name, "gradient", gradients[i], step=step)
    check(record, "input[0]", "input", x, step=step)
    assert record.losses[step] == pytest.approx(loss, rel=1e-12)


OTHER = torch.full((7, 5), 100.0, dtype=torch.float64)


def saliency_by_grad(net, optimizer):
    image = OTHER.clone().requires_grad_()
    torch.autograd.grad(net(image).sum(), image)


def saliency_by_backward(net, optimizer):
    image = OTHER.clone().requires_grad_()
    net(image).sum().backward()
    optimizer.zero_grad()


def saliency_by_backward_zeroed(net, optimizer):
    image = OTHER.clone().requires_grad_()
    net(image).sum().backward()
    optimizer.zero_grad(set_to_none=False)


def saliency_by_backward_to_inputs(net, optimizer):
    image = OTHER.clone().requires_grad_()
    net(image).sum().backward(inputs=[image])


def forward_without_backward(net, optimizer):
    net(OTHER)


def evaluation_that_forgot_no_grad(net, optimizer):
    net.eval()
    for _ in range(3):
        net(OTHER).argmax(1)
    net.train()


def evaluation(net, optimizer):
    net.eval()
    with torch.no_grad():
        net(OTHER)
    with torch.inference_mode():
        net(OTHER)
    net.train()


def aborted_forward(net, optimizer):
    handle = net.b.register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net(OTHER)
    handle.remove()


def per_sample_gradients(net, optimizer):
    weights = {name: p.detach() for name, p in net.named_parameters()}
    vmap(grad(lambda w, row: functional_call(net, w, (row[None],)).sum()), (None, 0))(weights, OTHER)


def vmapped(net, optimizer):
    vmap(net)(OTHER)


def foreign_weights(net, optimizer):
    weights = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    functional_call(net, weights, (OTHER,)).sum().backward()


def jvp(net, optimizer):
    torch.func.jvp(net, (OTHER,), (OTHER,))


def hessian_vector_product(net, optimizer):
    parameters = list(net.parameters())
    first = torch.autograd.grad(F.mse_loss(net(x), y), parameters, create_graph=True)
    torch.autograd.grad(sum(g.square().sum() for g in first), parameters)


DETOURS = [
    saliency_by_grad, saliency_by_backward, saliency_by_backward_zeroed, saliency_by_backward_to_inputs,
    forward_without_backward, evaluation_that_forgot_no_grad, evaluation, aborted_forward, per_sample_gradients, vmapped,
    foreign_weights, jvp, hessian_vector_product,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, inside jvp
@pytest.mark.parametrize("detour", DETOURS)
def test_what_does_not_train_is_dropped(detour):
    """Before the training pass of a step, and after the step."""
    net, optimizer = made()
    told = []
    with watching(net, optimizer) as recorder:
        for _ in range(3):
            detour(net, optimizer)
            told.append(reference(net))
            train(net, optimizer)
            detour(net, optimizer)
        optimizer.zero_grad()
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1, 2]
    for step in range(3):
        only_the_training_pass(record, told[step], step)


@pytest.mark.parametrize("detour", [forward_without_backward, evaluation, saliency_by_grad, per_sample_gradients])
def test_what_does_not_train_is_dropped_between_forward_and_backward(detour):
    net, optimizer = made()
    with watching(net, optimizer) as recorder:
        told = reference(net)
        loss = F.mse_loss(net(x), y)
        detour(net, optimizer)
        loss.backward()
        detour(net, optimizer)
        optimizer.step()
    only_the_training_pass(record_of(recorder), told)


def test_the_loss_of_unrecorded_steps_is_that_of_training_too():
    net, optimizer = made()
    losses = []
    with watching(net, optimizer, every=1000) as recorder:
        for _ in range(20):
            saliency_by_backward(net, optimizer)
            saliency_by_backward_to_inputs(net, optimizer)
            losses.append(reference(net)[2])
            train(net, optimizer)
        optimizer.zero_grad()
    record = record_of(recorder)
    assert record.steps.tolist() == list(range(10))
    assert record.losses.tolist() == pytest.approx(losses, rel=1e-12)


def test_a_run_that_never_steps_has_no_steps():
    net, optimizer = made()
    with watching(net, optimizer) as recorder:
        for _ in range(3):
            F.mse_loss(net(x), y).backward()
    record = record_of(recorder)
    assert record.step_count == 0
    assert len(record.steps) == 0
    assert record.finished


class Blocks(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.reentrant = reentrant

    def block(self, x):
        return torch.tanh(self.b(x))

    def forward(self, x):
        x = self.a(x)
        x = self.block(x) if self.reentrant is None else checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.c(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_count_once(reentrant):
    """Hazard 05: the forward of a checkpointed block runs twice."""
    records = []
    for how in (None, reentrant):
        torch.manual_seed(0)
        net = Blocks(how).double()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with watching(net, optimizer) as recorder:
            for _ in range(2):
                train(net, optimizer)
        records.append(record_of(recorder))
    plain, checked = records
    for step in range(2):
        for name in "abc":
            for kind in ("output", "gradient"):
                assert count(checked, name, kind, step) == count(plain, name, kind, step) > 0
                site, other = plain.site(0, name, kind), checked.site(0, name, kind)
                assert checked.series(other).rows[step] == pytest.approx(plain.series(site).rows[step], rel=1e-6)
    assert checked.losses.tolist() == plain.losses.tolist()
    assert checked.info[0]["passes"] == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_wholly_checkpointed_net_counts_once(reentrant):
    class All(Net):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    net = All().double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    told = reference(net)
    with watching(net, optimizer) as recorder:
        optimizer.zero_grad()
        F.mse_loss(net(x.clone().requires_grad_()), y).backward()
        optimizer.step()
    only_the_training_pass(record_of(recorder), told)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_the_root_is_never_wrong(reentrant):
    """Around the root a reentrant checkpoint looks like an evaluation: its outputs may be missing, but are never false."""
    net, optimizer = made()
    told = reference(net)
    with watching(net, optimizer) as recorder:
        optimizer.zero_grad()
        F.mse_loss(checkpoint(net, x.clone().requires_grad_(), use_reentrant=reentrant), y).backward()
        used = grads(net)
        optimizer.step()
    record = record_of(recorder)
    for name, gradient in used.items():
        check(record, name, "parameter-gradient", gradient)
    if reentrant:
        for name in NAMES:
            assert count(record, name, "output") in (0, told[0][NAMES.index(name)].numel())
    else:
        only_the_training_pass(record, told)


def test_wgan_gp_double_backward():
    """Hazard 11: the inner pass of the gradient penalty deposits nothing; the outer one goes through all three forwards."""
    critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(critic.parameters(), 0.1)

    def loss_of(call, real, fake):
        mixed = (0.5 * real + 0.5 * fake).requires_grad_()
        (g,) = torch.autograd.grad(call(mixed).sum(), mixed, create_graph=True)
        return call(fake).mean() - call(real).mean() + 10 * ((g.norm(dim=1) - 1) ** 2).mean()

    outputs = []

    def hand(v):
        first = v @ critic[0].weight.T + critic[0].bias
        second = first.tanh()
        outputs.append((first, second, second @ critic[2].weight.T + critic[2].bias))
        return outputs[-1][-1]

    fake = x + 1
    flat = lambda: [t for triple in outputs for t in triple]  # noqa: E731
    loss = loss_of(hand, x, fake)
    gradients = torch.autograd.grad(loss, flat(), allow_unused=True)
    with watching(critic, optimizer) as recorder:
        watched = loss_of(critic, x, fake)
        watched.backward()
        used = grads(critic)
        optimizer.step()
    record = record_of(recorder)
    assert watched.item() == loss.item()
    for i in range(3):
        check(record, str(i), "output", *(triple[i] for triple in outputs))
        check(record, str(i), "gradient", *(g for g in gradients[i::3] if g is not None))
    for name, gradient in used.items():
        check(record, name, "parameter-gradient", gradient)
    assert record.info[0]["passes"] == 1
    assert record.losses[0] == pytest.approx(loss.item())


def test_gan_steps_and_whose_gradients_they_show():
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5)).double()
    critic = Net().double()
    of_generator, of_critic = (torch.optim.SGD(m.parameters(), 0.1) for m in (generator, critic))
    z = torch.randn(16, 4, dtype=torch.float64)
    used = []
    with watching([generator, critic], [of_generator, of_critic]) as recorder:
        for _ in range(2):
            of_critic.zero_grad()
            with torch.no_grad():
                fake = generator(z)
            (critic(fake).mean() - critic(x).mean()).backward()
            used.append(grads(critic))
            of_critic.step()
            of_generator.zero_grad()
            loss = -critic(generator(z)).mean()
            loss.backward()
            used.append(grads(generator))
            of_generator.step()
    record = record_of(recorder)
    assert [info["optimizers"] for info in record.info] == [2, 1, 2, 1]
    for step, gradients in enumerate(used):
        trained, idle = (1, 0) if step % 2 == 0 else (0, 1)
        for name, gradient in gradients.items():
            check(record, name, "parameter-gradient", gradient, step=step, model=trained)
            check(record, name, "raw-gradient", gradient, step=step, model=trained)
        for site in record.of_kind("parameter-gradient"):
            if site.model == idle:
                assert count(record, site.name, "parameter-gradient", step, idle) == 0
    # At the critic's steps the generator's gradients are left over from its own: no pass has left any.
    for step in (0, 2):
        assert count(record, "0.weight", "raw-gradient", step, 0) == 0
        assert count(record, "0", "output", step, 0) == 0
        assert count(record, "a", "output", step, 1) == 2 * 16 * 7
    for step in (1, 3):
        assert count(record, "0", "output", step, 0) == 16 * 8
        assert count(record, "a", "output", step, 1) == 16 * 7
    assert all(info["uncleared"] == [] for info in record.info)
    assert seen(record, "gradient", 0) == ["0", "1", "2"]
