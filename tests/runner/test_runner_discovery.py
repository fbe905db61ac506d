"""Which models and optimizers a script has, and what it calls them."""

import pytest

from trimtab.recording import Record

HEAD = """
import copy
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
def mlp(*sizes):
    return nn.Sequential(*[m for a, b in zip(sizes, sizes[1:]) for m in (nn.Linear(a, b), nn.Tanh())])
x, y = torch.randn(16, 4), torch.randn(16, 3)
mse = nn.MSELoss()
"""


@pytest.fixture
def watched(shell):
    """Run a script both ways; its record and what was said."""

    def run(*parts, options=()):
        shell.write("s.py", HEAD, *parts)
        plain, done = shell.both("s.py", options=options)
        assert plain.status == 0, plain.err
        assert (done.out, done.status) == (plain.out, plain.status), done.err
        assert "stopped watching" not in done.err, done.err
        record = Record.open(shell.records[-1])
        return record, done.err

    return run


def active(record):
    return [m["label"] for m in record.models if m["active"]]


def readings(record, kind, model=None):
    return sorted(
        record.label(s.model, s.name)
        for s in record.of_kind(kind)
        if len(record.series(s)) and (model is None or s.model == model)
    )


STEP = """
def step(loss, *optimizers):
    for o in optimizers:
        o.zero_grad()
    loss.backward()
    for o in optimizers:
        o.step()
"""


def test_a_gan_of_two_modules(watched):
    record, _said = watched(
        STEP,
        """
        generator, critic = mlp(3, 5, 4), mlp(4, 5, 1)
        opt_g, opt_c = torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
        for _ in range(6):
            fake = generator(torch.randn(16, 3))
            step(critic(fake.detach()).mean() - critic(x).mean(), opt_c)
            step(-critic(fake).mean(), opt_g)
        print(critic(x).sum().item())
        """,
    )
    assert sorted(active(record)) == ["critic", "generator"]
    assert sorted(o["label"] for o in record.optimizers) == ["opt_c", "opt_g"]
    assert "critic.0" in readings(record, "gradient")
    assert "generator.0" in readings(record, "gradient")
    assert "generator.2.weight" in readings(record, "update")
    assert record.step_count == 12


def test_a_critic_that_steps_more_often(watched):
    record, _ = watched(
        STEP,
        """
        generator, critic = mlp(3, 5, 4), mlp(4, 5, 1)
        opt_g, opt_c = torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
        for i in range(24):
            fake = generator(torch.randn(16, 3))
            step(critic(fake.detach()).mean() - critic(x).mean(), opt_c)
            if i % 6 == 5:
                step(-critic(generator(torch.randn(16, 3))).mean(), opt_g)
        print(critic(x).sum().item())
        """,
        options=["--every", "1"],
    )
    assert sorted(active(record)) == ["critic", "generator"]
    steps = record.series(record.site([m["label"] for m in record.models].index("generator"), "0", "gradient")).steps
    assert len(steps) == 4


def test_a_gan_in_one_module_whose_parts_are_called(watched):
    record, _ = watched(
        STEP,
        """
        class Gan(nn.Module):
            def __init__(self):
                super().__init__()
                self.generator, self.critic = mlp(3, 5, 4), mlp(4, 5, 1)
        gan = Gan()
        opt_g = torch.optim.Adam(gan.generator.parameters(), 1e-3)
        opt_c = torch.optim.Adam(gan.critic.parameters(), 1e-3)
        for _ in range(6):
            fake = gan.generator(torch.randn(16, 3))
            step(gan.critic(fake.detach()).mean() - gan.critic(x).mean(), opt_c)
            step(-gan.critic(fake).mean(), opt_g)
        print(gan.critic(x).sum().item())
        """,
    )
    assert active(record) == ["gan"]
    assert "generator.0" in readings(record, "gradient")
    assert "critic.2" in readings(record, "output")


