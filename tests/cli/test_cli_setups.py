"""`trimtab diagnose` and `trimtab check`: records and setups."""

import json
import random
import shutil
import sqlite3

import numpy as np
import pytest
import torch
from torch import nn

import trimtab

SETUP = """
import torch
import trimtab
from torch import nn
torch.set_num_threads(1)
def make(seed=0, layers=1, steps=20, **more):
    torch.manual_seed(seed)
    model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(8, 8), nn.Sigmoid())], nn.Linear(8, 2))
    x, y = torch.randn(32, 8), torch.randint(0, 2, (32,))
    parts = dict(batches=lambda: [(x, y)], loss=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]))
    return trimtab.Setup(model, torch.optim.SGD(model.parameters(), 0.1), steps=steps, **(parts | more))
"""

FACTORIES = """
def seeded(seed):
    print('seed', seed)
    return make(seed)
def without():
    return make()
def sick(seed):
    return make(seed, layers=10, steps=40)
def other():
    return 3
def nothing():
    pass
def deep():
    def inner():
        raise LookupError('mine')
    try:
        {}['cause']
    except KeyError:
        inner()
def not_a_scalar():
    return make(loss=lambda m, b: m(b[0]))
def not_a_tensor():
    return make(loss=lambda m, b: 0.5)
def one_shot():
    batches = iter([(torch.randn(4, 8), torch.zeros(4, dtype=torch.long))])
    return make(batches=lambda: batches)
def without_samples():
    return make(batches=lambda: [(torch.randn(0, 8), torch.zeros(0, dtype=torch.long))])
def empty():
    return make(batches=lambda: [])
def no_batches():
    return make(batches=lambda: None)
def wrong():
    return trimtab.Setup(3, None, None, None)
def loss_fails():
    def loss(m, b):
        raise ArithmeticError('in my loss')
    return make(loss=loss)
def batches_fail():
    def batches():
        yield from [(torch.randn(4, 8), torch.zeros(4, dtype=torch.long))] * 2
        raise ArithmeticError('in my batches')
    return make(batches=batches)
def detached():
    return make(loss=lambda m, b: nn.functional.cross_entropy(m(b[0]).detach(), b[1]))
def leaves():
    raise SystemExit(5)
class Factory:
    def __call__(self, seed):
        return make(seed)
as_object = Factory()
import functools
partial = functools.partial(make, layers=2)
keyword_only = lambda *, seed=1: make(seed)
number = 3
"""


@pytest.fixture
def setups(shell):
    shell.write("setups.py", SETUP, FACTORIES)
    return shell


def one_line(ended, *words):
    assert ended.status == 2, ended.err
    assert ended.out == ""
    assert ended.err.startswith("trimtab: ")
    assert ended.err.count("\n") == 1, ended.err
    for word in words:
        assert word in ended.err


@pytest.mark.parametrize("command", ["diagnose", "check"])
def test_good_factories(setups, command):
    for name in ("without", "as_object", "partial", "keyword_only", "make"):
        ended = setups.trimtab(command, f"setups.py:{name}")
        assert ended.status in (0, 1), ended.err
        assert ended.err == ""
        assert "trimtab" in ended.out
    ended = setups.trimtab(command, "--seed", "7", "setups.py:seeded")
    assert ended.out.startswith("seed 7\n")
    setups.write("deep/er/setups.py", SETUP, "from neighbour import answer\nassert answer == 42")
    setups.write("deep/er/neighbour.py", "answer = 42")
    assert setups.trimtab(command, setups.folder / "deep/er/setups.py:make").status == 0


