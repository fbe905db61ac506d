"""The options of `trimtab run`."""

import json
import os

import pytest

from trimtab.recording import Record

SICK = """
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(16, 16), nn.Sigmoid())], nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x, y = torch.randn(64, 16), torch.randint(0, 2, (64,))
for _ in range(40):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print('done')
"""

LOOPS = {
    "plain": "for i in range(100):\n    train(1)\nprint('never')",
    "finally": "try:\n    train(100)\nfinally:\n    print('finally', flush=True)\nprint('never')",
    "with": "import contextlib\nwith contextlib.closing(open('f', 'w')) as f:\n    f.write('x')\n    train(100)",
    "bare except around": "try:\n    train(100)\nexcept:\n    print('failed')\nprint('goes on')",
    "bare except, then an exit": "import sys\ntry:\n    train(100)\nexcept:\n    sys.exit(5)",
    "wrapped": "try:\n    train(100)\nexcept BaseException as error:\n    raise RuntimeError('training failed') from error",
    "except Exception": "try:\n    train(100)\nexcept Exception:\n    print('never')",
    "bare except inside": "while True:\n    try:\n        train(1)\n    except:\n        pass",
    "in a function": "def main():\n    train(100)\nmain()",
    "exit handler": "import atexit\natexit.register(print, 'bye')\ntrain(100)",
}
SAYS = {"finally": "finally\n", "bare except around": "failed\ngoes on\n", "exit handler": "bye\n"}


@pytest.mark.parametrize("loop", LOOPS)
def test_stop_after(shell, net, loop):
    shell.write("s.py", net, LOOPS[loop])
    done = shell.trimtab("run", "--stop-after", "7", "s.py")
    assert done.status == 0
    assert done.out == SAYS.get(loop, "")
    assert "Traceback" not in done.err
    assert "watching model" in done.err
    record = Record.open(shell.records[0])
    assert record.facts["how"] == "stopped after 7 steps"
    assert 7 <= record.step_count <= 10
    assert record.finished
    if loop != "bare except inside":
        assert record.step_count == 7


def test_stop_after_more_than_there_is_and_errors_before(shell, net):
    shell.write("s.py", net, "train(3)\nprint('end')")
    done = shell.trimtab("run", "--stop-after", "7", "s.py")
    assert (done.status, done.out) == (0, "end\n")
    shell.write("s.py", net, "train(3)\nraise ValueError")
    assert shell.trimtab("run", "--stop-after", "7", "s.py").status == 1


def test_stop_after_counts_steps_of_several_optimizers_once(shell, net):
    shell.write(
        "s.py",
        net,
        """
        a, b = (torch.optim.SGD(model[i].parameters(), 0.1) for i in (0, 2))
        for i in range(50):
            model(x).mean().backward()
            a.step()
            b.step()
            print(i)
        """,
    )
    done = shell.trimtab("run", "--stop-after", "4", "s.py")
    assert (done.status, done.out) == (0, "0\n1\n2\n")
    record = Record.open(shell.records[0])
    assert record.step_count == 4
    assert {site.name: max(record.series(site).steps) for site in record.of_kind("update")} == {
        "0.weight": 3,
        "0.bias": 3,
        "2.weight": 3,
        "2.bias": 3,
    }


def test_stop_after_with_optimizers_that_take_turns(shell, net):
    shell.write(
        "s.py",
        net,
        """
        both = [torch.optim.SGD(model[i].parameters(), 0.1) for i in (0, 2)]
        for i in range(50):
            for optimizer in both:
                model.zero_grad()
                model(x).mean().backward()
                optimizer.step()
        """,
    )
    assert shell.trimtab("run", "--stop-after", "5", "s.py").status == 0
    assert Record.open(shell.records[0]).step_count == 5


def test_the_folder_has_an_ignore_file_of_its_own(shell, net):
    shell.write("s.py", net, "train()")
    assert shell.trimtab("run", "s.py").status == 0
    assert (shell.folder / ".trimtab" / ".gitignore").read_text() == "*\n"
    (shell.folder / ".trimtab" / ".gitignore").write_text("mine")
    assert shell.trimtab("run", "s.py").status == 0
    assert (shell.folder / ".trimtab" / ".gitignore").read_text() == "mine"
    assert len(shell.records) == 2


def test_store_and_no_store(shell, net):
    shell.write("s.py", net, "print(train())")
    done = shell.trimtab("run", "--store", "deep/er/r.db", "s.py")
    assert done.status == 0
    assert "record deep/er/r.db" in done.err
    assert Record.open(shell.folder / "deep/er/r.db").step_count == 3
    again = shell.trimtab("run", "--store", "deep/er/r.db", "s.py")
    assert again.status == 2
    assert again.out == ""
    assert again.err.count("\n") == 1
    assert "exists already" in again.err
    assert Record.open(shell.folder / "deep/er/r.db").step_count == 3
    shell.write("notes.txt", "mine")
    assert shell.trimtab("run", "--store", "notes.txt", "s.py").status == 2
    assert (shell.folder / "notes.txt").read_text() == "mine"
    before = set(shell.folder.rglob("*"))
    done = shell.trimtab("run", "--no-store", "s.py")
    assert done.status == 0
    assert "record in memory" in done.err
    assert "3 recorded in full" in done.err
    assert {p for p in set(shell.folder.rglob("*")) - before if not p.name.startswith((".out", ".err"))} == set()


