"""Hazards 21, 28 and what trainers do: other people's loops, watched; a generator and its critic; what is no number."""

import contextlib
import logging

import numpy as np
import pytest
import torch
from recording_cases import Net, check, count, grads, record_of, seen, watching
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import trimtab

x, y = torch.randn(24, 5), torch.randn(24, 3)


def batches(size):
    return DataLoader(TensorDataset(x, y), batch_size=size)


@pytest.mark.parametrize("passes", [1, 3])
def test_accelerate(passes):
    """Its optimizer is a wrapper without hooks of its own; the one inside is watched."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=passes)
    net = Net()
    net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), batches(4))
    with trimtab.watch(net, optimizer, every=1) as watch:
        for data, target in loader:
            with accelerator.accumulate(net):
                loss = F.mse_loss(net(data), target)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(net.parameters(), 0.1)
                used = grads(net)
                optimizer.step()
                optimizer.zero_grad()
    record = watch.record
    last = 6 // passes - 1
    assert record.steps.tolist() == list(range(last + 1))
    assert [info["passes"] for info in record.info] == [passes] * (last + 1)
    assert [facts["class"] for facts in record.optimizers] == ["SGD"]
    assert count(record, "a", "output", last) == passes * 4 * 7
    for name, gradient in used.items():
        check(record, name, "parameter-gradient", gradient, step=last)
    assert record.unseen == []


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("automatic", [True, False])
def test_lightning(automatic):
    """The backward pass runs inside the optimizer's step; the optimizer that the module hands out is a wrapper."""
    import lightning.pytorch as lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.automatic_optimization, self.used = Net(), automatic, []

        def training_step(self, batch, index):
            loss = F.mse_loss(self.net(batch[0]), batch[1])
            if not automatic:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def on_before_optimizer_step(self, optimizer):
            self.used.append(grads(self.net))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

        def on_train_start(self):
            self.watch = trimtab.watch(self, self.optimizers(), every=1)

        def on_train_end(self):
            self.watch.close()

    module = Module()
    options = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    lightning.Trainer(max_epochs=1, accelerator="cpu", **options).fit(module, batches(8))
    record = module.watch.record
    assert record.steps.tolist() == [0, 1, 2]
    assert [facts["class"] for facts in record.optimizers] == ["SGD"]
    for step, used in enumerate(module.used):
        for name, gradient in used.items():
            check(record, f"net.{name}", "parameter-gradient", gradient, step=step)
        assert count(record, "net.a", "output", step) == 8 * 7
        assert count(record, "net.a", "gradient", step) == 8 * 7


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_transformers_trainer(tmp_path):
    """Accumulation, clipping, evaluation and a checkpoint in the middle."""
    from transformers import PretrainedConfig, PreTrainedModel, PrinterCallback, Trainer, TrainingArguments

    class Model(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.net = Net()
            self.post_init()

        def forward(self, data=None, labels=None):
            scores = self.net(data)
            return {"loss": F.mse_loss(scores, labels), "logits": scores}

    rows = [{"data": a, "labels": b} for a, b in zip(x, y, strict=True)]
    model = Model(PretrainedConfig())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    arguments = TrainingArguments(
        tmp_path / "out", per_device_train_batch_size=4, gradient_accumulation_steps=3, max_grad_norm=0.05, max_steps=4,
        eval_strategy="steps", eval_steps=1, save_steps=2, report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with trimtab.watch(model, optimizer, every=1) as watch:
        trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4], optimizers=(optimizer, schedule))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    record = watch.record
    assert record.steps.tolist() == [0, 1, 2, 3]
    assert [info["passes"] for info in record.info] == [3, 3, 3, 3]
    assert [count(record, "net.a", "output", step) for step in range(4)] == [3 * 4 * 7] * 4
    kinds = {"raw-gradient": [], "parameter-gradient": []}
    for kind, norms in kinds.items():
        for site in record.of_kind(kind):
            norms.append(record.series(site).norm)
    assert np.sqrt(sum(n**2 for n in kinds["parameter-gradient"])) == pytest.approx([0.05] * 4, rel=1e-3)
    assert (np.sqrt(sum(n**2 for n in kinds["raw-gradient"])) > 0.05).all()


