"""Parse the command line, run the command, and turn trimtab's own errors into one line and exit status 2."""

import os
import sys
from collections.abc import Callable
from typing import TypeAlias

import click

from trimtab import __version__
from trimtab.cli.demo import demo
from trimtab.cli.diagnose import check, diagnose
from trimtab.cli.explain import explain
from trimtab.cli.predict import predict
from trimtab.cli.probe import probe
from trimtab.cli.repair import repair
from trimtab.cli.report import report
from trimtab.cli.run import run
from trimtab.errors import TrimtabError

Action: TypeAlias = Callable[[], int | BaseException]


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `trimtab demo`, or put `trimtab run` in place of `python` before a script of your own.",
)
@click.version_option(__version__, prog_name="trimtab")
def commands() -> None:
    """Learn why a PyTorch network won't train: the root cause, the layer, the number, the repair."""


for command in (demo, run, check, diagnose, report, repair, predict, probe, explain):
    commands.add_command(command)


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Instead of `sys.argv[1:]`.

    Returns:
        The exit status: 0 healthy, 1 a finding at the `--fail-on` level, 2 bad usage or input; for `run` the script's own.

    Raises:
        BaseException: What the user's own code raised, whole and without trimtab's frames.
    """
    if not (sys.argv[1:] if arguments is None else arguments):
        print(commands.get_help(click.Context(commands, info_name="trimtab")), file=sys.stderr)
        return 2
    try:
        action = commands.main(args=arguments, prog_name="trimtab", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _complain(error.format_message(), error)
    except click.Abort:
        return 130
    if not callable(action):
        return 0 if action is None else int(action)
    try:  # outside of click, which would turn the user's own Ctrl-C into an exception of its own
        result = action()
    except TrimtabError as error:
        return _complain(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except BaseException as error:  # the user's own, from a factory or a loss
        result = error
    if isinstance(result, int):
        return result
    from trimtab.runner.script import clean, is_our_fault, show_only_user_frames

    if is_our_fault(result):
        raise result
    show_only_user_frames()
    raise clean(result)


def _complain(message: str, error: click.ClickException | None = None) -> int:
    hint = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f" (see `{error.ctx.command_path} --help`)"
    print(f"trimtab: {' '.join(message.split())}{hint}", file=sys.stderr)
    return 2