@pytest.mark.parametrize("blocked", ["a file in its place", "a folder that cannot be written"])
def test_no_place_for_the_record(shell, net, blocked):
    shell.write("s.py", net, "print('ran')")
    if blocked == "a file in its place":
        (shell.folder / ".trimtab").write_text("mine")
        done = shell.trimtab("run", "s.py")
    else:
        done = shell.trimtab("run", "--store", "/proc/nowhere/r.db", "s.py")
    assert done.status == 2
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err
    assert done.err.startswith("trimtab: cannot ")
    assert "--store" in done.err or "store=" in done.err


@pytest.mark.parametrize("form", ["json", "sarif", "text", "html"])
def test_reports(shell, form):
    shell.write("s.py", SICK)
    to_file = shell.trimtab("run", "--format", form, "--output", "r.out", "s.py")
    assert to_file.out == "done\n"
    assert to_file.err.count("\n") == 1  # only what is watched
    text = (shell.folder / "r.out").read_text()
    to_out = shell.trimtab("run", "--format", form, "--output", "-", "s.py")
    assert to_out.out.startswith("done\n")
    assert to_out.err.count("\n") == 1
    to_err = shell.trimtab("run", "--format", form, "s.py")
    assert to_err.out == "done\n"
    shown = to_err.err.partition("\n")[2]
    if form in ("text", "html"):
        assert "vanishing-gradient" in text
        assert "vanishing-gradient" in to_out.out
        assert "vanishing-gradient" in shown
        return
    for report in (text, to_out.out.removeprefix("done\n"), shown):
        parsed = json.loads(report)
        assert "vanishing-gradient" in json.dumps(parsed)
    if form == "sarif":
        assert json.loads(text)["runs"][0]["results"]


def test_the_report_finds_its_place_wherever_the_script_goes(shell):
    shell.write("s.py", SICK, "import os, sys, io\nos.mkdir('away'); os.chdir('away')\nsys.stdout = io.StringIO()")
    assert shell.trimtab("run", "--output", "r.json", "--format", "json", "s.py").status == 0
    assert json.loads((shell.folder / "r.json").read_text())
    os.rmdir(shell.folder / "away")
    done = shell.trimtab("run", "--output", "-", "--format", "json", "s.py")
    assert json.loads(done.out.removeprefix("done\n"))


@pytest.mark.parametrize("output", ["nowhere/r.json", "."])
def test_a_report_that_cannot_be_written_is_refused_before_the_run(shell, net, output):
    shell.write("s.py", net, "print('ran')")
    done = shell.trimtab("run", "--output", output, "s.py")
    assert done.status == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert "cannot write the report" in done.err


def test_fail_on(shell, net):
    shell.write("s.py", SICK)
    assert shell.trimtab("run", "s.py").status == 0
    assert shell.trimtab("run", "--fail-on", "error", "s.py").status == 1
    assert shell.trimtab("run", "--fail-on", "error", "--stop-after", "30", "s.py").status == 1
    assert shell.trimtab(
        "run",
        "--fail-on",
        "warning",
        "--ignore",
        "vanishing-gradient",
        "--ignore",
        "saturated-units",
        "--ignore",
        "signal-collapse",
        "s.py",
    ).status in (0, 1)
    shell.write("s.py", SICK, "import sys; sys.exit(9)")
    assert shell.trimtab("run", "--fail-on", "error", "s.py").status == 9
    shell.write("s.py", SICK, "import sys; sys.exit(0)")
    assert shell.trimtab("run", "--fail-on", "error", "s.py").status == 1
    shell.write("s.py", net, "train()")
    assert shell.trimtab("run", "--fail-on", "warning", "s.py").status == 0


def test_ignore(shell):
    shell.write("s.py", SICK)
    done = shell.trimtab("run", "--format", "json", "--ignore", "vanishing-gradient", "s.py")
    assert "vanishing-gradient" not in [f["code"] for f in json.loads(done.err.partition("\n")[2])["findings"]]
    shell.write("s.py", "print('ran')")
    done = shell.trimtab("run", "--ignore", "no-such-code", "s.py")
    assert done.status == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert len(shell.records) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--every", "0"], "--every"),
        (["--every", "x"], "--every"),
        (["--evry", "3"], "--every"),
        (["--stop-after", "-1"], "--stop-after"),
        (["--format", "pdf"], "'text', 'json', 'sarif', 'html'"),
        (["--fail-on", "note"], "--fail-on"),
        (["--store", "a.db", "--no-store"], "exclude each other"),
    ],
)
def test_bad_options(shell, arguments, words):
    shell.write("s.py", "print('ran')")
    done = shell.trimtab("run", *arguments, "s.py")
    assert done.status == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert words in done.err


