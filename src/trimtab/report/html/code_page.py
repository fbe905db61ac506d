"""The page of a code, from Markdown to HTML."""

import functools

from markdown_it import MarkdownIt
from markupsafe import Markup

from trimtab.report.pages import codes, page


@functools.cache
def page_html(code: str, level: int = 4) -> Markup:
    """What `trimtab explain` knows of a code, without its title.

    Args:
        code: The code.
        level: Level of its headings, 1 to 6.

    Returns:
        HTML; empty for a code without a page.
    """
    if code not in codes():
        return Markup("")
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    parts = [f"{'#' * level} {heading}\n\n{text}" for heading, text in page(code).sections.items()]
    html = reader.render("\n\n".join(parts))
    return Markup(html.replace("<pre>", '<pre tabindex="0">'))  # what scrolls is to be reached by keyboard
