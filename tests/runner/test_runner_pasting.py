"""A change as code to paste into a script: executed there, it does what the trial did."""

import ast

import pytest
import torch
from torch import nn

from trimtab.repairs.change import Change, together
from trimtab.runner.injection import FirstPass
from trimtab.runner.pasting import Paste

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
adam = torch.optim.SGD(net[2].parameters(), lr=1.0)
"""
LOOP = """
x = torch.arange(12.0).view(3, 4)
for step in range(6):
    loss = net(x).square().mean()
    loss.backward()
    adam.step()
    losses.append(loss.item())
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(HEAD + LOOP)
    return path


def losses(source, *changes):
    seen, held = [], []

    def found(what):
        held.append(what)
        what.inject(changes, 6, 0)

    first = FirstPass(found)
    first.start()
    try:
        exec(compile(source, "train.py", "exec"), {"losses": seen, "__name__": "__main__"})
    finally:
        first.stop()
    return seen, held[0]


@pytest.mark.parametrize(
    "change",
    [
        Change("scale-rate", {"factor": 0.01}),
        Change("zero-grad"),
        Change("clip", {"bound": 0.01}),
        Change("warm-up", {"share": 0.5}),
        Change("add-parameters"),
    ],
    ids=lambda change: change.kind,
)
def test_the_pasted_code_does_what_was_injected(script, change):
    plain, held = losses(HEAD + LOOP)
    told = Paste(held, str(script), 10, 6).told(change.describe(), [change])
    pasted, _ = losses(f"{HEAD}{told.code}\n{LOOP}")
    assert pasted == losses(HEAD + LOOP, change)[0]
    assert pasted != plain
    assert told.code.splitlines()[0].endswith("train.py, below line 6:")


def test_several_changes_are_told_together(script):
    changes = [Change("zero-grad"), Change("scale-rate", {"factor": 0.01})]
    held = losses(HEAD + LOOP)[1]
    told = Paste(held, str(script), 10, 6).told(together(changes), changes)
    assert losses(f"{HEAD}{told.code}\n{LOOP}")[0] == losses(HEAD + LOOP, *changes)[0]


def test_what_draws_is_told_with_its_seed(script, monkeypatch):
    from trimtab.repairs import change as changes
    from trimtab.report import Repair

    def draw(setup):
        for layer in (setup.model[0], setup.model[2]):
            nn.init.orthogonal_(layer.weight)

    code = "for layer in (model[0], model[2]):\n    nn.init.orthogonal_(layer.weight)"
    kind = changes.Kind(draw, lambda: Repair("draw anew", code), lambda patient, rng: {})
    monkeypatch.setattr(changes, "_kind", lambda name: kind)
    held = losses(HEAD + LOOP)[1]
    told = Paste(held, str(script), 10, 6).told(Repair("draw anew", code), [Change("draw")])
    assert "torch.manual_seed(0)" in told.code
    assert losses(f"{HEAD}{told.code}\n{LOOP}")[0] == losses(HEAD + LOOP, Change("draw"))[0]


def test_names_are_the_scripts_own_and_only_those(script):
    held = losses(HEAD + LOOP)[1]
    held.prefix = "body"
    told = Paste(held, str(script), 10, 6)
    assert told._renamed("model.model = f(model=3, x=model) + 'model'", {"model"})[0] == (
        "net.body.model = f(model=3, x=net.body) + 'model'"
    )
    held.optimizer_labels = ["one", "two"]
    assert told._renamed("optimizer.step()", {"optimizer"})[0] == "for optimizer in (one, two):\n    optimizer.step()"
    held.labels = ["g", "d"]
    code = told._renamed("print(model.g)", {"model"})[0]
    ast.parse(code)
    space = {"torch": torch, "g": nn.Linear(1, 1), "d": nn.Linear(1, 1)}
    exec(code, space)
    assert space["model"].g is space["g"]