def test_every(shell, net):
    shell.write("s.py", net, "train(25)")
    assert "one step in 5" in shell.trimtab("run", "--every", "5", "s.py").err
    assert Record.open(shell.records[0]).steps.tolist() == [*range(11), 15, 20]


@pytest.mark.parametrize(
    "body", ["print(model(x).sum().item())", "with torch.no_grad():\n    print(model(x).sum().item())", "pass"]
)
def test_a_script_that_never_trains_gets_a_note(shell, net, body):
    shell.write("s.py", net, body)
    plain, done = shell.both("s.py")
    assert (done.out, done.status) == (plain.out, 0)
    assert "no training step was seen" in done.err
    assert shell.trimtab("run", "--fail-on", "error", "s.py").status == 0


def test_a_fault_of_trimtabs_own_ends_the_watching_and_not_the_run(shell, net):
    """Also where the script turns warnings into errors, and in a hook that runs inside the optimizer's step."""
    for hook in ("Recorder.entered", "Recorder.before_step", "Recorder._keep_loss"):
        shell.write(
            "s.py",
            net,
            f"""
            import sys, warnings
            if 'strict' in sys.argv:
                warnings.simplefilter('error')
            if 'watched' in sys.argv:
                from trimtab.recording import Recorder
                def bad(*a, **k):
                    raise ZeroDivisionError('a bug')
                {hook} = bad
            print(train(6))
            """,
        )
        plain = shell.plain("s.py")
        for more in ([], ["strict"]):
            done = shell.trimtab("run", "s.py", "watched", *more)
            assert (done.out, done.status) == (plain.out, plain.status), done.err
            assert "ZeroDivisionError: a bug" in done.err
            assert "Traceback" not in done.err
            assert Record.open(shell.records[-1]).finished


def test_discoverys_own_fault_too(shell, net):
    shell.write(
        "s.py",
        net,
        """
        import sys
        if 'watched' in sys.argv:
            import trimtab.runner.discovery as d
            setattr(d, sys.argv[2], lambda *a: 1 / 0)
        print(train(6))
        """,
    )
    plain = shell.plain("s.py")
    for name in ("owner", "variable", "user_frames"):
        done = shell.trimtab("run", "s.py", "watched", name)
        assert (done.out, done.status) == (plain.out, plain.status), done.err
        assert "trimtab stopped watching: ZeroDivisionError" in done.err


def test_a_fault_of_the_diagnosis_does_not_hide_the_scripts_error(shell, net):
    shell.write(
        "s.py",
        net,
        "import sys\nif 'watched' in sys.argv:\n    import trimtab.runner.run\n    sys.modules['trimtab.diagnosis.diagnose'].RULES = (lambda view: 1 / 0,)",
        "train()\nraise KeyError('mine')",
    )
    done = shell.trimtab("run", "s.py", "watched")
    assert done.status == 1
    assert "the diagnosis failed (ZeroDivisionError: division by zero)" in done.err
    assert done.err.endswith("KeyError: 'mine'\n")
    assert "/src/trimtab/" not in done.err


def test_a_trimtab_error_of_the_scripts_own_is_a_traceback(shell, net):
    shell.write("s.py", net, "import trimtab\nwith trimtab.watch(model, optimizer, store=__file__):\n    train()")
    plain, done = shell.both("s.py")
    assert done.status == plain.status == 1
    assert "RecordError: store must name a new file" in done.err
    assert "Traceback" in done.err


def test_a_script_that_watches_itself(shell, net):
    shell.write(
        "s.py",
        net,
        "import trimtab\nwith trimtab.watch(model, optimizer) as w:\n    print(train(5))\nprint(w.record.step_count, w.record.steps.tolist())",
    )
    plain, done = shell.both("s.py")
    assert plain.out.endswith("5 [0, 1, 2, 3, 4]\n")
    assert (done.out, done.status) == (plain.out, 0)
    assert "5 steps, 5 recorded" in done.err


@pytest.mark.parametrize(
    "broken", ["sys.modules['trimtab.diagnosis.diagnose'].RULES = (f,)", "trimtab.runner.run.write_report = f"]
)
def test_a_diagnosis_that_failed_is_not_a_healthy_one(shell, net, broken):
    shell.write(
        "s.py",
        net,
        f"import sys\nif 'watched' in sys.argv:\n    import trimtab.runner.run\n    f = lambda *a: 1 / 0\n    {broken}\ntrain()\nsys.exit(int(sys.argv[-1]))",
    )
    done = shell.trimtab("run", "--fail-on", "error", "s.py", "watched", "0")
    assert "the diagnosis failed (ZeroDivisionError: division by zero)" in done.err
    assert done.status == 1
    assert shell.trimtab("run", "s.py", "watched", "0").status == 0
    assert shell.trimtab("run", "--fail-on", "error", "s.py", "watched", "9").status == 9
