"""`trimtab run` is `python` with a report at the end: same standard output, same exit status, same errors."""

import signal
import subprocess
import sys
import time

import pytest

from trimtab.recording import Record


def same(plain, watched):
    assert watched.out == plain.out
    assert watched.status == plain.status


def from_traceback(text):
    """What Python printed of an error: everything from the first traceback on, without trimtab's own lines."""
    start = min((text.index(mark) for mark in ("Traceback", "  + Exception", '  File "') if mark in text), default=0)
    return text[start:].strip()


def no_foreign_frames(ended):
    ours = [f for f in ended.frames if "/trimtab/" in f or "runpy" in f or "launcher.py" in f or "click" in f]
    assert not ours, ended.err


ENDS = {
    "its end": "",
    "sys.exit()": "sys.exit()",
    "sys.exit(0)": "sys.exit(0)",
    "sys.exit(3)": "sys.exit(3)",
    "sys.exit(True)": "sys.exit(True)",
    "a message": "sys.exit('gone wrong')",
    "an error": "raise KeyError('no such thing')",
    "Ctrl-C": "raise KeyboardInterrupt",
    "os._exit": "sys.stdout.flush(); os._exit(7)",
    "a signal": "sys.stdout.flush(); os.kill(os.getpid(), 9)",
    "generator exit": "raise GeneratorExit",
}


@pytest.mark.parametrize("end", ENDS)
def test_output_and_status_are_the_scripts_own(shell, net, end):
    shell.write("s.py", net, f"import os, sys\nprint(train(), flush=True)\nprint('line', end='')\n{ENDS[end]}")
    plain, watched = shell.both("s.py")
    same(plain, watched)
    if end not in ("os._exit", "a signal"):
        assert "Steps      3 steps, 3 recorded in full" in watched.err
        assert Record.open(shell.records[0]).finished
    if end == "a message":
        assert watched.err.endswith("gone wrong\n")
    assert Record.open(shell.records[0]).step_count >= 2


def test_a_real_process_behaves_the_same(shell, net):
    shell.write("s.py", net, "import sys\ndef f():\n    print(train(12), sys.argv)\n    model(x[0, :3])\nf()")
    plain, watched = shell.both("s.py", "--help", "--every", "3", "--", "-x", real=True)
    same(plain, watched)
    assert watched.err.startswith(
        "trimtab: watching model (Sequential, 58 parameters), steps 0-9, then ever fewer; record"
    )
    assert "nothing found" in watched.err
    assert watched.err.endswith(plain.err[plain.err.index("linear.py") :])
    assert [f for f in watched.frames if f.endswith("s.py")] == [f for f in plain.frames if f.endswith("s.py")]
    no_foreign_frames(watched)


