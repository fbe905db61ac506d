"""Load a setup from `FILE.py:FACTORY`."""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from trimtab import Setup
from trimtab.errors import UsageError


def looks_like_setup(target: str) -> bool:
    """Whether `target` reads FILE.py:FACTORY; nothing is imported to guess."""
    path, _, factory = target.rpartition(":")
    return path.endswith(".py") and factory.isidentifier()


def load_setup(target: str, seed: int) -> Setup:
    """Run the file and call its factory.

    Args:
        target: FILE.py:FACTORY.
        seed: Given to the factory if it takes an argument.

    Returns:
        The setup.

    Raises:
        UsageError: There is no such file or factory, or it gives something else.
    """
    if not looks_like_setup(target):
        raise UsageError(f"{target} is not a setup: write FILE.py:FACTORY, the function that returns a trimtab.Setup")
    name, _, factory_name = target.rpartition(":")
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"{name} is a folder, not a .py file" if path.is_dir() else f"no file {name}")
    module = _execute(path)
    factory = getattr(module, factory_name, None)
    if factory is None:
        names = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        raise UsageError(f"{name} has no {factory_name}; its functions are {', '.join(names) or 'none'}")
    if not callable(factory):
        raise UsageError(
            f"{factory_name} in {name} is a {type(factory).__name__}, not a function that returns a trimtab.Setup"
        )
    arguments = (seed,) if _takes_seed(factory) else ()
    _check_call(factory, arguments, f"{factory_name} in {name}")
    setup = factory(*arguments)
    if not isinstance(setup, Setup):
        raise UsageError(
            f"{factory_name} in {name} must return a trimtab.Setup, but it returned a {type(setup).__name__}"
        )
    return setup


def _execute(path: Path) -> ModuleType:
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.path.insert(0, str(path.absolute().parent))
    sys.modules.setdefault(path.stem, module)  # so that pickles of its classes work
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if b"\0" in source:
        raise UsageError(f"{path} is not Python code: it holds null bytes")
    exec(compile(source, str(path.absolute()), "exec", dont_inherit=True), module.__dict__)
    return module


def _check_call(factory: Callable[..., Any], arguments: tuple[int, ...], name: str) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise UsageError(
            f"{name} must take a seed or nothing, but its signature is {signature} ({error}): give the others defaults"
        ) from error


def _takes_seed(factory: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
