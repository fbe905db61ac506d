"""The page of a code, from Markdown to HTML."""

import functools

from markdown_it import MarkdownIt
from markupsafe import Markup

from trimtab.report.pages import codes, page


@functools.cache
def page_html(code: str) -> Markup:
    """What `trimtab explain` knows of a code, without its title.

    Args:
        code: The code.

    Returns:
        HTML with headings from the fourth level on; empty for a code without a page.
    """
    if code not in codes():
        return Markup("")
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    parts = [f"#### {heading}\n\n{text}" for heading, text in page(code).sections.items()]
    return Markup(reader.render("\n\n".join(parts)))