RAISES = {
    "plain": "def f():\n    raise ValueError('mine')\nf()",
    "from a cause": """
        def f():
            loss = (model(x) ** 2).mean()
            loss.backward()
            loss.backward()
        try:
            f()
        except RuntimeError as error:
            raise ValueError('mine') from error
    """,
    "while handling": """
        try:
            model(x).mean().backward(torch.ones(7))
        except RuntimeError:
            try:
                {}['key']
            except KeyError:
                raise TypeError('third')
    """,
    "from None": """
        try:
            {}['key']
        except KeyError:
            raise TypeError('third') from None
    """,
    "a group": """
        def one():
            model(x).mean().backward(torch.ones(7))
        def group():
            found = []
            try:
                one()
            except RuntimeError as error:
                found.append(error)
            raise ExceptionGroup('several', [*found, ValueError('other')])
        group()
    """,
    "inside backward": """
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()
            @staticmethod
            def backward(ctx, grad):
                raise ArithmeticError('in my backward')
        Bad.apply(model(x)).mean().backward()
    """,
    "inside a watched forward": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(4, 4)
            def forward(self, x):
                return self.a(x) @ torch.ones(3)
        Net()(x)
    """,
    "inside a closure": """
        def closure():
            optimizer.zero_grad()
            loss = model(x).mean()
            loss.backward()
            raise LookupError('in my closure')
        optimizer.step(closure)
    """,
    "with a broken message": "class E(Exception):\n    def __str__(self):\n        raise TypeError\nraise E",
    "with notes": "e = ValueError('x')\ne.add_note('a note')\nraise e",
}


@pytest.mark.parametrize("name", RAISES)
def test_an_error_is_shown_whole_and_without_our_frames(shell, net, name):
    shell.write("s.py", net, "train(2)", RAISES[name])
    plain, watched = shell.both("s.py")
    same(plain, watched)
    no_foreign_frames(watched)
    if name != "inside a watched forward":  # torch takes another way through a module with hooks
        assert from_traceback(watched.err) == from_traceback(plain.err)
    assert plain.err.strip().splitlines()[-1] == watched.err.strip().splitlines()[-1]
    mine = [frame for frame in plain.frames if frame.endswith("s.py")]
    assert [frame for frame in watched.frames if frame.endswith("s.py")] == mine


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("def f(:\n", "SyntaxError"),
        ("if 1:\nx = 1\n", "IndentationError"),
        ("import nonsense_module\n", "ModuleNotFoundError"),
        ("from torch import nonsense_name\n", "ImportError"),
        ("import broken\n", "ZeroDivisionError"),
        ("# -*- coding: latin-1 -*-\nprint('\\xe9')\n1/0", "ZeroDivisionError"),
    ],
)
def test_a_script_that_cannot_run_fails_as_under_python(shell, text, kind):
    shell.write("broken.py", "1 / 0")
    (shell.folder / "s.py").write_text(text, encoding="latin-1")
    plain, watched = shell.plain("s.py", real=kind == "SyntaxError"), shell.trimtab("run", "s.py")
    same(plain, watched)
    assert watched.status == 1
    assert kind in watched.err
    no_foreign_frames(watched)
    if kind == "SyntaxError":
        assert watched.err == plain.err


def test_ctrl_c_ends_like_pythons_and_leaves_a_record(shell, net):
    shell.write(
        "s.py",
        net,
        "import time\ntrain(30)\nprint('ready', flush=True)\nwhile True:\n    train(1)\n    time.sleep(0.01)",
    )
    running = shell.start("-m", "trimtab", "run", "s.py")
    assert running.stdout.readline() == "ready\n"
    live = Record.open(shell.records[0])  # a second process reads while the first one writes
    assert live.step_count > 0
    assert not live.finished
    seen = shell.trimtab("diagnose", shell.records[0])
    assert seen.status == 0
    assert "still running" in seen.out or "not finished" in seen.out or "steps" in seen.out
    running.send_signal(signal.SIGINT)
    _out, err = running.communicate(timeout=60)
    assert running.returncode == -signal.SIGINT
    assert "nothing found" in err
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "/trimtab/" not in err
    assert Record.open(shell.records[0]).finished


def test_a_killed_run_leaves_a_record(shell, net):
    shell.write("s.py", net, "import os, signal\ntrain(30)\nos.kill(os.getpid(), signal.SIGKILL)")
    assert shell.trimtab("run", "s.py").status == -signal.SIGKILL
    told = shell.trimtab("diagnose", shell.records[0])
    assert told.status == 0
    assert "trimtab s" in told.out


def test_a_closed_pipe_ends_it_as_under_python(shell, net):
    loop = "for i in range(100_000):\n    print('line', i)"
    shell.write("plain.py", loop)
    shell.write("s.py", net, "train()", loop)

    def through_a_closed_pipe(*command):
        running = shell.start(*command)
        running.stdout.readline()
        running.stdout.close()
        err = running.stderr.read()
        running.stderr.close()
        return running.wait(), err

    plain, watched = through_a_closed_pipe("plain.py"), through_a_closed_pipe("-m", "trimtab", "run", "s.py")
    assert watched[0] == plain[0]
    assert "BrokenPipeError" in watched[1]
    assert "/trimtab/" not in watched[1]
    assert "3 recorded in full" in watched[1]


@pytest.mark.parametrize("closed", [pytest.param("2>&-", marks=pytest.mark.slow), ">&- 2>&-"])
def test_closed_streams(shell, net, closed):
    shell.write("s.py", net, "import sys\nr = train()\nif sys.stdout: print(r)\nopen('done', 'w').write(str(r))")
    command = f"{sys.executable} -m trimtab run s.py {closed}"
    done = subprocess.run(command, shell=True, cwd=shell.folder, capture_output=True, text=True)
    assert done.returncode == 0
    assert "trimtab" not in done.stdout
    assert (shell.folder / "done").exists()
    assert Record.open(shell.records[0]).finished


LOOKS = """
import sys, os
print(__name__, __file__, sys.argv, sys.path[0], __spec__, __package__, __cached__, __doc__, __annotations__)
print(type(__builtins__), type(__loader__).__name__, __loader__.name, __loader__.path)
print(sorted(globals()))
import __main__, inspect
print(__main__.__dict__ is globals(), sys.modules['__main__'] is __main__)
class A:
    '''doc'''
    b: int = 1
print(A.__module__, inspect.getsource(A), (lambda: 0).__code__.co_filename, A.__annotations__)
import neighbour
print(neighbour.name, 'wrong' in sys.modules)
"""


@pytest.mark.parametrize("path", ["sub/s.py", "./sub/s.py", "other/../sub/s.py", "link.py", "{folder}/sub/s.py"])
def test_the_script_sees_what_it_sees_under_python(shell, path):
    shell.write("sub/s.py", LOOKS)
    shell.write("sub/neighbour.py", "name = 'right'")
    shell.write("neighbour.py", "name = 'of the working directory'")
    (shell.folder / "other").mkdir()
    (shell.folder / "link.py").symlink_to("sub/s.py")
    arguments = (path.format(folder=shell.folder), "--x", "", "a b", "--", "--help")
    plain, watched = shell.plain(*arguments, real=True), shell.trimtab("run", *arguments)
    assert plain.status == 0, plain.err
    same(plain, watched)
    assert "no training step was seen" in watched.err


def test_a_script_finds_no_module_beside_trimtabs_own_start(shell):
    """Started as `python -m trimtab`, the working directory stands first on the path; a script does not see it."""
    shell.write(
        "sub/s.py", "import sys, os\nprint([p for p in sys.path if os.path.realpath(p) == os.getcwd()])\nimport top"
    )
    shell.write("top.py", "print('found')")
    plain, watched = shell.plain("sub/s.py", real=True), shell.trimtab("run", "sub/s.py")
    same(plain, watched)
    assert "ModuleNotFoundError" in watched.err


def test_safe_path(shell):
    shell.write("s.py", "import sys\nprint(sys.path)")
    plain, watched = shell.both("s.py", real=True, env={"PYTHONSAFEPATH": "1"})
    same(plain, watched)


@pytest.mark.parametrize("target", ["pack", "pack.mod", "pack.inner.mod", "top"])
def test_modules(shell, net, target):
    body = """
        import sys
        print(__name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0], type(__loader__).__name__)
        if __package__:
            from . import helper
            print(helper.where)
    """
    shell.write("pack/__init__.py", "import sys\nprint('importing', sys.argv)")
    for place in ("pack/__main__.py", "pack/mod.py", "pack/inner/mod.py"):
        shell.write(place, body)
    shell.write("top.py", net, "train()", body)
    for place in ("pack/helper.py", "pack/inner/helper.py"):
        shell.write(place, "where = __name__")
    plain = shell.plain("-m", target, "--lr", "-m", "1", real=target != "top")  # which imports torch
    watched = shell.trimtab("run", "-m", target, "--lr", "-m", "1")
    assert plain.status == 0, plain.err
    same(plain, watched)
    assert ("trimtab top " if target == "top" else "no training step was seen") in watched.err


def test_modules_that_fail(shell, net):
    shell.write("pack/__init__.py", "")
    shell.write("pack/mod.py", net, "def f():\n    train()\n    {}['key']\nf()")
    plain = shell.plain("-m", "pack.mod")
    watched = shell.trimtab("run", "-m", "pack.mod")
    same(plain, watched)
    no_foreign_frames(watched)
    assert from_traceback(watched.err).splitlines()[1:] == [
        line for line in plain.err.splitlines()[1:] if "runpy" not in line
    ]
    shell.write("bad/__init__.py", "import json, nonsense_dependency")
    shell.write("bad/mod.py", "")
    watched = shell.trimtab("run", "-m", "bad.mod")
    assert watched.status == 1
    assert "ModuleNotFoundError: No module named 'nonsense_dependency'" in watched.err
    assert "bad/__init__.py" in watched.err
    no_foreign_frames(watched)
    shell.write("worse/__init__.py", "")
    shell.write("worse/mod.py", "def f(:")
    watched = shell.trimtab("run", "-m", "worse.mod")
    assert watched.status == 1
    assert "SyntaxError" in watched.err
    assert "/trimtab/" not in watched.err


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (["nope.py"], "cannot read the script nope.py: No such file or directory"),
        (["folder"], "folder is a folder, not a script: name the .py file in it"),
        (["binary"], "binary is not a Python script: it holds null bytes"),
        (["-m", "nope"], "no module named nope that could be run with -m"),
        (["-m", "nope.deep"], "no module named nope"),
        (["-m", "pack"], "no module named pack.__main__ that could be run with -m"),
        (["-m", "pack.nope"], "no module named pack.nope that could be run with -m"),
        (["-m", "pack.mod.nope"], "no module named pack.mod.nope"),
        (
            ["-m", "pack/mod.py"],
            "-m takes the name of a module, as in package.module, not pack/mod.py: leave -m out to run a file",
        ),
        (["-m", "s.py"], "-m takes the name of a module, as in package.module, not s.py: leave -m out to run a file"),
        (["-m", ".mod"], "no module named .mod"),
        (["-m", "math"], "the module math has no Python code to run"),
    ],
)
def test_what_is_no_script_gets_one_line(shell, target, line):
    (shell.folder / "folder").mkdir()
    (shell.folder / "binary").write_bytes(b"\x7fELF\0\0\1")
    shell.write("pack/__init__.py", "")
    shell.write("pack/mod.py", "")
    shell.write("s.py", "print('ran')")
    done = shell.trimtab("run", *target)
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith(f"trimtab: {line}")
    assert done.err.count("\n") == 1
    assert not shell.records


def test_binary_without_null_bytes_is_a_syntax_error(shell):
    (shell.folder / "s.py").write_bytes(bytes(range(128, 256)))
    plain, watched = shell.plain("s.py", real=True), shell.trimtab("run", "s.py")
    assert watched.status == plain.status == 1
    assert "SyntaxError" in watched.err
    assert "/trimtab/" not in watched.err


PICKLES = """
import copy, io, multiprocessing, os, pickle, sys
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        assert __name__ in ('__main__', '__mp_main__')
        return torch.full((4,), float(i)), i % 2
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 2)
    def forward(self, x):
        return self.a(x)