def test_encoder_and_decoder_with_one_optimizer(watched):
    record, _ = watched(
        STEP,
        """
        def main():
            encoder, decoder = mlp(4, 2), mlp(2, 4)
            adam = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
            for _ in range(5):
                loss = mse(decoder(encoder(x)), x)
                step(loss, adam)
            print(loss.item())
        main()
        """,
    )
    assert sorted(active(record)) == ["decoder", "encoder"]
    assert [o["label"] for o in record.optimizers] == ["adam"]
    assert {"encoder.0", "decoder.0"} <= set(readings(record, "gradient"))
    assert record.step_count == 5
    assert record.loss_seen.all()


def test_a_loss_module_is_a_model_only_if_it_is_trained(watched):
    record, said = watched(
        STEP,
        """
        class Uncertain(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.zeros(1))
            def forward(self, a, b):
                return (-self.scale).exp() * mse(a, b) + self.scale
        net, plain_loss, loss_module = mlp(4, 5, 3), nn.L1Loss(), Uncertain()
        sgd = torch.optim.SGD([*net.parameters(), *loss_module.parameters()], 0.1)
        for _ in range(5):
            out = net(x)
            loss = loss_module(out, y).sum() + plain_loss(out, y)
            step(loss, sgd)
        print(loss.item())
        """,
    )
    assert sorted(active(record)) == ["loss_module", "net"]
    assert "loss_module.scale" in readings(record, "update")
    assert "watching net (Sequential, 43 parameters)" in said


def test_untrained_networks_are_left_alone(watched):
    record, said = watched(
        STEP,
        """
        student, perceptual = mlp(4, 5, 3), mlp(3, 4)
        teacher = copy.deepcopy(student)
        frozen = mlp(3, 2).requires_grad_(False)
        sgd = torch.optim.SGD(student.parameters(), 0.1)
        for _ in range(12):
            out = student(x)
            loss = mse(perceptual(out), perceptual(y)) + mse(out, teacher(x)) + frozen(out).mean()
            step(loss, sgd)
            with torch.no_grad():
                for a, b in zip(teacher.parameters(), student.parameters()):
                    a.lerp_(b, 0.1)
        print(loss.item())
        """,
        options=["--every", "1"],
    )
    assert active(record) == ["student"]
    assert "Model      student (Sequential, 43 parameters)" in said
    others = [s for s in record.of_kind("output") if s.model != 0]
    assert all(max(record.series(s).steps, default=0) <= 10 for s in others)
    assert set(readings(record, "update")) >= {"0.weight", "2.bias"}


def test_names_of_variables_in_functions(watched):
    record, said = watched(
        STEP,
        """
        def build():
            return mlp(4, 5, 3)
        def train(m, o):
            for _ in range(3):
                loss = mse(m(x), y)
                step(loss, o)
            return loss
        def main():
            classifier = build()
            my_optimizer = torch.optim.SGD(classifier.parameters(), 0.1)
            print(train(classifier, my_optimizer).item())
        main()
        """,
    )
    assert active(record) == ["classifier"]
    assert [o["label"] for o in record.optimizers] == ["my_optimizer"]
    assert "trimtab: watching classifier (Sequential, 43 parameters)" in said


