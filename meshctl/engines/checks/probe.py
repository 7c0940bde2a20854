"""A child that measures what may hang, crash, or take long: one function, one answer in plain data, a time
limit.

    probe = Probe("meshctl.engines.checks.network:resolve", ["localhost"], seconds=10)
    ...                                   # others at the same time
    answer = probe.answer()               # what the function gave, or a word on what went wrong

It is a fresh interpreter, in a process group of its own that is killed at the end; it dies with its parent
too. What it prints goes nowhere: the answer has a pipe of its own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

from meshctl.engines.node import guard
from meshctl.package import PACKAGE_DIR

ROOT = str(PACKAGE_DIR.parent)
CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from meshctl.engines.checks.probe import child; child(*sys.argv[2:])"
LEAVING = 2.0
"""Seconds that a killed child gets to be gone."""
LONGEST = 1 << 20
"""Bytes of an answer."""


@dataclass(frozen=True)
class Answer:
    said: Any = None
    wrong: str = ""
    """Why there is no answer; empty if there is."""


class Probe:
    def __init__(self, function: str, arguments: Sequence[Any] = (), seconds: float = 10.0) -> None:
        """`function` is MODULE:NAME, called with `arguments`, which are plain data."""
        self._end, self._seconds = time.monotonic() + seconds, seconds
        self._answer: Answer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._heard, writer = os.pipe()
        self._errors, errors = os.pipe()
        command = [
            sys.executable,
            "-P",
            "-c",
            CHILD,
            ROOT,
            function,
            json.dumps(list(arguments)),
            str(writer),
        ]
        nothing = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                command,
                stdin=nothing,
                stdout=nothing,
                stderr=errors,
                pass_fds=[writer],
                start_new_session=True,
            )
        except OSError as error:
            self._answer = Answer(wrong=f"no process could be started: {error.strerror}")
        finally:
            os.close(writer)
            os.close(errors)

    @property
    def answered(self) -> bool:
        """It came to its end, and has left nothing."""
        return self._answer is not None and self._answer.said is not None

    def answer(self) -> Answer:
        """Waits for it, and ends the child."""
        if self._answer is None:
            try:
                self._answer = self._read()
            finally:
                self.close()
        return self._answer

    def _read(self) -> Answer:
        text = {self._heard: b"", self._errors: b""}
        open_ends = list(text)
        while not text[self._heard].endswith(b"\n"):
            ready = select.select(open_ends, [], [], max(0.0, self._end - time.monotonic()))[0]
            if not ready:
                return Answer(wrong=f"no answer within {self._seconds:.0f} s")
            for end in ready:
                part = os.read(end, 1 << 16)
                text[end] = (text[end] + part)[-LONGEST:]
                if not part:
                    open_ends.remove(end)
            if not open_ends:
                return Answer(wrong=self._died(text[self._errors].decode(errors="replace")))
        said, wrong = json.loads(text[self._heard])
        return Answer(said, wrong)

    def _died(self, errors: str) -> str:
        """How it ended, with its last line: of a traceback, the exception."""
        assert self._process is not None
        last = [line.strip() for line in errors.splitlines() if line.strip()][-1:]
        with suppress(subprocess.TimeoutExpired):
            return ": ".join([guard.name_of(self._process.wait(LEAVING)), *last])
        return "it closed its answer and stayed"

    def close(self) -> None:
        """Ends the child, with all that it has started; a process that hangs in the kernel is left behind."""
        if self._heard < 0:
            return
        os.close(self._heard)
        os.close(self._errors)
        self._heard = self._errors = -1
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVING)
        if self._process.returncode is None:
            self._process.returncode = (
                -signal.SIGKILL
            )  # so that nobody waits for it, or warns of it, at the end


def child(function: str, arguments: str, writer: str) -> NoReturn:
    """In the child: calls, answers, ends."""
    with suppress(Exception):  # a kernel without it is something that is to be found out
        guard.die_with(os.getppid(), signal.SIGKILL)
    module, _, name = function.partition(":")
    answer(int(writer), lambda: getattr(import_module(module), name)(*json.loads(arguments)))


def answer(writer: int, function: Callable[[], Any]) -> NoReturn:
    """Writes what a function gives, or its exception in a line, and ends the process."""
    try:
        said: list[Any] = [function(), ""]
    except Exception as error:  # whatever is wrong with the machine is the answer
        said = [None, in_a_line(error)]
    with suppress(OSError):  # nobody listens any more
        text, sent = json.dumps(said).encode() + b"\n", 0
        while sent < len(text):
            sent += os.write(writer, text[sent:])
    os._exit(0)


def in_a_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".rstrip(": ")


def forked(functions: Sequence[Callable[[], Any]], seconds: float) -> list[Answer]:
    """Several functions at once, each in a fork of this process, which must have no threads; what is not
    there in time is killed."""
    end, parent, running = time.monotonic() + seconds, os.getpid(), []
    for function in functions:
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reader)
            with suppress(Exception):
                guard.die_with(parent, signal.SIGKILL)
            answer(writer, function)
        os.close(writer)
        running.append((pid, reader))
    return [_reaped(pid, reader, end, seconds) for pid, reader in running]


def _reaped(pid: int, reader: int, end: float, seconds: float) -> Answer:
    text, late = b"", False
    while not (late or text.endswith(b"\n")):
        late = not select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]
        part = b"" if late else os.read(reader, 1 << 16)
        text += part
        if not part:
            break
    os.close(reader)
    if late:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if text.endswith(b"\n"):
        return Answer(*json.loads(text))
    return Answer(wrong=f"no answer within {seconds:.0f} s" if late else guard.name_of(code))
