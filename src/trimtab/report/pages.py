"""The pages behind `trimtab explain CODE`: one Markdown file per code and language."""

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType

from trimtab._messages import say
from trimtab.errors import UsageError

SECTIONS = ("Symptom", "Mechanism", "Formula", "Measurement", "Threshold", "Repair", "Reference")
_HEADING = re.compile(r"^## +(.+?) *$", re.MULTILINE)
_REMARK = re.compile(r"^<!--.*?-->\n?", re.MULTILINE | re.DOTALL)


class UnknownCode(UsageError):  # noqa: N818  (the name says it all)
    """No finding has this code.

    Attributes:
        code: What was asked for.
        suggestions: Codes spelled like it, the nearest first.
    """

    def __init__(self, code: str) -> None:
        self.code = code
        self.suggestions = tuple(difflib.get_close_matches(code.lower().replace("_", "-"), codes(), n=2, cutoff=0.6))
        if self.suggestions:
            text = say(
                "Unknown code {code!r}. Did you mean {nearest}?", code=code, nearest=" or ".join(self.suggestions)
            )
        else:
            text = say("Unknown code {code!r}. Known codes: {codes}.", code=code, codes=", ".join(codes()))
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class Page:
    """What trimtab knows of one code.

    Attributes:
        code: The code.
        title: The fault in one line.
        text: The whole page, Markdown.
        sections: The page's sections by heading ("Symptom", "Mechanism", ...), Markdown.
    """

    code: str
    title: str
    text: str
    sections: Mapping[str, str]


def _folder(language: str) -> Traversable:
    return files("trimtab.report").joinpath("pages", language)


@functools.cache
def languages() -> tuple[str, ...]:
    """Return the languages that have pages."""
    return tuple(sorted(f.name for f in files("trimtab.report").joinpath("pages").iterdir() if f.is_dir()))


@functools.cache
def codes() -> tuple[str, ...]:
    """Return the codes that have a page, in alphabetical order."""
    return tuple(sorted(f.name.removesuffix(".md") for f in _folder("en").iterdir() if f.name.endswith(".md")))


@functools.cache
def page(code: str, language: str = "en") -> Page:
    """The page of a code.

    Args:
        code: A code such as "vanishing-gradient".
        language: The language wanted; where a page is not translated, the English one is returned.

    Returns:
        The page, in the language wanted or in English.

    Raises:
        UnknownCode: If no finding has this code.
        UsageError: If there are no pages in this language.
    """
    if code not in codes():
        raise UnknownCode(code)
    if language not in languages():
        raise UsageError(
            say("No pages in {language!r}; there are {all}.", language=language, all=", ".join(languages()))
        )
    file = _folder(language).joinpath(f"{code}.md")
    if not file.is_file():
        file = _folder("en").joinpath(f"{code}.md")
    return parse(file.read_text(encoding="utf-8"))


def parse(text: str) -> Page:
    """The page that a Markdown text is: "# CODE: title", then one "## Section" after the other.

    Args:
        text: Markdown; comments of HTML are left out.

    Returns:
        The page.

    Raises:
        ValueError: If the first line is not "# CODE: title".
    """
    text = _REMARK.sub("", text).strip() + "\n"
    first = re.match(r"# ([a-z0-9-]+): (.+)\n", text)
    if first is None:
        raise ValueError(f"a page starts with '# CODE: title', this one with {text.splitlines()[0]!r}")
    _, *parts = _HEADING.split(text)
    sections = {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}
    return Page(first[1], first[2].strip(), text, MappingProxyType(sections))


def title(code: str, language: str = "en") -> str:
    """Return the fault in one line; "" for a code that has no page."""
    return page(code, language).title if code in codes() else ""
