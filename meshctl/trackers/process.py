"""The process of one tracker: `python -m meshctl.trackers.process NAME PARENT SOCKET`.

It reads JSON lines from a socket and answers each of them. The first one names the run and the options of the
tracker, the others are calls of the observer protocol:

    {"run": PATH, "options": {...}, "path": [FOLDER, ...]}     {"taken": 1}
    ["on_attempt", 0, null]                                    {"taken": 1}
    ["on_row", {"step": 1, ...}]                               {"failed": "HTTPError: 401"}

The library of the tracker is imported here only, and this process has its secret. After `failed` the process
ends. Its output, with tracebacks, is `logs/tracker-NAME.log`. It dies with the launcher.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshctl.run.directory import RunDir
from meshctl.run.events import Event, Observer
from meshctl.run.process import die_with, is_in_job, shield
from meshctl.text.redaction import redact
from meshctl.trackers import tracker_named

SECRET_VARIABLES = (
    *("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_URI"),
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
)
"""The variables with secrets of trackers."""
MAX_MESSAGE = 300
"""Maximum length of a message in characters."""


def main() -> None:
    name, parent, descriptor = sys.argv[1:]
    die_with(int(parent), signal.SIGKILL)
    if is_in_job():
        shield()
    connection = socket.socket(fileno=int(descriptor))
    code = 0
    try:
        _follow(name, connection)
    except BaseException as error:  # any exception of a library is reported, and ends this process only
        code = 1
        sys.stderr.write(_without_secrets(traceback.format_exc()))
        _flush()  # before the answer, after which the launcher ends this process
        with suppress(OSError):
            _answer(connection, {"failed": described(error)})
    _flush()
    os._exit(code)  # threads of a library may never end


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


def _follow(name: str, connection: socket.socket) -> None:
    lines = connection.makefile("rb")
    first = json.loads(lines.readline())
    sys.path[:0] = first["path"]
    tracker = tracker_named(name, RunDir(Path(first["run"])), **first["options"])
    _answer(connection, {"taken": 1})
    for line in lines:
        method, *arguments = json.loads(line)
        call(tracker, method, arguments)
        _answer(connection, {"taken": 1})
        if method == "on_end":
            return


def call(tracker: Observer, method: str, arguments: list[Any]) -> None:
    """Calls a method of the observer protocol. An event comes as a mapping."""
    if method == "on_event":
        arguments = [Event(**arguments[0])]
    getattr(tracker, method)(*arguments)


def described(error: BaseException) -> str:
    """Returns an exception in one line without secrets."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return _without_secrets(text)[:MAX_MESSAGE]


def _without_secrets(text: str, environ: Mapping[str, str] = os.environ) -> str:
    return redact(text, [environ[name] for name in SECRET_VARIABLES if environ.get(name)])


def _answer(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
