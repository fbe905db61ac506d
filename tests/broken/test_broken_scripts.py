"""Broken scripts, run as they are: each is diagnosed and mended, and the code that is printed, pasted in, does what the trial did."""

import re
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trimtab.repairs.running import Journal
from trimtab.repairs.trials import Job
from trimtab.runner.repairing import ScriptRepair
from trimtab.runner.script import Script

FOLDER = Path(__file__).parent

SCRIPTS = {
    "cnn": "learning-rate-too-low",
    "lstm": "missing-zero-grad",
    "transformer": "missing-from-optimizer",
    "gan": "missing-zero-grad",
    "lightning_module": "learning-rate-too-low",
}


def pasted(source, code):
    """The script with the code below the line that it names, as far to the right."""
    line = int(re.match(r"# .*, below line (\d+):", code)[1])
    lines = source.splitlines()
    margin = re.match(" *", lines[line - 1])[0]
    return "\n".join([*lines[:line], textwrap.indent(code, margin), *lines[line:]])


def losses(shell, source):
    shell.write("mended.py", source)
    ended = shell.plain("mended.py", real=True, env={"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"})
    assert ended.status == 0, ended.err
    return [float(line) for line in ended.out.splitlines() if re.fullmatch(r"[\d.e+-]+", line)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_broken_script_is_mended(name, shell, monkeypatch):
    source = (FOLDER / f"{name}.py").read_text()
    path = shell.write(f"{name}.py", source)
    monkeypatch.chdir(shell.folder)
    (shell.folder / ".trimtab").mkdir()
    repairing = ScriptRepair(Script(path.name), None)
    journal = Journal(shell.folder / "journal", repairing.key)
    with ThreadPoolExecutor(2) as executor:
        found = repairing.prescribe(executor=executor, seeds=3, budget=25, journal=journal)
    assert found.diagnosis.roots[0].code == SCRIPTS[name]
    assert path.read_text() == source
    assert found.best is not None, str(found)
    assert found.steps <= 25 * found.run_steps
    trial = journal.get(Job(found.best.changes, 0))
    seen = losses(shell, pasted(source, found.best.repair.code))[: found.run_steps]
    assert len(seen) == found.run_steps
    assert sum(seen) / len(seen) == pytest.approx(-trial.score, rel=1e-6)
    assert -trial.score < sum(losses(shell, source)[: found.run_steps]) / found.run_steps
