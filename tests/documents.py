"""Runs the Python of a page of the documentation."""

import doctest
import re


def run(page):
    """Run every block of Python in a page, in order and with one set of names; what follows a prompt must give what is shown.

    Args:
        page: The file.

    Returns:
        The names there are at the end, and how many examples with a prompt were run.
    """
    names, told = {"__name__": "page"}, []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line, source = text.count("\n", 0, found.start()) + 2, found.group(1)
        if ">>>" not in source:
            exec(compile("\n" * (line - 1) + source, str(page), "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(source, names, page.name, str(page), line - 1)
        runner.run(test, out=told.append, clear_globs=False)
        names.update(test.globs)
    assert not told, "".join(told)
    return names, runner.tries
