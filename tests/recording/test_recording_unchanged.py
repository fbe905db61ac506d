"""Watching changes nothing: with a recorder and without, a training run is the same to the last bit."""

import random

import numpy as np
import pytest
import torch
from recording_cases import count, record_of, watching
from torch import nn
from torch.nn import functional as F


class Mlp:
    def __init__(self):
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 4)
        )
        self.models = [self.model]
        self.optimizers = [torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)]

    def data(self):
        noise = random.random() + float(np.random.rand())
        return torch.randn(16, 8) * noise

    def step(self):
        (optimizer,) = self.optimizers
        optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.data()), torch.randint(4, (16,)))
        loss.backward()
        optimizer.step()
        return [loss.item()]

    def evaluate(self):
        return [model(self.data()) for model in self.models]


class Cnn(Mlp):
    def __init__(self):
        self.model = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, 4),
        )
        self.models = [self.model]
        self.optimizers = [torch.optim.AdamW(self.model.parameters(), 0.01)]

    def data(self):
        return torch.randn(16, 1, 8, 8)


class Lstm(Mlp):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.1, batch_first=True)
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    def __init__(self):
        self.model = self.Net()
        self.models = [self.model]
        self.optimizers = [torch.optim.RMSprop(self.model.parameters(), 0.01)]

    def data(self):
        return torch.randn(16, 6, 8)


class Transformer(Mlp):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.last = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.last(self.encoder(x)).mean(1))

    def __init__(self):
        self.model = self.Net()
        self.models = [self.model]
        self.optimizers = [torch.optim.Adam(self.model.parameters(), 0.01)]

    def data(self):
        return torch.randn(8, 6, 8)

    def step(self):
        (optimizer,) = self.optimizers
        optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.data()), torch.randint(4, (8,)))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        optimizer.step()
        return [loss.item()]


class Gan(Mlp):
    def __init__(self):
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(inplace=True), nn.Linear(16, 8))
        self.critic = nn.Sequential(
            nn.Linear(8, 16), nn.LeakyReLU(0.2, inplace=True), nn.Dropout(0.1), nn.Linear(16, 1)
        )
        self.models = [self.generator, self.critic]
        self.optimizers = [torch.optim.Adam(model.parameters(), 1e-3, betas=(0.5, 0.9)) for model in self.models]

    def step(self):
        of_generator, of_critic = self.optimizers
        real, one, zero = self.data(), torch.ones(16, 1), torch.zeros(16, 1)
        fake = self.generator(torch.randn(16, 4))
        of_critic.zero_grad()
        critic_loss = F.binary_cross_entropy_with_logits(self.critic(real), one)
        critic_loss = critic_loss + F.binary_cross_entropy_with_logits(self.critic(fake.detach()), zero)
        critic_loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        generator_loss = F.binary_cross_entropy_with_logits(self.critic(fake), one)
        generator_loss.backward()
        of_generator.step()
        return [critic_loss.item(), generator_loss.item()]

    def evaluate(self):
        return [self.critic(self.generator(torch.randn(5, 4)))]


CASES = [Mlp, Cnn, Lstm, Transformer, Gan]


def seed():
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)


def run(case, every, steps, evaluations, watch):
    """Everything a run leaves behind, as one flat list of tensors and plain values."""
    seed()
    run = case()
    trace = []

    def train():
        for i in range(steps):
            if evaluations and i % 20 == 0:  # also before the first step
                for model in run.models:
                    model.eval()
                with torch.no_grad():
                    trace.extend(run.evaluate())
                for model in run.models:
                    model.train()
            trace.extend(run.step())

    if watch:
        with watching(run.models, run.optimizers, every) as recorder:
            train()
        assert recorder.step == steps * len(run.optimizers)
    else:
        train()
    for model in run.models:
        trace.append(list(model.state_dict()))
        trace.extend(model.state_dict().values())  # weights and buffers
        trace.extend(p.grad for p in model.parameters())
    for optimizer in run.optimizers:
        state = optimizer.state_dict()
        trace.append(state["param_groups"])
        for index in state["state"]:
            trace.extend(state["state"][index].values())
    trace += [torch.get_rng_state(), random.getstate()]
    kind, keys, *rest = np.random.get_state()
    return [*trace, kind, torch.from_numpy(keys.astype(np.int64)), rest]


@pytest.mark.parametrize(
    ("every", "steps", "evaluations"),
    [(1, 200, True), (1, 40, False), (None, 160, True)],  # by default ever fewer steps are recorded, the last at 150
)
@pytest.mark.parametrize("case", CASES)
def test_bit_identical(case, every, steps, evaluations):
    plain = run(case, every, steps, evaluations, watch=False)
    watched = run(case, every, steps, evaluations, watch=True)
    assert len(plain) == len(watched)
    for a, b in zip(plain, watched, strict=True):
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, b)
        else:
            assert a == b


@pytest.fixture
def fused(monkeypatch):
    """Counts the calls of the fused forward of `TransformerEncoderLayer`, which any hook on it switches off."""
    real, calls = torch._transformer_encoder_layer_fwd, []

    def spy(*args):
        calls.append(1)
        return real(*args)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", spy)
    return calls


def test_a_hook_would_switch_the_fast_path_off(fused):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    with torch.no_grad():
        layer(torch.randn(4, 6, 8))
        assert len(fused) == 1
        handle = layer.register_forward_pre_hook(lambda module, args: None)
        layer(torch.randn(4, 6, 8))
        handle.remove()
    assert len(fused) == 1  # otherwise the test below proves nothing


@pytest.mark.parametrize("place", ["root", "child", "child called by hand", "deep"])
def test_evaluation_between_recorded_steps_takes_the_fast_path(place, fused):
    seed()
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = {"root": layer, "deep": nn.Sequential(nn.Sequential(layer))}.get(place, nn.Sequential(layer))
    call = layer if place == "child called by hand" else model
    x = torch.randn(4, 6, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)

    def evaluate():
        fused.clear()
        model.eval()
        with torch.no_grad():
            y = call(x)
        model.train()
        assert len(fused) == 1
        return y

    plain = evaluate()
    with watching(model, optimizer) as recorder:
        assert torch.equal(evaluate(), plain)
        for _ in range(3):
            optimizer.zero_grad()
            loss = call(x).square().mean()
            assert torch.equal(evaluate(), plain)
            loss.backward()
            optimizer.step()
            assert torch.equal(evaluate(), plain)
            assert torch.equal(evaluate(), plain)
    record = record_of(recorder)
    name = {"root": "linear1", "deep": "0.0.linear1"}.get(place, "0.linear1")
    assert [count(record, name, "output", step) for step in range(3)] == [4 * 6 * 16] * 3
