"""`trimtab view`."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path

import click

from trimtab._messages import say


@click.command(
    epilog="\b\nExamples:\n  trimtab run train.py              # names its record: .trimtab/train-20260101-120000.db\n"
    "  trimtab view .trimtab/train-20260101-120000.db     # in a second terminal\n\n"
    "\b\nOn another machine, over ssh:\n  there: trimtab view --port 8123 .trimtab/train-20260101-120000.db\n"
    "  here:  ssh -L 8123:127.0.0.1:8123 THERE      # then open the address printed there",
)
@click.argument("record", metavar="RECORD", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to serve at. [default: any free one]")
@click.option(
    "--host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="Address to serve at; any but the default can be reached from other machines. [default: 127.0.0.1]",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
def view(record: Path, port: int, host: str, opens: bool) -> Callable[[], int]:
    """Serve a page that follows a RECORD while its run trains: findings, charts and facts, renewed as they change.

    The page is served on this machine alone, to whoever has the whole address that is printed. Ctrl-C ends it.
    """

    def action() -> int:
        from trimtab.runner.serving import Viewer

        with suppress(OSError):
            os.nice(5)  # the run goes first
        viewer = Viewer(record, host, port)
        try:
            if not viewer.bound.is_loopback:
                print(_warning(viewer.host, viewer.bound.is_unspecified), file=sys.stderr)
            print(viewer.url, flush=True)
            with _opened(viewer.url if opens else None):
                viewer.follower.state(patience=0)  # the first look begins before anybody asks
                viewer.serve_forever()
        except KeyboardInterrupt:
            print(say("trimtab: the view has ended; its page shows the last it was told"), file=sys.stderr)
        finally:
            viewer.server_close()
        return 0

    return action


def _warning(host: str, everywhere: bool) -> str:
    where = say("at every address of this machine") if everywhere else say("at {host}", host=host)
    return say(
        "trimtab: warning: the page is served {where}, unencrypted: other machines can reach it, and who reads along has its token",
        where=where,
    )


@contextmanager
def _opened(url: str | None) -> Iterator[None]:
    """Open the browser through a file that only this user can read: the token would otherwise be in the browser's command line."""
    if url is None:
        yield
        return
    import webbrowser

    folder = Path(tempfile.mkdtemp(prefix="trimtab-"))
    try:
        page = folder / "view.html"
        page.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(url)}"><title>trimtab</title>'
        )
        if not webbrowser.open(page.as_uri()):
            print(say("trimtab: no browser could be opened; open the address above"), file=sys.stderr)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
