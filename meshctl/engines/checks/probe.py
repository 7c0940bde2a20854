"""A child process that measures something that may hang, crash or take long.

    probe = Probe("meshctl.engines.checks.network:measure", [{}], seconds=10)
    ...                                   # other probes run at the same time
    answer = probe.answer()               # the value of the function as plain data, or an error

The child is a new interpreter in its own process group. The group is killed at the end, and the child dies
with its parent. The child's standard output is discarded; the answer comes through a separate pipe.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from meshctl.dataclass import dataclass
from meshctl.engines.node import termination
from meshctl.package import PACKAGE_DIR
from meshctl.run.process import die_with

ROOT = str(PACKAGE_DIR.parent)
_CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from meshctl.engines.checks.probe import child; child(*sys.argv[2:])"
)
START = (sys.executable, "-P", "-c", _CHILD, ROOT)
"""The command line of the child, before its function, arguments and pipe."""
EXIT_S = 2.0
"""Seconds to wait for a killed child."""
MAX_ANSWER_BYTES = 1 << 20
MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class Answer:
    value: Any = None
    error: str = ""
    """The reason why the function returned no value; empty if it returned one."""


class Probe:
    def __init__(
        self,
        function: str,
        arguments: Sequence[Any] = (),
        seconds: float = 10.0,
        start: Sequence[str] = START,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the child. `function` is MODULE:NAME; `arguments` are plain data. `start` is the command
        line of another child, and `environ` its environment."""
        self._deadline, self._seconds = time.monotonic() + seconds, seconds
        self._answer: Answer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader, writer = os.pipe()
        self._errors, errors = os.pipe()
        words = [function, json.dumps(list(arguments)), str(writer)]
        try:
            self._process = subprocess.Popen(
                [*start, *words],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[writer],
                start_new_session=True,
            )
        except OSError as error:
            self._answer = Answer(error=f"no process could be started: {error.strerror}")
        finally:
            os.close(writer)
            os.close(errors)

    @property
    def pid(self) -> int:
        """The pid of the child, which is also its process group; 0 if it could not be started."""
        return self._process.pid if self._process is not None else 0

    @property
    def has_answered(self) -> bool:
        """True if `answer` has returned a value."""
        return self._answer is not None and self._answer.value is not None

    def answer(self) -> Answer:
        """Waits for the answer and ends the child."""
        if self._answer is None:
            try:
                self._answer = self._read()
            finally:
                self.close()
        return self._answer

    def _read(self) -> Answer:
        received = {self._reader: b"", self._errors: b""}
        open_pipes = list(received)
        while not received[self._reader].endswith(b"\n"):
            if not open_pipes:
                return Answer(error=self._how_it_died(received[self._errors].decode(errors="replace")))
            ready = select.select(open_pipes, [], [], max(0.0, self._deadline - time.monotonic()))[0]
            if not ready:
                return Answer(error=f"no answer within {self._seconds:.0f} s")
            for pipe in ready:
                data = os.read(pipe, 1 << 16)
                received[pipe] = (received[pipe] + data)[-MAX_ANSWER_BYTES:]
                if not data:
                    open_pipes.remove(pipe)
        return Answer(*json.loads(received[self._reader]))

    def _how_it_died(self, errors: str) -> str:
        """Returns the exit status in words and the last line of standard error, which names the exception of
        a traceback."""
        assert self._process is not None
        last_line = [line.strip() for line in errors.splitlines() if line.strip()][-1:]
        with suppress(subprocess.TimeoutExpired):
            return ": ".join([termination.name_of(self._process.wait(EXIT_S)), *last_line])
        return "it closed its pipes and did not exit"

    def close(self) -> None:
        """Kills the child and its descendants. A process that hangs in the kernel is left behind."""
        if self._reader < 0:
            return
        os.close(self._reader)
        os.close(self._errors)
        self._reader = self._errors = -1
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        if self._process.returncode is None:
            self._process.returncode = (
                -signal.SIGKILL
            )  # otherwise Popen warns about a child that was not waited for


def child(function: str, arguments: str, writer: str) -> NoReturn:
    """Runs in the child: calls the function, writes its value or its error, and exits."""
    with suppress(Exception):  # the check also runs on a kernel without this feature
        die_with(os.getppid(), signal.SIGKILL)
    module, _, name = function.partition(":")
    try:
        answer: list[Any] = [getattr(import_module(module), name)(*json.loads(arguments)), ""]
    except Exception as error:  # any error is the answer
        answer = [None, in_one_line(error)]
    with suppress(OSError), os.fdopen(int(writer), "wb") as pipe:  # the parent may have stopped reading
        pipe.write(json.dumps(answer).encode() + b"\n")
    os._exit(0)


def in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_ERROR_CHARS]}".rstrip(": ")
