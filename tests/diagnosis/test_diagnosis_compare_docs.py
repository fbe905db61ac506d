"""The Python of docs/compare.md runs and gives the values that the page shows."""

from pathlib import Path

from documents import run

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"


def test_the_python_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, examples = run(PAGE)
    assert examples >= 6
    assert (tmp_path / "compare.html").read_text(encoding="utf-8") == names["page"]
