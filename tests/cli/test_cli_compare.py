"""`trimtab compare`: three forms, names, and one line for bad input."""

import json

import pytest

TRAIN = """
import sys
with torch.no_grad():
    for p in model.parameters():
        p *= float(sys.argv[1])
train(12)
"""


@pytest.fixture
def records(shell, net):
    """Two runs of one script, the second with larger weights."""
    shell.write("train.py", net, TRAIN)
    for name, gain in (("small", 1), ("large", 4)):
        ended = shell.trimtab("run", "--store", f"net-{name}.db", "train.py", gain)
        assert ended.status == 0, ended.err
    return "net-small.db", "net-large.db"


def complaint(ended):
    assert ended.status == 2
    assert ended.out == ""
    assert ended.err.startswith("trimtab: ")
    assert ended.err.count("\n") == 1, ended.err
    return ended.err


def test_every_form(shell, records):
    text = shell.trimtab("compare", *records)
    assert (text.status, text.err) == (0, "")
    assert text.out.startswith("trimtab compare small → large ─")
    assert "at the start: rms of 0.weight" in text.out
    assert "Layers that differ most" in text.out
    assert max(map(len, text.out.splitlines())) <= 80

    found = json.loads(shell.trimtab("compare", "--format", "json", *records).out)
    assert found["names"] == ["small", "large"]
    assert {setting["where"] for setting in found["settings"]} == {"start"}
    assert [run["run"]["steps"] for run in found["runs"]] == [12, 12]

    page = shell.trimtab("compare", "--format", "html", "--output", "both.html", *records)
    assert (page.status, page.out, page.err) == (0, "", "")
    html = (shell.folder / "both.html").read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert 'data-chart="signal-a"' in html


def test_names(shell, records):
    ended = shell.trimtab("compare", "--names", "He gain 1, four times", *records)
    assert ended.out.startswith("trimtab compare He gain 1 → four times ")
    for wrong in ("before", "a,", ",b", "a,b,c", ""):
        assert "--names takes two names" in complaint(shell.trimtab("compare", "--names", wrong, *records))


def test_the_same_record_twice(shell, records):
    ended = shell.trimtab("compare", records[0], records[0])
    assert ended.status == 0
    assert "first → second" in ended.out
    assert "Nothing that the records know of." in ended.out


def test_bad_input_is_one_line(shell, records):
    shell.write("train.txt", "no record")
    for arguments, words in (
        ([records[0]], "RECORD"),
        ([records[0], "none.db"], "no record at none.db"),
        ([records[0], "train.txt"], "is not a record of trimtab"),
        (["train.py:make", records[0]], "no record at train.py:make"),
        ([records[0], "."], "no record at ."),
        ([*records, "--ignore", "nonsense"], "no code 'nonsense'"),
        ([*records, "--format", "sarif"], "sarif"),
        ([*records, "--output", "no/such/folder.txt"], "cannot write the report to no/such/folder.txt"),
    ):
        assert words in complaint(shell.trimtab("compare", *arguments))


def test_a_record_without_a_step(shell, records):
    shell.write(
        "idle.py",
        "import torch, trimtab",
        "m = torch.nn.Linear(2, 1)",
        "with trimtab.watch(m, torch.optim.SGD(m.parameters(), lr=1.0), store='idle.db'): pass",
    )
    assert shell.plain("idle.py").status == 0
    assert "idle.db holds no training step" in complaint(shell.trimtab("compare", records[0], "idle.db"))
