"""The table in docs/hazards.md has all hazards, and every test that it names is there."""

import ast
import re
from pathlib import Path

from situations import SITUATIONS

from trimtab.recording import unseen

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "hazards.md").read_text(encoding="utf-8")
HAZARDS = 28


def rows():
    """Number ("" for later ones) and the names in the last column of each row of the first table."""
    table = PAGE[: PAGE.index("## What cannot be seen")]
    for line in table.splitlines():
        if re.match(r"\| (\d\d)? ?\|", line):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 5, line
            assert all(cells[i] for i in (1, 3, 4)), line
            yield cells[0], re.findall("`([^`]+)`", cells[4])


TESTS = {
    f"{path.name}::{node.name}"
    for folder in ("hazards", "recording", "runner")
    for path in (ROOT / "tests" / folder).glob("test_*.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
}


def test_every_hazard_has_a_row_and_tests():
    found = list(rows())
    assert [number for number, _ in found if number] == [f"{i:02}" for i in range(1, HAZARDS + 1)]
    for number, names in found:
        assert names, number
        assert [name for name in names if name not in SITUATIONS and name not in TESTS] == []


def test_every_situation_stands_in_the_row_of_its_hazard():
    for number, names in rows():
        if number:
            mine = [name for name, make in SITUATIONS.items() if make.hazard == int(number)]
            assert [name for name in mine if name not in names] == []


def test_every_reason_is_explained():
    reasons = [value for name, value in vars(unseen).items() if name.isupper() and isinstance(value, str)]
    told = PAGE[PAGE.index("## What cannot be seen") :]
    assert [reason for reason in reasons if not any(part in told for part in (reason, reason.split(",")[0]))] == []
