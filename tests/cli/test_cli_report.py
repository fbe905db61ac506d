"""`trimtab report`: the diagnosis of a record, or its charts as files."""

import pytest

import trimtab
from trimtab.diagnosis.charting import charts_of
from trimtab.recording import Record


@pytest.fixture
def record(shell, net):
    """A record of a short run."""
    shell.write("train.py", net, "train(4)")
    assert shell.trimtab("run", "--store", "run.db", "train.py").status == 0
    return "run.db"


def one_line(ended):
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("trimtab: ")
    assert ended.err.count("\n") == 1, ended.err
    return ended.err


def test_every_chart_becomes_a_file_and_is_named(shell, record):
    ended = shell.trimtab("report", record, "--figures", "figures")
    assert (ended.status, ended.err) == (0, "")
    keys = [chart.key for chart in charts_of(Record.open(shell.folder / record))]
    assert {"loss", "signal", "gradient", "update", "signal-by-depth"} <= set(keys)
    assert ended.out.splitlines() == [f"figures/{key}.{form}" for key in keys for form in ("png", "svg")]
    assert all((shell.folder / line).stat().st_size > 1000 for line in ended.out.splitlines())


def test_forms_of_the_figures(shell, record):
    ended = shell.trimtab("report", record, "--figures", "f", "--figure-format", "svg", "--figure-format", "pdf")
    assert {line.rpartition(".")[2] for line in ended.out.splitlines()} == {"svg", "pdf"}
    assert one_line(shell.trimtab("report", record, "--figure-format", "svg")).startswith(
        "trimtab: --figure-format needs --figures"
    )
    assert "'gif' is not one of" in one_line(
        shell.trimtab("report", record, "--figures", "f", "--figure-format", "gif")
    )


def test_the_report_is_that_of_diagnose(shell, record):
    for options in ([], ["--format", "json"], ["--format", "sarif"]):
        reported, diagnosed = shell.trimtab("report", record, *options), shell.trimtab("diagnose", record, *options)
        assert (reported.status, reported.out) == (0, diagnosed.out)
    both = shell.trimtab("report", record, "--figures", "f", "--format", "json", "--output", "r.json")
    assert both.status == 0
    assert both.out.startswith("f/loss.png")
    diagnosed = shell.trimtab("diagnose", record, "--format", "json")
    assert (shell.folder / "r.json").read_text() == diagnosed.out
    both = shell.trimtab("report", record, "--figures", "f", "--format", "html", "--output", "page.html")
    assert both.status == 0
    assert "<html" in (shell.folder / "page.html").read_text()
    assert "--format json needs --output FILE" in one_line(
        shell.trimtab("report", record, "--figures", "f", "--format", "json")
    )


def test_findings_count_when_asked(shell, net):
    shell.write("train.py", net, "for p in model[0].parameters(): p.requires_grad_(False); p.data.zero_()\ntrain(12)")
    shell.trimtab("run", "--store", "run.db", "train.py")
    found = trimtab.diagnose(Record.open(shell.folder / "run.db"))
    assert found.at_least("warning"), "or the test below tests nothing"
    assert shell.trimtab("report", "run.db", "--fail-on", "warning").status == 1
    assert shell.trimtab("report", "run.db", "--figures", "f", "--fail-on", "warning").status == 1
    assert shell.trimtab("report", "run.db").status == 0


def test_what_cannot_be_read_or_written_is_one_line(shell, record):
    shell.write("text.db", "no record")
    (shell.folder / "file").write_text("mine")
    assert "no record at nothing.db" in one_line(shell.trimtab("report", "nothing.db", "--figures", "f"))
    assert "is not a record of trimtab" in one_line(shell.trimtab("report", "text.db"))
    assert "cannot write file: File exists; name a folder" in one_line(
        shell.trimtab("report", record, "--figures", "file")
    )
    assert (shell.folder / "file").read_text() == "mine"
    (shell.folder / "taken" / "loss.png").mkdir(parents=True)
    assert "cannot write taken/loss.png: Is a directory" in one_line(
        shell.trimtab("report", record, "--figures", "taken")
    )
    assert "there is no code 'nonsense'" in one_line(shell.trimtab("report", record, "--ignore", "nonsense"))


def test_a_record_without_a_step_is_told(shell, net):
    shell.write("train.py", net, "import trimtab\nwith trimtab.watch(model, optimizer, store='empty.db'): pass")
    shell.plain("train.py")
    assert (shell.folder / "empty.db").exists()
    assert "holds no training step" in one_line(shell.trimtab("report", "empty.db", "--figures", "f"))
    assert not (shell.folder / "f").exists()


def test_help(shell):
    ended = shell.trimtab("report", "--help")
    assert ended.status == 0
    assert (
        "  trimtab report .trimtab/train-20260101-120000.db --figures figures\n" in ended.out.partition("Examples:")[2]
    )
