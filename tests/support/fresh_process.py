"""Fresh Python processes that have torch and transformers imported already.

Importing them takes seconds. One server in each process of pytest imports them once and
forks for every program. structout itself is imported by the program.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

PRELOADED = "torch", "torch.distributed", "transformers.models.auto.modeling_auto", "transformers.generation.utils"


def run(
    *arguments: str,
    env: dict[str, str],
    cwd: str | Path = ".",
    input: str = "",
    timeout: int = 300,
    stderr: str | None = None,
    finalizes: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run what ``python *arguments`` would, as subprocess.run does.

    Args:
        arguments: -P and -W options, then -c or -m with what belongs to it, or a file.
        timeout: In seconds; a process that exceeds it is killed.
        stderr: A file or terminal that receives standard error instead of the caller.
        finalizes: Whether the interpreter ends as usual, for a test of how it ends. It
            joins threads, and takes a second to free what the server has imported.
    """
    options = {"stderr": stderr, "finalizes": finalizes}
    return run_at_once(arguments, env=env, cwd=cwd, input=input, timeout=timeout, **options)[0]


def run_at_once(
    *programs: Sequence[str],
    env: dict[str, str],
    cwd: str | Path = ".",
    input: str = "",
    timeout: int = 300,
    stderr: str | None = None,
    finalizes: bool = False,
) -> list[subprocess.CompletedProcess[str]]:
    """Run several programs at the same time. Each is the ``arguments`` of `run`, whose
    options apply to all."""
    server = _server()
    with contextlib.ExitStack() as folders:
        requests = []
        for arguments in programs:
            folder = folders.enter_context(tempfile.TemporaryDirectory())
            for name, text in (("stdin", input), ("stdout", ""), ("stderr", "")):
                Path(folder, name).write_text(text, "utf-8")
            requests.append({"arguments": arguments, "env": env, "cwd": str(Path(cwd).resolve()), "folder": folder})
            requests[-1] |= {"timeout": timeout, "stderr": stderr, "finalizes": finalizes}
        server.stdin.write(json.dumps(requests) + "\n")
        server.stdin.flush()
        statuses = json.loads(server.stdout.readline())
        return [
            subprocess.CompletedProcess(
                ["python", *request["arguments"]],
                status,
                *(Path(request["folder"], name).read_text("utf-8") for name in ("stdout", "stderr")),
            )
            for request, status in zip(requests, statuses, strict=True)
        ]


@functools.cache
def _server() -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-P", __file__]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    atexit.register(server.communicate)  # closes its input, which ends it
    return server


def _serve() -> dict[str, object] | None:
    """Fork for each request. A line has the requests that run at the same time.

    Return the request in the new process, and None after the last request.
    """
    while line := sys.stdin.readline():
        pids = []
        for request in json.loads(line):
            pids.append(os.fork())
            if pids[-1] == 0:
                return request
        print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], flush=True)
    return None


def _become(arguments: list[str], env: dict[str, str], cwd: str, folder: str, timeout: int, stderr: str | None) -> None:
    """Run the program in this process."""
    signal.alarm(timeout)
    for number, file in enumerate((f"{folder}/stdin", f"{folder}/stdout", stderr or f"{folder}/stderr")):
        os.dup2(os.open(file, os.O_RDWR), number)
    encoding, _, errors = env.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdout.reconfigure(encoding=encoding, errors=errors or "strict")
    # The server's own stream may be one that can seek; a terminal cannot.
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    is_safe_path = "PYTHONSAFEPATH" in env
    while arguments[0] in ("-P", "-W"):
        if arguments.pop(0) == "-P":
            is_safe_path = True
        else:
            _filter_warnings(arguments.pop(0))
    sys.path[:0] = [*([] if is_safe_path else [cwd]), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv[:] = arguments
    match arguments:
        case "-m", module, *_:
            del sys.argv[1]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case "-c", program, *_:
            del sys.argv[1]
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(program, "<string>", "exec", dont_inherit=True), vars(main))  # noqa: S102 - a test's program
        case file, *_:
            runpy.run_path(file, run_name="__main__")


def _status_of(program: Callable[[], None]) -> int:
    try:
        program()
    except SystemExit as exit_:
        if isinstance(exit_.code, str):
            print(exit_.code, file=sys.stderr)
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(status: int) -> None:
    """End this process without the second that it takes to free what the server has
    imported."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _filter_warnings(option: str) -> None:
    """Do what -W does."""
    action, message, category, module = [*option.split(":"), "", "", ""][:4]
    module_pattern = re.escape(module) + r"\Z" if module else ""
    warnings.filterwarnings(action, re.escape(message), getattr(builtins, category or "Warning"), module_pattern)


if __name__ == "__main__":
    for name in PRELOADED:
        __import__(name)
    request = _serve()
    if request is not None:
        finalizes = request.pop("finalizes")
        status = _status_of(functools.partial(_become, **request))
        if finalizes:
            sys.exit(status)
        _end(status)
