"""The command line itself: help, explain, wrong usage, terminals."""

import os
import pty
import subprocess
import sys

import pytest

from trimtab.report import codes

COMMANDS = ("demo", "run", "check", "diagnose", "report", "predict", "probe", "explain")


def one_line(ended, status=2):
    assert ended.status == status
    assert ended.out == ""
    assert ended.err.startswith("trimtab: ")
    assert ended.err.count("\n") == 1, ended.err
    return ended.err


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(shell, flag):
    ended = shell.trimtab(flag)
    assert ended.status == 0
    assert all(command in ended.out for command in COMMANDS)
    assert ended.err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_commands_help_has_an_example(shell, command):
    ended = shell.trimtab(command, "--help")
    assert ended.status == 0
    assert f"  trimtab {command}" in ended.out.partition("Example")[2]
    assert max(map(len, ended.out.splitlines())) <= 100


def test_no_command(shell):
    ended = shell.trimtab()
    assert ended.status == 2
    assert ended.out == ""
    assert ended.err.splitlines()[0].startswith("Usage: trimtab")
    assert "Commands:" in ended.err.splitlines()


def test_version(shell):
    import trimtab

    ended = shell.trimtab("--version")
    assert (ended.status, ended.out) == (0, f"trimtab, version {trimtab.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runn", "s.py"], "Did you mean 'run'?"),
        (["nonsense"], "No such command 'nonsense'"),
        (["--nonsense"], "--nonsense"),
        (["run"], "SCRIPT"),
        (["diagnose"], "RECORD|FILE.py:FACTORY"),
        (["check"], "FILE.py:FACTORY"),
        (["explain", "a", "b"], "unexpected extra argument"),
        (["check", "--seed", "x", "a.py:f"], "--seed"),
        (["explain", "dead-unit"], "Did you mean dead-units?"),
        (["explain", "DEAD_UNITS"], "Did you mean dead-units or"),
        (["explain", "qqqq"], "Known codes: attention-logit-growth, broadcast-loss"),
        (["explain", ""], "Unknown code ''"),
        (["explain", "../en/dead-units"], "Unknown code"),
    ],
)
def test_wrong_usage_is_one_line(shell, arguments, words):
    assert words in one_line(shell.trimtab(*arguments))


def test_explain(shell):
    listed = shell.trimtab("explain")
    assert listed.status == 0
    assert [line.split()[0] for line in listed.out.splitlines()] == list(codes())
    for code in codes():
        page = shell.trimtab("explain", code)
        assert page.status == 0
        assert page.out.startswith(f"# {code}: ")
        assert "## Repair" in page.out


def test_explain_is_quick(shell):
    """No torch, no SciPy, no rich to print a page."""
    code = "import sys; from trimtab.cli import main; main(['explain', 'dead-units']); print([m for m in ('torch', 'scipy', 'rich', 'numba') if m in sys.modules])"
    assert shell.plain("-c", code, real=True).out.endswith("[]\n")


@pytest.mark.parametrize("arguments", [["explain"], ["explain", "vanishing-gradient"], ["--help"]])
def test_a_closed_pipe_is_quiet(shell, arguments):
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [sys.executable, "-m", "trimtab", *arguments], stdout=write, stderr=subprocess.PIPE, text=True, cwd=shell.folder
    )
    os.close(write)
    assert process.stderr == ""
    assert process.returncode in (1, 141)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_without_unicode(shell, encoding):
    for arguments in (["explain"], ["explain", "vanishing-gradient"], ["explain", "saturated-units"]):
        process = subprocess.run(
            [sys.executable, "-m", "trimtab", *arguments],
            capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": encoding},
        )
        assert process.returncode == 0, process.stderr
        assert process.stdout.decode(encoding)
        assert process.stderr == b""


def in_a_terminal(command, folder, columns=80, env=None):
    """What a command shows in a terminal of so many columns."""
    leader, follower = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "TERM", "FORCE_COLOR")}
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=clean | {"TERM": "xterm"} | (env or {}),
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    return process.wait(), shown.decode(errors="replace").replace("\r\n", "\n")


def test_terminals(shell, net):
    shell.write("s.py", net, "import sys\ntrain()\nprint(sys.stdout.isatty(), sys.stderr.isatty())")
    assert shell.trimtab("run", "--store", "r.db", "s.py").status == 0
    command = [sys.executable, "-m", "trimtab", "diagnose", "r.db"]
    status, colored = in_a_terminal(command, shell.folder)
    assert status == 0
    assert "\x1b[" in colored
    status, shown = in_a_terminal(command, shell.folder, 45, {"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"})
    assert status == 0
    assert "\x1b[" not in shown
    assert shown.isascii()
    assert max(map(len, shown.splitlines())) <= 45