def test_findings_and_exit_statuses(setups):
    assert setups.trimtab("diagnose", "setups.py:sick").status == 1
    assert setups.trimtab("diagnose", "setups.py:sick", "--ignore", "vanishing-gradient").status in (0, 1)
    ended = setups.trimtab("check", "setups.py:sick", "--format", "json")
    found = json.loads(ended.out)["findings"]
    assert ended.status == (1 if any(f["severity"] == "error" for f in found) else 0)
    assert setups.trimtab("check", "setups.py:sick", "--fail-on", "warning").status == (1 if found else 0)
    ended = setups.trimtab("diagnose", "setups.py:sick", "--format", "sarif", "--output", "r.sarif")
    assert (ended.status, ended.out, ended.err) == (1, "", "")
    assert json.loads((setups.folder / "r.sarif").read_text())["runs"]
    ended = setups.trimtab("diagnose", "setups.py:sick", "--output", "-", "--format", "json")
    assert json.loads(ended.out)["findings"][0]["code"] == "vanishing-gradient"


@pytest.mark.parametrize("command", ["diagnose", "check"])
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("setups.py:nope", ["setups.py has no nope; its functions are make, seeded,"]),
        ("nope.py:make", ["no file nope.py"]),
        ("folder.py:make", ["folder.py is a folder"]),
        ("setups.py:number", ["number in setups.py is a int, not a function"]),
        ("setups.py:other", ["other in setups.py must return a trimtab.Setup, but it returned a int"]),
        ("setups.py:nothing", ["NoneType"]),
        ("setups.py:not_a_scalar", ["scalar tensor", "(32, 2)"]),
        ("setups.py:not_a_tensor", ["scalar tensor", "float"]),
        ("setups.py:empty", ["batches must give at least one batch"]),
        ("setups.py:no_batches", ["batches() must give an iterable"]),
        ("setups.py:wrong", ["model must be a torch.nn.Module"]),
        ("binary.py:make", ["binary.py is not Python code"]),
        ("setups.py:make --ignore nonsense", ["no code 'nonsense'"]),
    ],
)
def test_what_is_no_setup_gets_one_line(setups, command, target, words):
    (setups.folder / "folder.py").mkdir()
    (setups.folder / "binary.py").write_bytes(b"\0\1")
    one_line(setups.trimtab(command, *target.split()), *words)


@pytest.mark.parametrize("command", ["diagnose", "check"])  # one batch is all a check takes, but the run would lack it
def test_one_shot_batches(setups, command):
    one_line(setups.trimtab(command, "setups.py:one_shot"), "one-shot iterator")


@pytest.mark.parametrize("command", ["diagnose", "check"])
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("deep", "LookupError: mine"),
        ("loss_fails", "ArithmeticError: in my loss"),
    ],
)
def test_the_users_own_error_is_shown_whole(setups, command, name, error):
    ended = setups.trimtab(command, f"setups.py:{name}")
    assert ended.status == 2
    assert ended.err.splitlines()[-1].startswith(error)
    assert "setups.py" in ended.err
    assert not [f for f in ended.frames if "/src/trimtab/" in f or "launcher" in f or "runpy" in f], ended.err
    if name == "deep":
        assert "KeyError: 'cause'" in ended.err
        assert "During handling of the above exception" in ended.err


@pytest.mark.parametrize("options", [[], ["--playbook"]])
def test_what_probe_cannot_use(setups, options):
    one_line(setups.trimtab("probe", *options, "setups.py:not_a_scalar"), "loss must")
    ended = setups.trimtab("probe", *options, "setups.py:loss_fails")
    assert ended.status == 2
    assert ended.err.splitlines()[-1].startswith("ArithmeticError: in my loss")
    assert not [f for f in ended.frames if "/src/trimtab/" in f]


def test_probe_of_an_empty_batch(setups):
    one_line(setups.trimtab("probe", "setups.py:without_samples"), "batches must give batches with samples in them")


def test_a_factory_that_wants_more_than_a_seed(setups):
    setups.write("wants.py", SETUP, "def needs(seed, width):\n    return make()")
    one_line(setups.trimtab("check", "wants.py:needs"), "its signature is (seed, width)")


def test_a_loss_that_no_gradient_flows_from(setups):
    for command in ("diagnose", "check"):
        one_line(setups.trimtab(command, "setups.py:detached"), "loss does not depend on any parameter")


