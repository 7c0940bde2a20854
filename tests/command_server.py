"""Runs commands of meshctl in forks of one process, which has imported torch and what most commands import.

    done = call(folder, "launch", "recipe.yaml")

A command has its own folder, environment, session and files, as if a new interpreter ran it, and spares the
imports, which take longer than most runs of the tests. A test of what is imported, of signals to a process
group or of the end of an interpreter starts a new interpreter instead.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NoReturn

from tests.paths import ROOT

TIMEOUT_S = 240
"""The longest time of a command. It is killed afterwards."""
LOADED_LATE = (
    "meshctl.runtime.checkpoint",
    "meshctl.runtime.checkpoint_writer",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
    "hydra.core.override_parser.overrides_parser",
)
"""The modules that are imported late: by the first step of an optimizer, the first use of FSDP, the first
checkpoint and the first override. Each command or worker would import them again."""
LATE_FOLDERS = ("cli", "engines", "plan", "recipe", "view")
"""Folders of the package whose modules are imported by the commands that need them."""
Done = subprocess.CompletedProcess[str]


def call(
    folder: Path, *words: str, env: Mapping[str, str] | None = None, program: str = "", preload: str = ""
) -> Done:
    """Runs a command in a folder and waits for its end.

    Args:
        env: variables of the command beside those of this process.
        program: Python source that is executed before the command.
        preload: a module that the process which forks the command has imported.
    """
    return server(preload).call(folder, *words, env={**os.environ, **(env or {})}, program=program)


@cache
def server(preload: str = "") -> CommandServer:
    """Returns the server of this process of pytest, which has imported one more module. It ends with this
    process."""
    return CommandServer(preload)


class CommandServer:
    """The process that forks commands, one at a time."""

    def __init__(self, preload: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from tests.command_server import serve; serve({preload!r})"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lock = threading.Lock()
        atexit.register(self.close)

    def close(self) -> None:
        self._process.communicate()  # the end of its input ends the server

    def call(self, folder: Path, *words: str, env: Mapping[str, str], program: str = "") -> Done:
        """As `call`. `env` is the whole environment of the command."""
        with tempfile.TemporaryDirectory() as scratch:
            files = [Path(scratch, name) for name in ("stdout", "stderr")]
            request = {
                "folder": str(folder),
                "words": words,
                "env": dict(env),
                "program": program,
                "files": [os.devnull, *map(str, files)],
            }
            with self._lock:
                code = self._answer(json.dumps(request))
            out, err = (file.read_text(encoding="utf-8", errors="replace") for file in files)
        return subprocess.CompletedProcess(words, code, out, err)

    def _answer(self, request: str) -> int:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def serve(preload: str) -> None:
    """Reads requests from stdin, and writes the exit code of each command to stdout."""
    from meshctl.cli import launch

    launch.import_torch()
    late = [name for folder in LATE_FOLDERS for name in submodules(f"meshctl.{folder}")]
    for module in (*late, *LOADED_LATE, *([preload] if preload else [])):
        importlib.import_module(module)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            execute(**request)
        print(exit_code(pid), flush=True)


def submodules(package: str) -> Iterator[str]:
    """Yields the names of all modules in a package."""
    folders = importlib.import_module(package).__path__
    yield from (found.name for found in pkgutil.walk_packages(folders, f"{package}."))


def exit_code(pid: int) -> int:
    """Waits for the end of a command. One that takes too long is killed, and its workers end with it."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.alarm(TIMEOUT_S)
    _, status = os.waitpid(pid, 0)
    signal.alarm(0)
    return os.waitstatus_to_exitcode(status)


def execute(folder: str, words: list[str], env: dict[str, str], program: str, files: list[str]) -> NoReturn:
    """Runs a command in this process, which is a fork of the server, and ends it."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), number)
    sys.argv[:] = ["meshctl", *words]
    code: int | str | None = 1
    try:
        exec(program)
        from meshctl.cli.main import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
