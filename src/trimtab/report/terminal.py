"""What a text for a terminal is made of: lines of one width, in characters and colours that the reader's window can show."""

from collections.abc import Iterable
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from trimtab.report.finding import Finding
from trimtab.report.words import clean

COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}

NARROWEST = 40


def printed(parts: Iterable[RenderableType], width: int, color: bool) -> str:
    """The parts one below the other.

    Args:
        parts: What `Parts` builds.
        width: Columns of the reader's window; no line is wider.
        color: Whether to write ANSI colours.

    Returns:
        The text, ending in one line end.
    """
    out = StringIO()
    console = Console(
        file=out,
        width=max(width, NARROWEST),
        height=25,
        color_system="standard" if color else None,
        force_terminal=color,
        force_jupyter=False,
        force_interactive=False,
        no_color=not color,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        safe_box=True,
    )
    for part in parts:
        console.print(part, overflow="fold")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"


class Parts:
    """Builds the parts of a text for one width and one set of characters."""

    def __init__(self, width: int, unicode: bool) -> None:
        self.width = max(width, NARROWEST)
        self.unicode = unicode

    def text(self, text: str, style: str = "") -> Text:
        """Text of any origin, made harmless."""
        return Text(clean(text, unicode=self.unicode), style=style, overflow="fold")

    def head(self, name: str, right: str, command: str = "trimtab") -> Text:
        """The first line: whose text it is, a rule, and the verdict in a few words."""
        name = clean(name, unicode=self.unicode)
        room = self.width - cell_len(right) - len(f"{command} ") - 6
        left = Text().append(command, "bold")
        if name:
            left.append(" ").append(self.cut(Text(name, "bold"), room))
        dash = "─" if self.unicode else "-"
        fill = max(self.width - left.cell_len - cell_len(right) - 2, 3)
        return left.append(f" {dash * fill} ", "dim").append(right)

    def rule(self, name: str) -> Text:
        """A line across with a name in it."""
        dash = "─" if self.unicode else "-"
        label = self.cut(self.text(name, "bold"), self.width - 8)
        line = Text().append(dash * 2 + " ", "dim").append(label)
        return line.append(" " + dash * (self.width - line.cell_len - 1), "dim")

    def cut(self, text: Text, most: int) -> Text:
        """The text on one line of at most `most` columns."""
        if text.cell_len <= most:
            return text
        dots = "…" if self.unicode else "..."
        text.truncate(max(most - cell_len(dots), 0), overflow="crop")
        text.rstrip()
        return text.append(dots)

    def indented(self, part: RenderableType, by: int = 2) -> Padding:
        """The part further to the right."""
        return Padding(part, (0, 0, 0, by))

    def code(self, finding: Finding) -> Text:
        """A finding's code in the colour of its severity."""
        return Text(overflow="fold").append(self.text(finding.code, COLOURS[finding.severity].removeprefix("bold ")))
