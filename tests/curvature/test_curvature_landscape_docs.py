"""The Python of docs/landscape.md runs and gives the values shown; what the page names is there."""

import doctest
import re
from pathlib import Path

from trimtab import curvature
from trimtab.curvature import figures

PAGE = Path(__file__).parents[2] / "docs" / "landscape.md"


def test_the_python_of_the_page():
    text = PAGE.read_text(encoding="utf-8")
    source = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(source, {}, PAGE.name, str(PAGE), 0)
    assert len(test.examples) > 20
    told = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    assert not told, "".join(told)


def test_every_function_that_the_page_names_is_there():
    named = re.findall(r"`(?:c\.)?([a-z]\w*_\w+)(?:\(|`)", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 8
    assert set(named) <= {*curvature.__all__, *figures.__all__}, set(named) - {*curvature.__all__, *figures.__all__}
