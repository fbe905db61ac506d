"""Run a script or a module as `__main__`, as Python itself would, and keep trimtab out of its tracebacks."""

import builtins
import importlib.util
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

import trimtab
from trimtab.errors import UsageError

PACKAGE = str(Path(trimtab.__file__).parent) + os.sep
LAUNCHERS = tuple(
    PACKAGE + place for place in (f"cli{os.sep}", "__main__.py", f"runner{os.sep}run.py", f"runner{os.sep}script.py")
)
"""Files whose frames, and all before them, only brought the user's code to run."""

IMPORTING = ("<frozen importlib", importlib.util.__file__)


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
        """Compile the code and set up `sys.path` for it; the packages around a module are imported.

        Returns:
            A function that runs the code as `__main__`, and returns or raises as the code does.

        Raises:
            UsageError: There is no such file or module.
            BaseException: What the user's own code raises before it can run: a syntax error, an error in a package.
        """
        code, namespace, argv0 = self._module() if self.is_module else self._file()
        main = ModuleType("__main__")
        main.__dict__.update(namespace, __builtins__=builtins, __annotations__={})

        def run() -> None:
            sys.argv = [argv0, *self.arguments]
            sys.modules["__main__"] = main  # stays: pickles, worker processes and exit handlers look things up in it
            exec(code, main.__dict__)

        return run

    def _file(self) -> tuple[CodeType, dict[str, Any], str]:
        path = Path(self.target)
        if path.is_dir():
            raise UsageError(f"{self.target} is a folder, not a script: name the .py file in it")
        full = os.path.join(os.getcwd(), self.target)  # as Python names it: absolute, but not made shorter
        try:
            with io.open_code(full) as file:
                source = file.read()
        except OSError as error:
            raise UsageError(f"cannot read the script {self.target}: {error.strerror}") from error
        if b"\0" in source:
            raise UsageError(f"{self.target} is not a Python script: it holds null bytes")
        _put_first_on_path(os.path.dirname(os.path.realpath(full)))
        code = compile(source, full, "exec", dont_inherit=True)
        namespace = {
            "__file__": full,
            "__cached__": None,
            "__package__": None,
            "__spec__": None,
            "__loader__": SourceFileLoader("__main__", full),
        }
        return code, namespace, self.target

    def _module(self) -> tuple[CodeType, dict[str, Any], str]:
        name = self.target
        if name.endswith(".py") or os.sep in name:
            raise UsageError(
                f"-m takes the name of a module, as in package.module, not {name}: leave -m out to run a file"
            )
        if name.startswith("."):
            raise UsageError(f"no module named {name}: -m takes a full name, as in package.module")
        sys.argv = ["-m", *self.arguments]  # as Python has it while the packages around the module are imported
        _put_first_on_path(os.getcwd())
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                name = f"{name}.__main__"
                spec = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the package's own failure
            raise UsageError(f"no module named {error.name}") from error
        except ValueError as error:
            raise UsageError(f"no module named {name}: {error}") from error
        loader = spec.loader if spec is not None else None
        if spec is None or loader is None or not hasattr(loader, "get_code"):
            raise UsageError(f"no module named {name} that could be run with -m")
        code = loader.get_code(spec.name)
        if code is None:
            raise UsageError(f"the module {name} has no Python code to run")
        namespace = {
            "__file__": spec.origin,
            "__cached__": spec.cached,
            "__package__": spec.parent,
            "__spec__": spec,
            "__loader__": loader,
        }
        return code, namespace, spec.origin or name


def _put_first_on_path(folder: str) -> None:
    """Put a folder where Python puts a script's, in place of the one that stands there for trimtab itself."""
    if sys.flags.safe_path:
        return
    own = {"", os.getcwd(), os.path.dirname(os.path.realpath(sys.argv[0]))}
    if sys.path and sys.path[0] in own:
        sys.path[0] = folder
    else:
        sys.path.insert(0, folder)


# ------------------------------------------------------------------------------------------------------ tracebacks


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
    kept: TracebackType | None = None
    for i in range(len(frames) - 1, _first_user_frame([_file_of(t) for t in frames]) - 1, -1):
        if not _file_of(frames[i]).startswith(PACKAGE):
            kept = TracebackType(kept, frames[i].tb_frame, frames[i].tb_lasti, frames[i].tb_lineno)
    return kept


def is_our_fault(error: BaseException) -> bool:
    """Whether an error came about in trimtab, and not in code of the user's or in a library that it was called for."""
    return (
        isinstance(error, Exception)
        and not isinstance(error, SyntaxError)
        and without_our_frames(error.__traceback__) is None
    )


def _file_of(trace: TracebackType) -> str:
    return trace.tb_frame.f_code.co_filename


def _first_user_frame(files: list[str]) -> int:
    """Index of the frame behind the launcher and the machinery of import; 0 where the traceback begins in the user's code."""
    start = max((i + 1 for i, file in enumerate(files) if file.startswith(LAUNCHERS)), default=0)
    while 0 < start < len(files) and files[start].startswith(IMPORTING):
        start += 1
    return start


def _led_up_to(error: BaseException) -> Iterator[BaseException]:
    """An error, those that led to it, and those that it groups."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions


def comes_from(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error is, or was led to by, one of this kind."""
    return any(isinstance(one, kind) for one in _led_up_to(error))


def clean(error: BaseException) -> BaseException:
    """Take trimtab's frames out of an exception's traceback, and out of those that led to it."""
    for one in _led_up_to(error):
        one.__traceback__ = without_our_frames(one.__traceback__)
    return error


class _CleanHook:
    """An exception hook that shows errors without trimtab's frames, by the hook that was there before."""

    def __init__(self, shown: Callable[..., Any]) -> None:
        self._shown = shown

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        clean(error)
        self._shown(kind, error, error.__traceback__)


def show_only_user_frames() -> None:
    """From now on an error that ends the process is shown without trimtab's frames, by whatever hook the user has set."""
    if not isinstance(sys.excepthook, _CleanHook):
        sys.excepthook = _CleanHook(sys.excepthook)


def show_only_user_frames_of_threads() -> None:
    """The same for an error that ends a thread."""
    shown = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            clean(args.exc_value)
            args = threading.ExceptHookArgs((args.exc_type, args.exc_value, args.exc_value.__traceback__, args.thread))
        shown(args)

    threading.excepthook = hook