def test_errors_in_the_middle_and_exits(setups):
    ended = setups.trimtab("diagnose", "setups.py:batches_fail")
    assert ended.err.splitlines()[-1] == "ArithmeticError: in my batches"
    assert setups.trimtab("check", "setups.py:leaves").status == 5
    setups.write("broken.py", "def f(:")
    ended = setups.trimtab("check", "broken.py:f")
    assert ended.status == 2
    assert "SyntaxError" in ended.err
    assert "/src/trimtab/" not in ended.err
    setups.write("json.py", SETUP)  # named like a module that is loaded already
    assert setups.trimtab("check", "json.py:make", "--format", "json").status == 0


def test_targets_that_are_neither(setups):
    one_line(setups.trimtab("check", "setups.py"), "write FILE.py:FACTORY")
    one_line(setups.trimtab("diagnose", "setups.py"), "`trimtab run setups.py`", "setups.py:FACTORY")
    one_line(setups.trimtab("diagnose", "setups.py:"), "setups.py:FACTORY")
    one_line(setups.trimtab("diagnose", "setups.py:a b"), "no record at")
    one_line(setups.trimtab("check", "r.db"), "is not a setup")


def test_predict(setups):
    ended = setups.trimtab("predict", "setups.py:sick", "--figure", "depth.png")
    assert (ended.status, ended.err) == (0, "")
    assert "P: the prediction itself is bad" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    assert (setups.folder / "depth.png").read_bytes().startswith(b"\x89PNG")
    ended = setups.trimtab("predict", "setups.py:make", "--format", "json", "--output", "p.json")
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    assert len(json.loads((setups.folder / "p.json").read_text())["sites"]) == 3


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("setups.py:nope", ["setups.py has no nope"]),
        ("setups.py:not_a_scalar", ["scalar tensor"]),
        ("setups.py:make --output no/such/folder", ["cannot write"]),
        ("setups.py:make --figure no/such/depth.png", ["cannot write"]),
    ],
)
def test_what_predict_cannot_use_gets_one_line(setups, target, words):
    one_line(setups.trimtab("predict", *target.split()), *words)


def test_predict_shows_the_users_own_error_whole(setups):
    ended = setups.trimtab("predict", "setups.py:loss_fails")
    assert ended.status == 2
    assert ended.err.splitlines()[-1].startswith("ArithmeticError: in my loss")


PLAIN = ("predict", "--activation", "tanh", "--weight-var", "1.5", "--bias-var", "0.05", "--depth", "50")


def test_predict_a_plain_net(shell):
    ended = shell.trimtab(*PLAIN)
    assert (ended.status, ended.err) == (0, "")
    assert "ordered: gradients vanish, inputs grow alike" in ended.out
    assert "critical weight variance, 1.17 × this" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    ended = shell.trimtab(*PLAIN, "--format", "json", "--width", "100", "--figure", "depth.png")
    assert (ended.status, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert found["phase"] == "ordered"
    assert found["depth_scales"]["xi_c"] == pytest.approx(15.790994, rel=1e-6)
    assert found["edge_of_chaos"]["weight_var"] == pytest.approx(1.7609546, rel=1e-6)
    assert [layer["layer"] for layer in found["layers"]] == list(range(1, 51))
    assert (shell.folder / "depth.png").read_bytes().startswith(b"\x89PNG")
    ended = shell.trimtab("predict", "--activation", "relu", "--depth", "3", "--output", "t.txt")  # at the edge
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    assert "edge of chaos: gradients keep their size" in (shell.folder / "t.txt").read_text(encoding="utf-8")


def test_predict_without_unicode(shell):
    ended = shell.trimtab(*PLAIN, real=True, env={"PYTHONIOENCODING": "ascii"})
    assert ended.status == 0
    assert ended.out.isascii()
    assert "\\" not in ended.out
    assert "xi_c = 15.8 layers" in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", ["give FILE.py:FACTORY or --activation NAME"]),
        ("--depth 3", ["--activation NAME beside --depth"]),
        ("setups.py:make --activation tanh", ["FILE.py:FACTORY and --activation exclude each other"]),
        ("setups.py:make --weight-var 2", ["FILE.py:FACTORY and --weight-var exclude each other"]),
        ("setups.py:make --input-c 0", ["FILE.py:FACTORY and --input-c exclude each other"]),
        ("--activation tanh --seed 0", ["--activation and --seed exclude each other"]),
        ("--activation swish --weight-var 2", ["no activation is called 'swish'", "silu"]),
        ("--activation softplus", ["softplus has no edge of chaos", "--weight-var"]),
        ("--activation tanh --weight-var -1", ["weight_var is -1.0"]),
        ("--activation tanh --weight-var nan", ["weight_var is nan"]),
        ("--activation tanh --bias-var -1", ["bias_var is -1.0"]),
        ("--activation tanh --depth 0", ["--depth"]),
        ("--activation tanh --width 1", ["--width"]),
        ("--activation tanh --input-c 2", ["input_c is 2.0"]),
        ("--activation hardshrink --weight-var 1", ["jumps"]),
        ("--activation relu --weight-var 1e30", ["overflows"]),
        ("--activation tanh --depth 3 --figure no/such/depth.png", ["cannot write"]),
    ],
)
def test_what_is_no_plain_net_gets_one_line(setups, arguments, words):
    one_line(setups.trimtab("predict", *arguments.split()), *words)


