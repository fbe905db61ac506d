"""The Python of docs/propagation.md runs and gives the values shown; the page names every public function that it should."""

import doctest
import re
from pathlib import Path

from trimtab import propagation

PAGE = Path(__file__).parents[2] / "docs" / "propagation.md"


def test_the_python_of_the_page():
    text = PAGE.read_text(encoding="utf-8")
    source = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(source, {}, PAGE.name, str(PAGE), 0)
    assert len(test.examples) > 12
    told = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL).run(test, out=told.append)
    assert not told, "".join(told)


def test_every_function_that_the_page_names_is_there():
    named = re.findall(r"`(?:p\.|propagation\.)?([A-Za-z_]\w*)`", PAGE.read_text(encoding="utf-8"))
    known = {*propagation.__all__, "weight_var", "bias_var", "calculate_gain"}
    assert set(named) <= known, set(named) - known
