"""Guards of the house: what an import pulls in, what the public lists promise, and that the words match the code."""

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import trimtab
from trimtab.cli.demo import demo

ROOT = Path(__file__).parent.parent
PACKAGE = Path(trimtab.__file__).parent
HEAVY = ("rich", "sklearn", "numba", "sqlite3", "matplotlib", "click", "scipy")


def _module(path: Path) -> str:
    parts = ("trimtab", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _files(*folders: str) -> list[Path]:
    found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


MODULES = {_module(path): path for path in sorted(PACKAGE.rglob("*.py"))}
PACKAGES = [name for name, path in MODULES.items() if path.name == "__init__.py"]


# ---------------------------------------------------------------------------------------------------- imports


def test_importing_trimtab_pulls_in_nothing_heavy():
    program = f"import json, sys, trimtab; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_importable(name):
    importlib.import_module(name)


@pytest.mark.parametrize("name", PACKAGES)
def test_public_list_names_what_is_there(name):
    module = importlib.import_module(name)
    public = list(getattr(module, "__all__", ()))
    assert len(public) == len(set(public)), "a name is listed twice"
    missing = [attribute for attribute in public if not hasattr(module, attribute)]
    assert missing == []
    assert set(public) <= set(dir(module)), "dir() hides a public name"


# ---------------------------------------------------------------------------------------------------- this machine


def test_no_file_names_a_path_of_one_machine():
    pattern = re.compile(r"(?<![\w.~-])/(?:work|root|tmp|home)/\w")
    found = []
    for path in _files("src", "docs", "tests", "examples", "benchmarks"):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:  # a picture
            continue
        found += [f"{path.relative_to(ROOT)}:{i}" for i, line in enumerate(lines, 1) if pattern.search(line)]
    assert found == []


# ---------------------------------------------------------------------------------------------------- dependencies


def test_every_dependency_has_its_reason_in_a_comment():
    without = []
    inside = False
    for number, line in enumerate((ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("["):
            section = line.strip("[] ")
        inside = inside or bool(
            (section == "project" and re.match(r"dependencies\s*=\s*\[", line))
            or (section == "project.optional-dependencies" and re.match(r"[\w-]+\s*=\s*\[", line))
        )
        if inside and '"' in line and not re.fullmatch(r'\s+"[^"]+",\s+# \S.*', line):
            without.append(f"pyproject.toml:{number}: {line.strip()}")
        inside = inside and not line.rstrip().endswith("]")
    assert without == []


def _named_in_pyproject() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [Requirement(line) for line in (*project["dependencies"], *extras["fast"], *extras["dev"])]


def _pinned() -> dict[str, str]:
    pins = {}
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text:
            name, _, version = text.partition("==")
            assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{line!r} is not pinned to one version"
            pins[canonicalize_name(name)] = version
    return pins


def test_requirements_pin_what_pyproject_names():
    pins = _pinned()
    for requirement in _named_in_pyproject():
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is named in pyproject.toml but not pinned in requirements.txt"
        assert requirement.specifier.contains(version), f"{requirement} excludes the pinned {version}"
    assert pins["torch"] == "2.13.0"


# ---------------------------------------------------------------------------------------------------- words


def test_readme_lists_exactly_the_codes_that_have_a_page():
    from trimtab.report import codes

    rows = re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == list(codes())


@pytest.mark.parametrize("page", sorted(p.name for p in ROOT.glob("*.md")))
def test_python_in_the_front_pages_is_python(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        ast.parse(block)


def test_pages_name_only_files_that_are_there():
    missing = []
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        names = re.findall(r"`((?:\w+/)+[\w./-]*|[\w/]+\.(?:py|md|toml))`", text)
        names = [
            name for name in names if not re.search("CODE|NAME|^trimtab/", name)
        ]  # stand for any; a series of a tracker
        bases = (ROOT, PACKAGE, page.parent)
        missing += [f"{page.name}: {name}" for name in names if not any((base / name).exists() for base in bases)]
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
        missing += [f"{page.name}: {link}" for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_every_make_target_is_described():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    described = re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE)
    assert sorted(described) == sorted(phony[1].split())


def test_the_folder_that_the_demo_writes_is_ignored_and_cleaned_up():
    (option,) = (parameter for parameter in demo.params if parameter.name == "folder")
    folder = str(option.default)
    assert f"{folder}/" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    clean = re.search(r"^clean:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert clean is not None
    assert folder in clean[1].split()
