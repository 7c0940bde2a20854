"""Runs commands of meshctl in forks of one process, which has imported torch and what most commands import.

    done = call(folder, "launch", "recipe.yaml")          # waits for its end
    running = Started(folder, "launch", "recipe.yaml")    # reads its output while it runs

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
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from tests.hang import HANG_S
from tests.paths import ROOT

TIMEOUT_S = HANG_S
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


class Started:
    """A command that runs in a session of its own. Its output and its errors are one stream of lines."""

    def __init__(self, folder: Path, *words: str, program: str = "", **environ: str) -> None:
        self.lines: list[str] = []
        self._code: int | None = None
        with tempfile.TemporaryDirectory() as scratch:
            pipe = Path(scratch, "pipe")
            os.mkfifo(pipe)
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            env = {**os.environ, **environ}
            self.pid = server().start(folder, *words, env=env, files=[pipe, pipe], program=program)
        os.set_blocking(reader, True)
        self._output = os.fdopen(reader, encoding="utf-8", errors="replace")

    def until(self, pattern: str) -> re.Match[str]:
        """Reads lines until one matches."""
        for line in self._output:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError("".join(self.lines))

    def end(self) -> tuple[int, str]:
        """Waits for the end. Returns the exit code and the whole output."""
        if self._code is None:
            self.lines += self._output
            self._output.close()
            self._code = server().wait(self.pid)
        return self._code, "".join(self.lines)

    def signal(self, number: signal.Signals) -> None:
        """Signals the command alone."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the command and its process group, and waits for the end. Does nothing after `end`."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.end()


def server(preload: str = "") -> CommandServer:
    """Returns the server of this process of pytest, which has imported one more module. It ends with this
    process."""
    return _server(preload)


@cache  # apart from `server`, since `cache` distinguishes a call that names the default from one that does not
def _server(preload: str) -> CommandServer:
    return CommandServer(preload)


class CommandServer:
    """The process that forks commands. It waits for one of them at a time."""

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
        """Waits for the end of the server, which follows the end of its input."""
        with self._process:
            self._end_input()

    def _end_input(self) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def call(self, folder: Path, *words: str, env: Mapping[str, str], program: str = "") -> Done:
        """As `call`. `env` is the whole environment of the command."""
        with tempfile.TemporaryDirectory() as scratch:
            files = [Path(scratch, name) for name in ("stdout", "stderr")]
            code = self.wait(self.start(folder, *words, env=env, program=program, files=files))
            out, err = (file.read_text(encoding="utf-8", errors="replace") for file in files)
        return subprocess.CompletedProcess(words, code, out, err)

    def start(
        self, folder: Path, *words: str, env: Mapping[str, str], files: Sequence[Path], program: str = ""
    ) -> int:
        """Starts a command, and returns its pid. `files` are opened for its output and its errors."""
        names = [os.devnull, *map(str, files)]
        command = {"folder": str(folder), "words": words, "env": dict(env), "program": program}
        return self._answer({"files": names, "command": command})

    def wait(self, pid: int) -> int:
        """Waits for the end of a command, and returns its exit code."""
        return self._answer({"pid": pid})

    def _answer(self, request: Mapping[str, object]) -> int:
        """Returns the answer to a request. If the time limit of a test interrupts it, the answer would be taken
        for that of the next request, so a new server answers from then on."""
        assert self._process.stdin and self._process.stdout
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                return int(self._process.stdout.readline())
            except BaseException:
                _server.cache_clear()
                self._end_input()
                raise


def serve(preload: str) -> None:
    """Reads requests from stdin, and answers with the pid of a new command, or the exit code of one that ended."""
    from meshctl.cli import launch

    launch.import_torch()
    late = [name for folder in LATE_FOLDERS for name in submodules(f"meshctl.{folder}")]
    for module in (*late, *LOADED_LATE, *([preload] if preload else [])):
        importlib.import_module(module)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        print(exit_code(request["pid"]) if "pid" in request else started(**request), flush=True)


def started(files: list[str], command: dict[str, Any]) -> int:
    """Forks a command, and returns its pid. The files are open when this returns."""
    opened = [os.open(file, os.O_RDWR | os.O_CREAT, 0o600) for file in files]
    pid = os.fork()
    if not pid:
        execute(opened, **command)
    for number in opened:
        os.close(number)
    return pid


def submodules(package: str) -> Iterator[str]:
    """Yields the names of all modules in a package."""
    folders = importlib.import_module(package).__path__
    yield from (found.name for found in pkgutil.walk_packages(folders, f"{package}."))


def exit_code(pid: int) -> int:
    """Waits for the end of a command. One that takes too long is killed, and its workers end with it."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.alarm(int(TIMEOUT_S))
    _, status = os.waitpid(pid, 0)
    signal.alarm(0)
    return os.waitstatus_to_exitcode(status)


def execute(files: list[int], folder: str, words: list[str], env: dict[str, str], program: str) -> NoReturn:
    """Runs a command in this process, which is a fork of the server, and ends it. `files` are its descriptors 0
    to 2."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # those of the server know its own files, e.g. that they have positions
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
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
