"""Calls and commands with a time limit, for disks and drivers that may never answer. A process that waits for
a disk does not even end when it is killed, so it is left behind.

    facts = in_fork(lambda: measure(folder), seconds=5)     # plain data; raises `TimeoutError`
    text = output_of(["nvidia-smi"], seconds=5)             # raises `OSError`, also if it fails
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from meshctl.engines.node.termination import name_of, stat_of

MAX_ERROR_CHARS = 300
EXIT_S = 2.0
"""Seconds to wait for a killed process."""


def in_fork(function: Callable[[], Any], seconds: float) -> Any:
    """Returns what `function` returns. If it raises an exception, it is called again in this process. To be
    called in a process without other threads. A process that a busy machine does not let run may take
    longer."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.set_blocking(reader, False)
    text = b""
    with open(reader, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], seconds)[0] or stat_of(f"/proc/{child}")[0] == "R":
            part = pipe.read(1 << 16)
            text += part or b""
            if part == b"":
                os.waitpid(child, 0)
                return json.loads(text) if text else function()
    os.kill(child, signal.SIGKILL)
    raise TimeoutError(f"no answer within {seconds:.0f} s")


def output_of(
    command: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None, given: str = ""
) -> str:
    """Returns what a command prints, and kills all that it has started. `given` is its standard input. Raises
    `OSError` if it cannot be started, fails or does not end in time, with the last line of its output."""
    try:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        raise OSError(f"{command[0]} is not installed, or not on the PATH") from None
    except OSError as error:
        raise OSError(f"no process could be started: {error.strerror}") from None
    try:
        output, errors = process.communicate(given, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_S)
        if process.returncode is None:
            process.returncode = (
                -signal.SIGKILL
            )  # otherwise Popen warns about a child that was not waited for
    if process.returncode:
        last_line = [line.strip() for line in (output + errors).splitlines() if line.strip()][-1:]
        raise OSError(": ".join([name_of(process.returncode), *last_line]))
    return output


def in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_ERROR_CHARS]}".rstrip(": ")
