"""The reference values that tests of this folder are right against."""

import json
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).parents[1] / "reference"


@pytest.fixture(scope="session")
def reference():
    def load(name: str) -> Any:
        return json.loads((REFERENCE / f"{name}.json").read_text())

    return load