@pytest.mark.parametrize("clear", ["both", "own"])
def test_what_a_generator_leaves_in_its_critic(clear):
    """It is no gradient of the critic's own; where nobody clears it, it is part of what the critic's step uses."""
    generator, critic = nn.Sequential(nn.Linear(4, 5)).double(), Net().double()
    og, oc = (torch.optim.SGD(m.parameters(), 0.1) for m in (generator, critic))
    z, real, told = torch.randn(16, 4).double(), torch.randn(16, 5).double(), []
    with watching([critic, generator], [oc, og]) as recorder:
        for _ in range(3):
            if clear == "both":
                oc.zero_grad()
            (critic(generator(z).detach()).mean() - critic(real).mean()).backward()
            told.append(grads(critic))
            oc.step()
            oc.zero_grad()
            og.zero_grad()
            (-critic(generator(z)).mean()).backward()
            told.append(grads(generator))
            og.step()
    record = record_of(recorder)
    assert record.stepped.tolist() == [1, 2] * 3
    for step, used in enumerate(told):
        trained, idle = (step % 2, 1 - step % 2)
        for name, gradient in used.items():
            for kind in ("raw-gradient", "parameter-gradient"):
                check(record, name, kind, gradient, step=step, model=trained)
        if step:  # before its first step nobody knows that the other optimizer will ever step
            for kind in ("raw-gradient", "parameter-gradient"):
                assert all(
                    count(record, s.name, kind, step, idle) == 0 for s in record.of_kind(kind) if s.model == idle
                )


def test_parameters_of_an_optimizer_that_never_steps_keep_their_gradients():
    net = Net().double()
    first, _forgotten = torch.optim.SGD(net.a.parameters(), 0.1), torch.optim.SGD(net.b.parameters(), 0.1)
    with watching(net, [first, _forgotten]) as recorder:
        for _ in range(3):
            net.zero_grad()
            net(x.double()).square().mean().backward()
            kept = grads(net)
            first.step()
    for name, gradient in kept.items():
        check(record_of(recorder), name, "raw-gradient", gradient, step=2)


def test_a_step_needs_no_backward_pass():
    """Gradients that are put there by hand: each step of one optimizer is a step of its own."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer, every=3) as recorder:
        for step in range(14):
            for p in net.parameters():
                p.grad = torch.full_like(p, float(step))
            optimizer.step()
    record = record_of(recorder)
    assert record.step_count == 14
    assert record.steps.tolist() == [*range(10), 12]
    series = record.series(record.site(0, "a.weight", "parameter-gradient"))
    assert series.mean.tolist() == record.steps.tolist()


def test_what_is_no_number_is_kept_apart():
    """At outputs, gradients and parameters; the moments are those of the rest."""

    class Poison(nn.Module):
        def forward(self, x):
            x = x.clone()
            x[0, 0], x[1, 1], x[2, 2] = float("nan"), float("inf"), -float("inf")
            return x

    net = nn.Sequential(nn.Linear(5, 4), Poison(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with torch.no_grad():
        poisoned = net[1](net[0](x))
        out = net[2](poisoned)
    with watching(net, optimizer) as recorder:
        net(x).square().sum().backward()
        used = grads(net)
        optimizer.step()
    record = record_of(recorder)
    check(record, "1", "output", poisoned)
    check(record, "2", "output", out)
    for name, gradient in used.items():
        check(record, name, "parameter-gradient", gradient)
    assert record.series(record.site(0, "1", "output")).nonfinite.tolist() == [3]
    assert record.series(record.site(0, "2.weight", "update")).nonfinite.tolist() == [8]
    assert np.isnan(record.losses[0])


@pytest.mark.parametrize("doubled", [False, True])
def test_rows_that_a_sparse_gradient_does_not_touch(doubled):
    net = nn.Sequential(nn.Embedding(40, 4, sparse=True), nn.Flatten(), nn.Linear(8, 1))
    sparse, dense = torch.optim.SparseAdam(net[:1].parameters(), 0.1), torch.optim.SGD(net[2].parameters(), 0.1)
    tokens = torch.tensor([[0, 1], [1, 7], [39, 1]])
    with watching(net, [sparse, dense]) as recorder:
        for _ in range(2):
            net.zero_grad()
            for _ in range(1 + doubled):  # a gradient that names its rows twice
                net(tokens).square().sum().backward()
            gradient = net[0].weight.grad.coalesce().values().clone()
            sparse.step()
            dense.step()
    record = record_of(recorder)
    check(record, "0.weight", "parameter-gradient", gradient, step=1)
    site = record.site(0, "0.weight", "parameter-gradient")
    assert record.details["sparse"] == [(step, {str(site.index): [4, 40]}) for step in range(2)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_the_root_over_several_steps(reentrant):
    """What closes a step runs inside the next forward call: none of our tensors may land among those of the checkpoint."""
    from torch.utils.checkpoint import checkpoint

    data, losses = x.clone().requires_grad_(), []
    for watch in (False, True):
        torch.manual_seed(1)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        losses.append([])
        with watching(net, optimizer) if watch else contextlib.nullcontext() as recorder:
            for _ in range(4):
                optimizer.zero_grad()
                loss = checkpoint(net, data, use_reentrant=reentrant).square().mean()
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
    assert losses[0] == losses[1]
    record = record_of(recorder)
    assert seen(record, "parameter-gradient") == ["a.bias", "a.weight", "b.bias", "b.weight"]
    if not reentrant:
        assert [count(record, "a", "output", step) for step in range(4)] == [24 * 7] * 4