# ---------------------------------------------------------------------------------------------------------- records


@pytest.fixture
def record(shell, net):
    shell.write("s.py", net, "train(12)")
    assert shell.trimtab("run", "--store", "r.db", "s.py").status == 0
    return shell.folder / "r.db"


def test_a_finished_record(shell, record):
    ended = shell.trimtab("diagnose", "r.db")
    assert ended.status == 0
    assert "nothing found" in ended.out
    assert ended.err == ""
    (shell.folder / "away").mkdir()
    shutil.move(record, shell.folder / "away" / "ein Name mit äöü? #%41.db")
    assert shell.trimtab("diagnose", "away/ein Name mit äöü? #%41.db").status == 0
    one_line(shell.trimtab("diagnose", "away/ein Name mit äöü? #%41.db", "--ignore", "nonsense"), "no code 'nonsense'")


def test_records_that_are_none(shell, record):
    one_line(shell.trimtab("diagnose", "nope.db"), "no record at nope.db")
    (shell.folder / "folder").mkdir()
    one_line(shell.trimtab("diagnose", "folder"), "no record at folder")
    shell.write("text.db", "hello")
    one_line(shell.trimtab("diagnose", "text.db"), "not a record of trimtab")
    (shell.folder / "empty.db").touch()
    one_line(shell.trimtab("diagnose", "empty.db"), "not a record of trimtab")
    with sqlite3.connect(shell.folder / "foreign.db") as connection:
        connection.execute("CREATE TABLE a (b)")
    connection.close()
    one_line(shell.trimtab("diagnose", "foreign.db"), "SQLite file of another program")
    whole = record.read_bytes()
    (shell.folder / "short.db").write_bytes(whole[: len(whole) // 2])
    one_line(shell.trimtab("diagnose", "short.db"), "short.db")
    dice = random.Random(0)
    for i in range(12):
        broken = bytearray(whole)
        for _ in range(60):
            broken[dice.randrange(100, len(broken))] = dice.randrange(256)
        (shell.folder / "broken.db").write_bytes(broken)
        ended = shell.trimtab("diagnose", "broken.db")
        assert "Traceback" not in ended.err, (i, ended.err)
        assert ended.status in (0, 1, 2)


def test_a_record_that_cannot_be_written_to_is_read(shell, record):
    record.chmod(0o400)
    assert shell.trimtab("diagnose", "r.db").status == 0


# ------------------------------------------------------------------------------------------------------------ check


class Noisy(nn.Module):
    """Everything that a forward call can change."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.head = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.count = 0

    def forward(self, x):
        self.count += 1
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)  # a new tensor in the buffer's place
        random.random(), np.random.rand()
        return self.head(self.body(x))


def state_of(setup, extra):
    return {
        "buffers": [b.clone() for b in setup.model.buffers()],
        "identities": [id(t) for t in (*setup.model.parameters(), *setup.model.buffers())],
        "parameters": [p.detach().clone() for p in (*setup.model.parameters(), *extra)],
        "gradients": [None if p.grad is None else p.grad.clone() for p in (*setup.model.parameters(), *extra)],
        "grad identities": [id(p.grad) for p in (*setup.model.parameters(), *extra)],
        "modes": [m.training for m in setup.model.modules()],
        "count": setup.model.count,
        "optimizer": setup.optimizers[0].state_dict(),
        "rng": [torch.get_rng_state(), np.random.get_state(), random.getstate()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in setup.model.modules()],
        "keys": list(setup.model.state_dict()),
    }


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


@pytest.mark.parametrize("fails", ["", "loss", "backward", "batches", "not a scalar"])
@pytest.mark.parametrize("begun", [False, True])
def test_check_changes_nothing(fails, begun):
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    model, scale = Noisy(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([*model.parameters(), scale], 0.01)
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
    model.body[1].eval()

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ArithmeticError("mine")

    def loss(m, batch):
        out = m(batch[0]) * scale
        if fails == "loss":
            raise ArithmeticError("mine")
        if fails == "not a scalar":
            return out
        return nn.functional.cross_entropy(Failing.apply(out) if fails == "backward" else out, batch[1])

    def batches():
        torch.rand(3), np.random.rand(), random.random()
        if fails == "batches":
            raise ArithmeticError("mine")
        yield x, y

    if begun:
        nn.functional.cross_entropy(model(x) * scale, y).backward()
        optimizer.step()
    setup = trimtab.Setup(model, optimizer, batches, loss)
    before = state_of(setup, [scale])
    if fails:
        with pytest.raises((ArithmeticError, trimtab.StepError)):
            trimtab.check(setup)
    else:
        trimtab.check(setup)
    after = state_of(setup, [scale])
    for key, value in before.items():
        assert equal(value, after[key]), key


def test_check_and_diagnose_refuse_what_they_cannot_use():
    with pytest.raises(trimtab.UsageError, match="check takes a Setup, but it was given a int"):
        trimtab.check(3)
    with pytest.raises(trimtab.UsageError, match="given a int"):
        trimtab.diagnose(3)
    model = nn.Linear(2, 2)
    setup = trimtab.Setup(
        model, torch.optim.SGD(model.parameters()), lambda: [torch.ones(2, 2)], lambda m, b: m(b).sum()
    )
    with pytest.raises(trimtab.UsageError, match="no code 'nonsense'"):
        trimtab.check(setup, ignore=["nonsense"])


def test_a_record_of_a_killed_run_without_its_journal_is_still_a_record(shell, net):
    shell.write("s.py", net, "import os\ntrain(12)\nos.kill(os.getpid(), 9)")
    assert shell.trimtab("run", "--store", "r.db", "s.py").status == -9
    assert " steps, 11 recorded in full" in shell.trimtab("diagnose", "r.db").out
    shutil.copy(shell.folder / "r.db", shell.folder / "alone.db")
    one_line(shell.trimtab("diagnose", "alone.db"), "holds no training step")  # and not that it is no record


def test_probe(setups):
    ended = setups.trimtab("probe", "setups.py:make")
    assert ended.status in (0, 1)
    assert ended.err == ""
    assert "loss at initialization" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    ended = setups.trimtab("probe", "setups.py:make", "--playbook", "--format", "json", "--output", "p.json")
    assert (ended.out, ended.err) == ("", "")
    found = json.loads((setups.folder / "p.json").read_text())
    assert ended.status == (0 if found["good"] else 1)
    assert [step["verdict"] for step in found["steps"]]
    one_line(setups.trimtab("probe", "setups.py:nope"), "setups.py has no nope")
    one_line(setups.trimtab("probe", "setups.py:make", "--output", "no/such/folder"), "cannot write")
