"""Starts commands quickly: a process that has imported torch and trimtab forks itself for each.

The fork then does what `python -m trimtab ARGS` or `python SCRIPT ARGS` would do from there on, with its own working
directory, streams and environment. One request a line on standard input, as JSON; the
number of the process and then its status come back.
"""

import atexit
import builtins
import json
import os
import runpy
import signal
import sys
import threading
import types
from importlib.machinery import SourceFileLoader


def serve():
    """Fork for each request; the child returns what it is to run."""
    import torch

    import trimtab.cli.main

    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)  # what torch and trimtab import and compile when they are first used
    optimizer = torch.optim.SGD(model.parameters())
    setup = trimtab.Setup(model, optimizer, lambda: [torch.ones(2, 2)], lambda m, x: m(x).mean(), steps=3)
    str(trimtab.diagnose(setup))
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            return request
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    os._exit(0)


def become(request):
    """Take on the streams, the folder and the environment of a new process."""
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        opened = os.open(request[name], os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    sys.path[0] = request["folder"]
    sys.argv = ["-m", *request["arguments"]]


def run_plainly(path, *arguments):
    """What `python PATH ARGUMENTS` or `python -m MODULE ARGUMENTS` does."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    if path == "-m":
        sys.argv = ["-m", *arguments[1:]]
        runpy._run_module_as_main(arguments[0])
        return
    full = os.path.join(os.getcwd(), path)
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(full)
    with open(full, "rb") as file:
        code = compile(file.read(), full, "exec", dont_inherit=True)
    main.__dict__.update(__file__=full, __cached__=None, __loader__=SourceFileLoader("__main__", full))
    exec(code, main.__dict__)


def end(error, plain):
    """End as an interpreter does, but without taking every module of torch apart, which takes seconds in a fork."""
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, int) and error.code is not None:
            print(error.code, file=sys.stderr)
    elif error is not None:
        status = 1
        trace = error.__traceback__
        while plain and trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    asked = serve()
    become(asked)
    try:
        if asked["plain"]:
            run_plainly(*asked["arguments"])
        else:
            runpy._run_module_as_main("trimtab")
    except BaseException as raised:
        end(raised, asked["plain"])
    end(None, asked["plain"])
