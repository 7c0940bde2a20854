"""A call in a fork of this process, with a time limit: for file operations, which never return while a disk
does not answer. A process that waits for a disk does not even end when it is killed, so it is left behind.
One that a busy machine does not let run may take longer.

    facts = in_fork(lambda: measure(folder), seconds=5)     # plain data; raises TimeoutError
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn


def in_fork(function: Callable[[], Any], seconds: float) -> Any:
    """Returns what `function` returns. If it raises an exception, it is called again in this process. To be
    called in a process without other threads."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _answer(function, writer)
    os.close(writer)
    os.set_blocking(reader, False)
    text = b""
    with open(reader, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], seconds)[0] or _can_run(child):
            part = pipe.read(1 << 16)
            text += part or b""
            if part == b"":
                os.waitpid(child, 0)
                return json.loads(text) if text else function()
    os.kill(child, signal.SIGKILL)
    raise TimeoutError(f"no answer within {seconds:.0f} s")


def _can_run(pid: int) -> bool:
    """Returns whether a process waits for nothing but a processor."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    return False


def _answer(function: Callable[[], Any], writer: int) -> NoReturn:
    """Runs in the child."""
    try:
        os.write(writer, json.dumps(function()).encode())
    finally:
        os._exit(0)