def square(i):
    return i * i
def work(rank, results):
    results.put((rank, __name__))
def main():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for context in sys.argv[1:]:
        for x, y in DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context=context):
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(context, loss.item())
    with multiprocessing.get_context('fork').Pool(1) as pool:
        print(pool.map(square, range(3)))
    if 'spawn' in sys.argv:
        results = multiprocessing.get_context('spawn').SimpleQueue()
        torch.multiprocessing.spawn(work, args=(results,), nprocs=1)
        print(results.get())
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    print(b'trimtab' in buffer.getvalue(), type(torch.load(buffer, weights_only=False)) is Net)
    print(pickle.loads(pickle.dumps(net)).a.weight.equal(net.a.weight), pickle.dumps(Data()), type(copy.deepcopy(net)) is Net)
    if os.fork() == 0:
        loss = net(torch.ones(2, 4)).mean(); loss.backward(); optimizer.step()
        sys.stdout.flush()
        os._exit(0)
    os.wait()
if __name__ == '__main__':
    main()
"""


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_and_pickles_of_main(shell, net, context):
    shell.write("s.py", net, PICKLES)
    plain, watched = shell.both("s.py", context)
    assert plain.status == 0, plain.err
    same(plain, watched)
    assert "2 steps, 2 recorded in full" in watched.err
    assert watched.err.count("trimtab: watching") == 1
    assert len(shell.records) == 1


def test_a_forked_child_that_comes_to_the_end(shell, net):
    shell.write(
        "s.py",
        net,
        "import os, sys\ntrain()\nif os.fork():\n    os.wait()\n    print('parent')\nelse:\n    train()\n    print('child')\n    raise KeyError",
    )
    plain, watched = shell.both("s.py")
    same(plain, watched)
    assert watched.err.count("Steps ") == 1
    assert watched.err.count("\nKeyError\n") == 1
    no_foreign_frames(watched)


ODD = {
    "a folder of its own": "import os, tempfile\nos.chdir(tempfile.mkdtemp())\nprint(train())",
    "exit handlers": "import atexit\natexit.register(lambda: print('bye', model[0].weight.sum().item()))\nprint(train())",
    "a thread": "import threading\nt = threading.Thread(target=lambda: print(train(4)))\nt.start()\nt.join()",
    "a thread nobody waits for": "import threading, time\ndef f():\n    time.sleep(0.4)\n    print(train(4))\nthreading.Thread(target=f).start()\nprint('end')",
    "an executor left open": "from concurrent.futures import ThreadPoolExecutor\ne = ThreadPoolExecutor(1)\nprint(e.submit(train).result())",
    "a thread that fails": "import threading\nt = threading.Thread(target=lambda: model(x).mean().backward(torch.ones(7)))\nt.start()\nt.join()\nprint(train())",
    "other streams": "import sys, io\nsys.stderr = io.StringIO()\nkeep = sys.stdout\nsys.stdout = io.StringIO()\nprint(train())\nkeep.write(sys.stdout.getvalue())",
    "closed streams": "import sys\nprint(train(), flush=True)\nsys.stdout.close()\nsys.stdout = None",
    "warnings as errors": "import warnings\nwarnings.simplefilter('error')\nprint(train(12))",
    "another dtype": "torch.set_default_dtype(torch.float64)\nmodel.double()\nx = x.double()\nprint(train(12))",
    "a default device": "torch.set_default_device('meta')\nx = x.clone()\nprint(train(12))",
    "anomaly detection": "torch.autograd.set_detect_anomaly(True)\nprint(train(12))",
    "deterministic algorithms": "torch.use_deterministic_algorithms(True)\nprint(train(12))",
    "main": "def main():\n    print(train())\nif __name__ == '__main__':\n    main()",
    "a cell": "exec(compile('for i in range(2):\\n    loss = train(1)\\nprint(loss)', '<ipython-input-1>', 'exec'))",
    "argparse": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=1)\nprint(p.parse_args(), p.prog)\nprint(train())",
    "locals": "def f():\n    a = 1\n    kept = locals()\n    train()\n    b = 2\n    print(sorted(kept), kept['a'])\nf()",
    "recursion limit": "import sys\nprint(sys.getrecursionlimit())\ntrain()",
    "no garbage collection": "import gc\ngc.disable()\nprint(train(12))",
    "exec of itself": "import os, sys\nif 'again' not in sys.argv:\n    train()\n    sys.stdout.flush()\n    os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])",
    "a trace function": "import sys\nsys.settrace(lambda *a: None)\ndef f():\n    a = 1\n    v = train()\n    return a, v\nprint(f())\nsys.settrace(None)",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_scripts(shell, net, name):
    shell.write("s.py", net, ODD[name])
    plain, watched = shell.both("s.py")
    same(plain, watched)
    assert "/src/trimtab/" not in watched.err
    assert "stopped watching" not in watched.err
    if name == "exec of itself":
        return
    assert "recorded in full" in watched.err, watched.err
    if name == "a thread nobody waits for":
        assert "4 steps, 4 recorded" in watched.err


def test_argparse_help_and_errors(shell):
    shell.write(
        "s.py",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--every', type=int)\nprint(p.parse_args())",
    )
    for arguments in (["--help"], ["--every", "5"], ["--every", "x"], ["--fail-on", "error"]):
        plain, watched = shell.both("s.py", *arguments)
        same(plain, watched)
        assert plain.err.splitlines() == [line for line in watched.err.splitlines() if not line.startswith("trimtab:")]


@pytest.mark.parametrize("how", ["prints", "chains"])
def test_an_exception_hook_of_the_scripts_own(shell, net, how):
    shell.write(
        "s.py",
        net,
        """
        import sys, traceback
        before = sys.excepthook
        def hook(kind, error, trace):
            print('HOOK', kind.__name__, [f.name for f in traceback.extract_tb(trace)])
            print([f.name for f in traceback.extract_tb(error.__traceback__)])
        """,
        "sys.excepthook = hook" if how == "prints" else "sys.excepthook = lambda *a: (hook(*a), before(*a))",
        "def f():\n    train()\n    {}['key']\nf()",
    )
    plain, watched = shell.both("s.py")
    assert watched.status == plain.status == 1
    assert "HOOK KeyError ['<module>', 'f']\n['<module>', 'f']" in watched.out


def test_the_first_batch_is_let_go(shell, net):
    """Looking for the name of a variable must not keep the variables of a function alive."""
    shell.write(
        "s.py",
        net,
        """
        import weakref
        def main():
            batch = torch.randn(16, 4)
            gone = weakref.ref(batch)
            for _ in range(2):
                loss = nn.functional.cross_entropy(model(batch), y)
                loss.backward()
                optimizer.step()
            lost = weakref.ref(loss)
            del batch, loss
            print(gone() is None, lost() is None)
        main()
        """,
    )
    plain, watched = shell.both("s.py")
    assert plain.out == "True True\n"
    same(plain, watched)


DIGITS = """
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
random.seed(1); np.random.seed(1); torch.manual_seed(1)
def digits(*more):
    print(*[v.hex() for v in more], random.random().hex(), np.random.rand().hex(), torch.rand(()).item().hex())
