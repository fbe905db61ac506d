"""The page: a diagnosis with its charts in one file of HTML."""

from trimtab.report.html.fragment import notebook_html
from trimtab.report.html.page import render_html, write_page

__all__ = ["notebook_html", "render_html", "write_page"]
