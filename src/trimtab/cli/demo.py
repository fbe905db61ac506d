"""`trimtab demo`: a network that will not train, why, and the repair, on real data, in a minute."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

from trimtab.errors import UsageError

SCRIPT = "digits_classifier.py"
MARK = "optimizer = "


@click.command(epilog="\b\nExample:\n  trimtab demo --folder try-trimtab")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("trimtab-demo"),
    help="Where to put scripts, records, the figure and the page. [default: trimtab-demo]",
)
def demo(folder: Path) -> Callable[[], int]:
    """Run a classifier of handwritten digits that sits at chance, learn why, apply the repair, and see the accuracy.

    The script is plain PyTorch (scikit-learn's digits, nine layers, PyTorch's own initialization). It is run under watch as it is; then the
    diagnosis's own code is put into a copy, and the copy is run.
    """

    def action() -> int:
        return show(folder)

    return action


def show(folder: Path) -> int:
    """Play the demo.

    Args:
        folder: Where its files go; files of an earlier demo are replaced.

    Returns:
        The exit status: 0 when the diagnosis named the fault and the repair mended it.
    """
    from trimtab.diagnosis import diagnose
    from trimtab.recording import Record

    try:
        folder.mkdir(parents=True, exist_ok=True)
        script, repaired = folder / SCRIPT, folder / f"repaired_{SCRIPT}"
        script.write_text(example(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; name another --folder") from error
    print(f"1. {script}: an ordinary script. `trimtab run {script}` says:\n", flush=True)
    before = _accuracy(_run(script, folder / "before.db", quiet=False))
    record = Record.open(folder / "before.db")
    diagnosis = diagnose(record)
    root = diagnosis.roots[0]
    print(
        f"2. {repaired}: the same script with the repair that the diagnosis gives, above the optimizer.\n", flush=True
    )
    repaired.write_text(with_repair(example(), root.repairs[0].code), encoding="utf-8")
    after = _accuracy(_run(repaired, folder / "after.db", quiet=True))
    figure = folder / "signal-and-gradient.png"
    _draw(folder, figure)
    print(f"   accuracy on held-out digits: {before:.2f} before, {after:.2f} after")
    page = (folder / "report.html").absolute()
    diagnosis.to_html(page)
    print(f"   signal and gradient by depth, predicted and measured, before and after: {figure}")
    print(f"   the whole diagnosis as a page, for your browser: {page.as_uri()}")
    print(f"\nNow yours: trimtab run train.py      (what {root.code} means: trimtab explain {root.code})")
    return 0 if after > before + 0.5 else 1


def example() -> str:
    """The source of the demo's script."""
    import trimtab

    package = Path(trimtab.__file__).parent
    for folder in (package / "examples", package.parents[1] / "examples"):  # in a wheel; in a clone
        if (folder / SCRIPT).is_file():
            return (folder / SCRIPT).read_text(encoding="utf-8")
    raise FileNotFoundError(SCRIPT)


def with_repair(source: str, code: str) -> str:
    """The script with a repair's code put in front of its optimizer."""
    head, mark, tail = source.partition(f"\n{MARK}")
    return f"{head}\n{code}\n{mark}{tail}"


def _run(script: Path, store: Path, *, quiet: bool) -> str:
    """Run a script under trimtab in a process of its own; show what it says unless `quiet`."""
    for leftover in store.parent.glob(f"{store.name}*"):
        leftover.unlink()
    command = [sys.executable, "-m", "trimtab", "run", "--store", str(store), str(script)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(f"   {line}", end="", flush=True)
        lines.append(line)
    process.wait()
    print(flush=True)
    return "".join(lines)


def _accuracy(output: str) -> float:
    try:
        return float(output.rpartition(":")[2])
    except ValueError as error:
        raise UsageError("the demo's script did not get to its end; what it printed stands above") from error


def _draw(folder: Path, path: Path) -> None:
    from trimtab.diagnosis.expected import predictions
    from trimtab.recording import Record
    from trimtab.report.figures import signal_figure

    panels = [
        predictions(Record.open(folder / f"{run}.db"))[0].profile(title, ("Linear",))
        for run, title in (("before", "PyTorch's default initialization"), ("after", "He initialization"))
    ]
    signal_figure(panels, path)