"""

DROPOUT = """
x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for epoch in range(5):
    net.train()
    for a, b in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
        if random.random() < 0.5:
            a = a + 0.1 * torch.from_numpy(np.random.randn(*a.shape)).float()
        loss = nn.functional.cross_entropy(net(a), b)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        digits(loss.item())
    net.eval()
    with torch.no_grad():
        digits(nn.functional.cross_entropy(net(x), y).item())
print(sum(p.double().sum() for p in net.parameters()).item().hex(), list(net.state_dict()))
"""

GAN = """
G = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
D = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(8, 1))
og, od = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
bce = nn.BCEWithLogitsLoss()
one, zero = torch.ones(16, 1), torch.zeros(16, 1)
for _ in range(15):
    real, fake = torch.randn(16, 2) + 2, G(torch.randn(16, 3))
    d = bce(D(real), one) + bce(D(fake.detach()), zero)
    od.zero_grad(); d.backward(); od.step()
    g = bce(D(fake), one)
    og.zero_grad(); g.backward(); og.step()
    digits(d.item(), g.item())
"""


@pytest.mark.parametrize("script", [DROPOUT, GAN], ids=["dropout", "gan"])
def test_not_one_bit_changes(shell, script):
    shell.write("s.py", DIGITS, script)
    plain, watched = shell.both("s.py")
    assert plain.status == 0, plain.err
    assert len(plain.out) > 500
    same(plain, watched)
    same(plain, shell.trimtab("run", "--every", "1", "--no-store", "s.py"))


@pytest.mark.slow
def test_two_runs_in_the_same_second_keep_apart(shell, net):
    shell.write("s.py", net, "print(train())")
    running = [shell.start("-m", "trimtab", "run", "s.py") for _ in range(2)]
    for one in running:
        _, err = one.communicate(timeout=100)
        assert one.returncode == 0
        assert "3 steps, 3 recorded" in err
    assert len(shell.records) == 2
    assert all(Record.open(path).step_count == 3 for path in shell.records)


def test_time_is_not_spent_on_waiting(shell, net):
    """An idle worker thread that never ends by itself does not hold the report back."""
    shell.write(
        "s.py",
        net,
        "from concurrent.futures import ThreadPoolExecutor\ne = ThreadPoolExecutor(2)\ne.submit(train).result()\ne.submit(int)",
    )
    begin = time.monotonic()
    assert shell.trimtab("run", "s.py").status == 0
    assert time.monotonic() - begin < 20


def test_environment_is_untouched(shell, net):
    shell.write(
        "s.py",
        net,
        "import os, signal\ntrain()\nprint(sorted(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), os.getcwd())",
    )
    plain, watched = shell.both("s.py")
    same(plain, watched)


def test_a_script_that_starts_its_own_ranks_is_told_how_to_be_watched(shell):
    shell.write(
        "train.py",
        """
        import torch

        def work(rank):
            model = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.ones(2, 2)).sum().backward()
            optimizer.step()

        if __name__ == "__main__":
            torch.multiprocessing.start_processes(work, nprocs=2, start_method="fork")
            print("done")
        """,
    )
    done = shell.trimtab("run", "train.py")
    assert (done.status, done.out) == (0, "done\n")
    assert "torchrun -m trimtab run" in " ".join(done.err.split())
