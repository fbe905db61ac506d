"""Every example of docs/figures.md runs, each in a process of its own; the chart keys and sizes the page names are true."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "figures.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## ([^\n]+)\n.*?```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))


def test_the_examples_of_the_page():
    assert list(EXAMPLES) == ["In Python", "In a paper"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name, shell):
    shell.write("example.py", EXAMPLES[name])
    done = shell.plain("example.py", env={"MPLBACKEND": "agg"})
    assert done.status == 0, done.err[-2000:]
    if name == "In Python":
        keys = re.findall(r"'([\w-]+)'", done.out)
        named = {*re.findall(r'charts(?:\[|\.draw\()"([\w-]+)"', TEXT), *re.findall(r"`([\w-]+)\.(?:png|svg)`", TEXT)}
        assert {"loss", "signal", "gradient-by-depth", "running-mean"} | named <= set(keys)
        assert sorted(path.name for path in (shell.folder / "figures").iterdir()) == sorted(
            f"{key}.{form}" for key in keys for form in ("pdf", "svg")
        )
    else:
        assert (shell.folder / "paper.pdf").read_bytes().startswith(b"%PDF")
