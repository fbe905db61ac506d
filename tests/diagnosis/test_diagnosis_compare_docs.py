"""The Python of docs/compare.md runs and gives the values that the page shows."""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"


def test_the_python_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, told = {"__name__": "page"}, []
    runner, parser = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE), doctest.DocTestParser()
    text = PAGE.read_text(encoding="utf-8")
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line, source = text.count("\n", 0, found.start()) + 2, found.group(1)
        if ">>>" not in source:
            exec(compile("\n" * (line - 1) + source, str(PAGE), "exec"), names)
            continue
        test = parser.get_doctest(source, names, PAGE.name, str(PAGE), line - 1)
        runner.run(test, out=told.append, clear_globs=False)
        names.update(test.globs)
    assert not told, "".join(told)
    assert runner.tries >= 6
    assert (tmp_path / "compare.html").read_text(encoding="utf-8") == names["page"]
