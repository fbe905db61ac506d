"""The Python of docs/landscape.md runs and gives the values shown; what the page names is there."""

import re
from pathlib import Path

from documents import run
from trimtab import curvature
from trimtab.curvature import figures

PAGE = Path(__file__).parents[2] / "docs" / "landscape.md"


def test_the_python_of_the_page():
    assert run(PAGE)[1] > 20


def test_every_function_that_the_page_names_is_there():
    named = re.findall(r"`(?:c\.)?([a-z]\w*_\w+)(?:\(|`)", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 8
    assert set(named) <= {*curvature.__all__, *figures.__all__}, set(named) - {*curvature.__all__, *figures.__all__}
