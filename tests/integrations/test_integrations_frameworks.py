"""Lightning, Transformers and accelerate: one line more, the same run to the last bit, and the diagnosis at its end."""

import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trimtab
from trimtab.integrations.series import series

QUIET = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore:.*does not have many workers.*",
    "ignore:.*[Tt]he number of training batches.*",
    "ignore:.*`isinstance\\(treespec, LeafSpec\\)`.*",
    "ignore:.*pin_memory.*:UserWarning",
)
pytestmark = QUIET


def data(n=48):
    drawn = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=drawn), torch.randint(0, 2, (n,), generator=drawn)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def same(a, b):
    assert all(map(torch.equal, a, b))


# ------------------------------------------------------------------------------------------------ Lightning


def lightning_run(folder, callbacks, kind="automatic", rate=0.1, **options):
    import logging

    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Automatic(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()
            self.seen = []

        def training_step(self, batch, index):
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.seen.append(loss.detach().clone())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=rate, momentum=0.9)

    class Manual(Automatic):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, index):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            loss = super().training_step(batch, index)
            self.manual_backward(loss)
            optimizer.step()

    class Adversaries(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.automatic_optimization = False
            self.generator, self.critic = nn.Linear(2, 4), nn.Linear(4, 1)
            self.seen = []

        def training_step(self, batch, index):
            first, second = self.optimizers()
            fake = self.generator(torch.randn(len(batch[0]), 2))
            losses = (
                lambda: self.critic(fake.detach()).mean() - self.critic(batch[0]).mean(),
                lambda: -self.critic(fake).mean(),
            )
            for optimizer, compute in zip((second, first), losses, strict=True):
                self.toggle_optimizer(optimizer)
                loss = compute()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
                self.untoggle_optimizer(optimizer)
                self.seen.append(loss.detach().clone())

        def configure_optimizers(self):
            return [torch.optim.SGD(m.parameters(), lr=0.01) for m in (self.generator, self.critic)]

    module = {"automatic": Automatic, "manual": Manual, "adversaries": Adversaries}[kind]()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=callbacks, default_root_dir=folder, **options,
    )  # fmt: skip
    torch.manual_seed(3)
    trainer.fit(module, DataLoader(TensorDataset(*data()), batch_size=8))
    return module


@pytest.mark.parametrize("kind", ["automatic", "manual", "adversaries"])
def test_lightning_trains_as_it_would(tmp_path, kind, capsys):
    from trimtab.integrations.lightning import TrimtabCallback

    callback = TrimtabCallback(every=1)
    plain, watched = lightning_run(tmp_path, [], kind), lightning_run(tmp_path, [callback], kind)
    same(plain.seen, watched.seen)
    same(list(plain.parameters()), list(watched.parameters()))
    record = callback.watch.record
    assert record.step_count == (24 if kind == "adversaries" else 12)  # optimizers that take turns
    assert len(record.optimizers) == (2 if kind == "adversaries" else 1)
    assert callback.diagnosis is not None
    assert str(callback.diagnosis).splitlines()[0] in capsys.readouterr().err
    if kind != "adversaries":
        assert record.losses.tolist() == [pytest.approx(float(loss)) for loss in watched.seen]


def test_lightning_accumulates(tmp_path):
    from trimtab.integrations.lightning import TrimtabCallback

    callback = TrimtabCallback(every=1, show=False)
    lightning_run(tmp_path, [callback], accumulate_grad_batches=3)
    assert callback.watch.record.step_count == 4
    assert {info["passes"] for info in callback.watch.record.info} == {3}


def test_lightning_writes_to_its_logger(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    from trimtab.integrations.lightning import TrimtabCallback

    rows = []

    class Logger(CSVLogger):
        def log_metrics(self, metrics, step=None):
            rows.append((step, metrics))

    import lightning

    callback = TrimtabCallback(every=1, log=True, show=False)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=Logger(tmp_path), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback], log_every_n_steps=100,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(TensorDataset(*data()), batch_size=8))
    told = {
        (step, name): value for step, values in rows for name, value in values.items() if name.startswith("trimtab/")
    }
    assert told == {(step, name): value for step, name, value in series(callback.watch.record)}


def test_lightning_ends_the_watch_where_the_training_breaks(tmp_path):
    from lightning import Callback

    from trimtab.integrations.lightning import TrimtabCallback

    class Breaks(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if index == 3:
                raise ValueError("the user's own")

    callback = TrimtabCallback(every=1, show=False)
    assert pickle.loads(pickle.dumps(callback)).watch is None
    with pytest.raises(ValueError, match="the user's own"):
        lightning_run(tmp_path, [callback, Breaks()])
    assert callback.watch.record.facts["how"] == "ValueError: the user's own"
    assert callback.diagnosis is not None


# ------------------------------------------------------------------------------------------------ Transformers


def trainer_run(folder, callbacks, **options):
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    x, y = data()
    rows = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=8, num_train_epochs=2, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, use_cpu=True, seed=3, learning_rate=0.05, **options,
    )  # fmt: skip
    model = Model()
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=callbacks)
    trainer.train()
    return model


@pytest.mark.parametrize("accumulated", [1, 2])
def test_transformers_trains_as_it_would(tmp_path, accumulated):
    from trimtab.integrations.transformers import TrimtabCallback

    callback = TrimtabCallback(every=1, show=False)
    plain = trainer_run(tmp_path, [], gradient_accumulation_steps=accumulated)
    watched = trainer_run(tmp_path, [callback], gradient_accumulation_steps=accumulated)
    same(list(plain.parameters()), list(watched.parameters()))
    record = callback.watch.record
    assert record.step_count == 12 // accumulated
    assert {info["passes"] for info in record.info} == {accumulated}
    assert record.optimizers[0]["class"] == "AdamW"
    assert callback.diagnosis is not None


# ------------------------------------------------------------------------------------------------ accelerate


def accelerate_run(watched, tmp_path):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from trimtab.integrations import accelerate as trimtab_accelerate

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(*data()), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    watch = trimtab_accelerate.watch(accelerator, model, optimizer, every=1) if watched else None
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return list(model.parameters()), watch


def test_accelerate_trains_as_it_would(tmp_path):
    (plain, _), (weights, watch) = accelerate_run(False, tmp_path), accelerate_run(True, tmp_path)
    same(plain, weights)
    assert watch.record.step_count == 3
    assert {info["passes"] for info in watch.record.info} == {2}


def test_accelerate_is_asked_for():
    from trimtab.integrations import accelerate as trimtab_accelerate

    model = net()
    with pytest.raises(TypeError, match=r"accelerator must be an accelerate\.Accelerator, not Sequential"):
        trimtab_accelerate.watch(model, model, torch.optim.SGD(model.parameters()))
    with pytest.raises(TypeError, match="accelerator must be"):
        trimtab_accelerate.Sink(model)


def test_sinks_are_asked_for():
    from trimtab.integrations.lightning import TrimtabCallback

    with pytest.raises(TypeError, match=r"sinks must be sinks of trimtab\.integrations"):
        TrimtabCallback(sinks=[print])
    with pytest.raises(TypeError, match="takes no 'evry': its options are every, store"):
        TrimtabCallback(evry=1)
    assert trimtab.integrations.lightning.TrimtabCallback is TrimtabCallback
