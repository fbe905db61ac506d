"""The Python of docs/initialization.md runs and gives the values that the page shows."""

from pathlib import Path

from documents import run

PAGE = Path(__file__).parents[2] / "docs" / "initialization.md"


def test_the_python_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(PAGE)[1] > 8