WRAPPERS = {
    "DataParallel": "nn.DataParallel(inner)",
    "compiled": "torch.compile(inner, backend='eager')",
    "compiled whole": "torch.compile(inner, backend='eager', fullgraph=True)",
    "own": "Wrapper(inner)",
    "averaged": "torch.optim.swa_utils.AveragedModel(inner).module",
    "ddp": "nn.parallel.DistributedDataParallel(inner)",
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapped_models(watched, name):
    record, _said = watched(
        STEP,
        """
        class Wrapper(nn.Module):
            def __init__(self, module):
                super().__init__()
                self.module = module
            def forward(self, *args, **kwargs):
                return self.module(*args, **kwargs)
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = mlp(4, 5), nn.Linear(5, 3)
            def forward(self, x):
                return self.head(self.body(x))
        """,
        "import torch.distributed as dist\ndist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
        if name == "ddp"
        else "",
        f"""
        inner = Net()
        net = {WRAPPERS[name]}
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(14):
            loss = mse(net(x), y)
            step(loss, sgd)
        print(loss.item())
        """,
        "dist.destroy_process_group()" if name == "ddp" else "",
    )
    assert len(active(record)) == 1
    assert {"body.0", "head"} <= set(readings(record, "output")), readings(record, "output")
    assert {"body.0", "head"} <= set(readings(record, "gradient"))
    assert {"body.0.weight", "head.bias"} <= set(readings(record, "update"))
    assert record.step_count == 14
    assert record.loss_seen.all()


def test_an_optimizer_made_after_the_first_forward_call(watched):
    record, _ = watched(
        STEP,
        """
        net = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(3))
        net(x)
        with torch.no_grad():
            net(x)
        late = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(4):
            loss = mse(net(x), y)
            step(loss, late)
        print(loss.item())
        """,
    )
    assert active(record) == ["net"]
    assert [o["label"] for o in record.optimizers] == ["late"]
    assert readings(record, "update") == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert record.step_count == 4


def test_a_part_that_is_tried_in_the_constructor(watched):
    """The whole is not complete then; it is found when it is called."""
    record, said = watched(
        STEP,
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.features = mlp(4, 6)
                size = self.features(torch.zeros(1, 4)).shape[1]
                self.head = nn.Linear(size, 3)
            def forward(self, x):
                return self.head(self.features(x))
        net = Net()
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(4):
            loss = mse(net(x), y)
            step(loss, sgd)
        print(loss.item())
        """,
    )
    assert active(record) == ["net"]
    assert "watching net (Net, 51 parameters)" in said
    assert set(readings(record, "gradient")) >= {"features.0", "head"}


def test_a_part_that_is_tried_before_the_whole_is_made(watched):
    record, said = watched(
        STEP,
        """
        backbone = mlp(4, 6)
        size = backbone(torch.zeros(1, 4)).shape[1]
        net = nn.Sequential(backbone, nn.Linear(size, 3))
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(4):
            loss = mse(net(x), y)
            step(loss, sgd)
        print(loss.item())
        """,
    )
    assert active(record) == ["net"]
    assert "Model      net (Sequential, 51 parameters)" in said
    assert set(readings(record, "gradient")) >= {"0.0", "1"}


def test_closures_and_lbfgs(watched):
    for kind in ("LBFGS(net.parameters(), max_iter=4)", "SGD(net.parameters(), 0.1)"):
        record, _ = watched(
            f"""
            net = mlp(4, 5, 3)
            it = torch.optim.{kind}
            def closure():
                it.zero_grad()
                loss = mse(net(x), y)
                loss.backward()
                return loss
            for _ in range(5):
                print(it.step(closure).item())
            """,
        )
        assert active(record) == ["net"]
        assert record.step_count == 5
        assert record.loss_seen.all()
        assert "0.weight" in readings(record, "update")


def test_two_optimizers_of_one_model(watched):
    record, _ = watched(
        STEP,
        """
        net = mlp(4, 5, 3)
        slow, fast = torch.optim.SGD(net[0].parameters(), 0.01), torch.optim.SGD(net[2].parameters(), 0.1)
        for _ in range(6):
            loss = mse(net(x), y)
            step(loss, slow, fast)
        print(loss.item())
        """,
    )
    assert active(record) == ["net"]
    assert [o["label"] for o in record.optimizers] == ["slow", "fast"]
    assert record.step_count == 6
    assert {"0.weight", "2.weight"} <= set(readings(record, "update"))


def test_pretraining_then_tuning(watched):
    record, _said = watched(
        STEP,
        """
        def fit(net, target):
            sgd = torch.optim.SGD(net.parameters(), 0.1)
            for _ in range(8):
                loss = mse(net(x), target)
                step(loss, sgd)
            return loss.item()
        body = mlp(4, 5)
        auto = nn.Sequential(body, nn.Linear(5, 4))
        print(fit(auto, x))
        tuned = nn.Sequential(body, nn.Linear(5, 3))
        print(fit(tuned, y))
        """,
        options=["--every", "1"],
    )
    assert record.step_count == 16
    labels = [m["label"] for m in record.models]
    assert labels == ["auto", "tuned"]
    assert all(m["parameters"] and m["active"] for m in record.models)
    assert max(record.series(record.site(1, "1", "gradient")).steps) == 15
    assert len(record.optimizers) == 2


def test_a_new_model_for_every_fold(watched):
    record, _said = watched(
        STEP,
        """
        for fold in range(3):
            net = mlp(4, 5, 3)
            sgd = torch.optim.SGD(net.parameters(), 0.1)
            for _ in range(5):
                loss = mse(net(x), y)
                step(loss, sgd)
            print(loss.item())
        """,
        options=["--every", "1"],
    )
    assert record.step_count == 15
    labels = [m["label"] for m in record.models]
    assert labels == ["net", "net-2", "net-3"]
    assert all(m["parameters"] and m["active"] for m in record.models)
    assert all(p["optimized"] for m in record.models for p in m["parameters"].values())


def test_evaluation_first_and_in_between(watched):
    record, _ = watched(
        STEP,
        """
        net = mlp(4, 5, 3)
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        def evaluate():
            net.eval()
            with torch.no_grad():
                print(mse(net(x), y).item())
            net.train()
        evaluate()
        for _ in range(4):
            loss = mse(net(x), y)
            step(loss, sgd)
            evaluate()
        """,
    )
    assert active(record) == ["net"]
    assert record.step_count == 4
    first = record.series(record.site(0, "0", "output"))
    assert first.count.tolist() == [16 * 5] * 4


LIGHTNING = """
import lightning as L
class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = mlp(4, 8, 3)
    def training_step(self, batch, index):
        a, b = batch
        loss = mse(self.net(a), b)
        self.log('loss', loss)
        return loss
    def validation_step(self, batch, index):
        self.log('val', mse(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)
data = torch.utils.data.TensorDataset(x, y)
loader = torch.utils.data.DataLoader(data, batch_size=4)
lit = Lit()
trainer = L.Trainer(max_epochs=3, accelerator='cpu', logger=False, enable_checkpointing=False, enable_progress_bar=False,
                    enable_model_summary=False)
trainer.fit(lit, loader, loader)
print('%.6f' % trainer.callback_metrics['loss'].item())
"""

TRANSFORMERS = """
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                    max_position_embeddings=16)
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        return {'input_ids': torch.arange(8) + i % 8, 'labels': i % 2}
net = BertForSequenceClassification(config)
arguments = TrainingArguments('out', max_steps=6, per_device_train_batch_size=4, report_to=[], use_cpu=True,
                              disable_tqdm=True, save_strategy='no', logging_steps=100, seed=1)
trainer = Trainer(net, arguments, train_dataset=Data())
trainer.remove_callback(PrinterCallback)
result = trainer.train()
print('%.6f' % result.training_loss)
"""


@pytest.mark.slow
def test_a_lightning_script(watched):
    record, said = watched(LIGHTNING)
    assert active(record) == ["lit"]
    assert record.models[0]["class"] == "Lit"
    assert record.step_count == 12
    assert record.loss_seen.all()
    assert {"net.0", "net.2"} <= set(readings(record, "gradient"))
    assert {"net.0.weight", "net.2.bias"} <= set(readings(record, "update"))
    assert "Optimizer  Adam, lr 0.01" in said


@pytest.mark.slow
def test_a_transformers_script(watched):
    record, said = watched(TRANSFORMERS)
    assert len(active(record)) == 1
    assert record.step_count == 6
    assert record.loss_seen.all()
    assert "bert.encoder.layer.1.output.dense" in readings(record, "gradient")
    assert "classifier.weight" in readings(record, "update")
    assert "Optimizer  AdamW" in said
