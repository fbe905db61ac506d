"""Load a setup from `FILE.py:FACTORY`."""

import hashlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from trimtab import Setup, __version__
from trimtab.errors import UsageError


def looks_like_setup(target: str) -> bool:
    """Whether `target` reads FILE.py:FACTORY; nothing is imported to guess."""
    path, _, factory = target.rpartition(":")
    return path.endswith(".py") and factory.isidentifier()


@dataclass(frozen=True, slots=True)
class SetupFile:
    """A factory in a file, which any process that sees the file can call: a pickle of it holds the path, not the function.

    Attributes:
        target: FILE.py:FACTORY, with the file's full path.
        fingerprint: Other for another content of the file, and for another version of trimtab.
    """

    target: str
    fingerprint: str

    @classmethod
    def of(cls, target: str) -> "SetupFile":
        """The factory as the file stands now.

        Args:
            target: FILE.py:FACTORY.

        Returns:
            The factory.

        Raises:
            UsageError: There is no such file.
        """
        path = _file(target)
        return cls(f"{path.resolve()}:{target.rpartition(':')[2]}", fingerprint(path))

    @property
    def name(self) -> str:
        """A short name for files: that of the file and of the factory."""
        path, _, factory = self.target.rpartition(":")
        return f"{Path(path).stem}-{factory}"

    def __call__(self, seed: int) -> Setup:
        """Run the file and call its factory, as `load_setup`."""
        return load_setup(self.target, seed)


def fingerprint(path: Path) -> str:
    """What is other for another content of a file, and for another version of trimtab.

    Args:
        path: The file.

    Returns:
        A short text.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    return f"{hashlib.sha256(content).hexdigest()[:16]} trimtab {__version__}"


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
    path = _file(target)
    name, _, factory_name = target.rpartition(":")
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


def _file(target: str) -> Path:
    if not looks_like_setup(target):
        raise UsageError(f"{target} is not a setup: write FILE.py:FACTORY, the function that returns a trimtab.Setup")
    name = target.rpartition(":")[0]
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"{name} is a folder, not a .py file" if path.is_dir() else f"no file {name}")
    return path


def _execute(path: Path) -> ModuleType:
    """Run a file as a module, anew each time: what an earlier run has left in it must not reach the next."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    folder = str(path.absolute().parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    known = sys.modules.get(path.stem)
    if known is None or getattr(known, "__file__", None) == module.__file__:
        sys.modules[path.stem] = module  # so that pickles of its classes work
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
