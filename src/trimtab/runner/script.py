"""Run a script or a module as `__main__`, as Python itself would, and keep trimtab out of its tracebacks."""

import importlib.util
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

import trimtab
from trimtab.errors import UsageError

PACKAGE = str(Path(trimtab.__file__).parent) + os.sep


@dataclass(frozen=True)
class Script:
    """What is to be run.

    Attributes:
        target: Path of a file, or name of a module.
        arguments: Its own arguments.
        is_module: Whether `target` names a module (`-m`).
    """

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def name(self) -> str:
        """A short name for reports and files."""
        return self.target.rpartition(".")[2] if self.is_module else Path(self.target).stem

    def prepare(self) -> Callable[[], None]:
        """Compile the code and set up `__main__`, `sys.argv` and `sys.path` for it.

        Returns:
            A function that runs it, and returns or raises as the code does.

        Raises:
            UsageError: There is no such file or module.
        """
        code, namespace, argv0, first = self._module() if self.is_module else self._file()
        main = ModuleType("__main__")
        main.__dict__.update(namespace, __builtins__=__builtins__)

        def run() -> None:
            sys.argv = [argv0, *self.arguments]
            sys.path.insert(0, first)
            sys.modules["__main__"] = main  # stays: pickles, worker processes and exit handlers look things up in it
            exec(code, main.__dict__)

        return run

    def _file(self) -> tuple[CodeType, dict[str, Any], str, str]:
        path = Path(self.target)
        if path.is_dir():
            raise UsageError(f"{self.target} is a folder, not a script: name the .py file in it")
        try:
            with io.open_code(str(path.absolute())) as file:
                source = file.read()
        except OSError as error:
            raise UsageError(f"cannot read the script {self.target}: {error.strerror}") from error
        if b"\0" in source:
            raise UsageError(f"{self.target} is not a Python script: it holds null bytes")
        code = _compile(source, self.target)
        namespace = {
            "__file__": self.target,
            "__cached__": None,
            "__package__": None,
            "__spec__": None,
            "__loader__": None,
        }
        return code, namespace, self.target, str(path.absolute().parent)

    def _module(self) -> tuple[CodeType, dict[str, Any], str, str]:
        sys.path.insert(0, os.getcwd())
        try:
            spec = importlib.util.find_spec(self.target)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{self.target}.__main__")
        except (ImportError, ValueError) as error:
            raise UsageError(f"no module named {self.target}: {error}") from error
        finally:
            sys.path.pop(0)
        loader = spec.loader if spec is not None else None
        if spec is None or loader is None or not hasattr(loader, "get_code"):
            raise UsageError(f"no module named {self.target} that could be run with -m")
        code = loader.get_code(spec.name)
        if code is None:
            raise UsageError(f"the module {self.target} has no Python code to run")
        namespace = {
            "__file__": spec.origin,
            "__cached__": spec.cached,
            "__package__": spec.parent,
            "__spec__": spec,
            "__loader__": loader,
        }
        return code, namespace, spec.origin or self.target, os.getcwd()


def _compile(source: bytes, name: str) -> CodeType:
    """Compile, with a syntax error shown as Python shows it."""
    return compile(source, name, "exec", dont_inherit=True)


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without trimtab's own frames and those of what started it.

    Args:
        trace: A traceback that may begin in trimtab's command line and pass through its hooks.

    Returns:
        The user's frames, and those of the libraries they called.
    """
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    ours = [t.tb_frame.f_code.co_filename.startswith(PACKAGE) for t in frames]
    kept: TracebackType | None = None
    for i in range(len(frames) - 1, _first_user_frame(ours) - 1, -1):
        if not ours[i]:
            kept = TracebackType(kept, frames[i].tb_frame, frames[i].tb_lasti, frames[i].tb_lineno)
    return kept


def _first_user_frame(ours: list[bool]) -> int:
    """Index of the frame behind the launcher and trimtab's own first frames."""
    if not any(ours):
        return 0
    start = ours.index(True)
    while start < len(ours) and ours[start]:
        start += 1
    return start


def clean(error: BaseException) -> BaseException:
    """Take trimtab's frames out of an exception's traceback, and out of those that led to it."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        current.__traceback__ = without_our_frames(current.__traceback__)
        current = current.__cause__ or current.__context__
    return error


def show_only_user_frames() -> None:
    """From now on an error that ends the process is shown without trimtab's frames, by whatever hook the user has set."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        clean(error)
        shown(kind, error, error.__traceback__)

    sys.excepthook = hook
