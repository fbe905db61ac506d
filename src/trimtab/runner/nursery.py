"""Processes for the runs of a script: one that has imported torch and trimtab forks itself for each, which saves seconds a run."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trimtab

FORKS = sys.platform == "linux"
"""Elsewhere a process that has loaded torch is not safe to fork: each run imports it anew."""

LOOK = 0.02
"""Seconds between two looks whether a run has ended."""


class Nursery:
    """One run at a time, each in a process of its own; when this process is gone, so is the run.

    Args:
        module: Name of the module to import, whose `main(request)` is called in the new process.
        folder: Where relative paths of PYTHONPATH begin.
    """

    def __init__(self, module: str, folder: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trimtab.runner.nursery", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(folder),
            start_new_session=True,  # Ctrl-C is for whoever asked
            text=True,
        )
        with _lock:
            _open.add(self)

    def run(self, request: str, folder: str, printed: str) -> None:
        """Do a run and wait for its end.

        Args:
            request: Given to `main`.
            folder: The working directory.
            printed: File for what it prints.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([request, folder, printed]) + "\n")
            self._process.stdin.flush()
            self._process.stdout.readline()
        except (OSError, ValueError):  # it was closed
            return

    def close(self) -> None:
        """End it, and a run that is not done."""
        with _lock:
            _open.discard(self)
        if self._process.poll() is None:
            self._process.terminate()  # it ends its run
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


_open: set[Nursery] = set()
_lock = threading.Lock()
_own = threading.local()


def nursery(module: str, folder: str) -> Nursery:
    """The nursery of this thread.

    Args:
        module: As for `Nursery`.
        folder: As for `Nursery`.

    Returns:
        One that is open.
    """
    found: Nursery | None = getattr(_own, "nursery", None)
    if found is None or found not in _open:
        found = _own.nursery = Nursery(module, folder)
    return found


def close_all() -> None:
    """End every nursery of this process."""
    for one in list(_open):
        one.close()


def _environment(folder: str) -> dict[str, str]:
    """One thread a run, the same order of sets each time, no windows, no uploads; and trimtab to be found from another folder."""
    package = str(Path(trimtab.__file__).parents[1])
    paths = [os.path.join(folder, path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {
        "WANDB_MODE": "disabled",
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, package]),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
    }


# ------------------------------------------------------------------------------------------------- in the other process


def _serve(module: str) -> None:
    import importlib

    main: Callable[[str], None] = importlib.import_module(module).main
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        line = sys.stdin.readline()
        if not line:
            return
        request, folder, printed = json.loads(line)
        if FORKS:
            _fork(main, request, folder, printed)
        else:
            _spawn(module, request, folder, printed)
        print("done", flush=True)


def _fork(main: Callable[[str], None], request: str, folder: str, printed: str) -> None:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become(main, request, folder, printed)
    try:
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if select.select([sys.stdin], [], [], LOOK)[0]:  # whoever asked is gone: nothing else comes during a run
                sys.exit(0)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # with the processes that the script has started


def _become(main: Callable[[str], None], request: str, folder: str, printed: str) -> None:
    """Take on the streams, the folder and the group of a new process, and end in it."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nothing, out = os.open(os.devnull, os.O_RDONLY), os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number, opened in ((0, nothing), (1, out), (2, out)):
            os.dup2(opened, number)
        os.chdir(folder)
        sys.path[0] = folder
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        main(request)
        status = 0
    finally:
        os._exit(status)


def _spawn(module: str, request: str, folder: str, printed: str) -> None:
    with open(printed, "ab") as out:
        code = f"import sys; sys.path[0] = {folder!r}; from {module} import main; main({request!r})"
        subprocess.run(
            [sys.executable, "-c", code], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )


if __name__ == "__main__":
    _serve(sys.argv[1])
