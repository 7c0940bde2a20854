"""A child process of a worker that runs code of users, and the messages between both. It does not load torch.

    process = Process("meshctl.rewards.processes", first)        parent
    send(process.connection, row); receive(process.connection)

    main(connection, first)                                  the function of the module, in the child

It is started by `exec`, so it shares neither threads nor open files with the worker. It ends with the
connection, and it is killed when the worker dies. Messages are plain data; nothing is pickled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

import msgpack

from meshctl.package import PACKAGE_DIR
from meshctl.run.process import die_with

PROGRAM = """\
import sys
sys.path.insert(0, sys.argv[1])
from meshctl.runtime.child_process import begin
begin(*sys.argv[2:])
"""
"""The program of a process. Its arguments are the folder of the package and those of `begin`."""
EXIT_S = 1.0
"""Seconds within which a process that has closed its connection ends."""
POLL_S = 0.01
TUPLE, LONG = 1, 2
"""msgpack's extension types."""


class HasColumns(Protocol):
    """A function of a user, and the columns that it takes."""

    @property
    def required(self) -> Sequence[str]: ...
    @property
    def optional(self) -> Sequence[str] | None: ...


T = TypeVar("T", bound=HasColumns)


class MessageError(ValueError):
    """Raised for a value that is not plain data."""


class Process:
    """One child process."""

    def __init__(self, module: str, first: Any) -> None:
        """Starts the process, which calls `main` of the module with its connection and the message
        `first`."""
        self.connection, other = Pipe()
        descriptor, folder = other.fileno(), str(PACKAGE_DIR.parent)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, folder, module, str(os.getpid()), str(descriptor)],
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor,),  # all others are closed
                process_group=0,  # Ctrl-C does not reach it, and what it starts is killed with it
            )
        with suppress(ConnectionError):  # who receives notices its end
            send(self.connection, {"path": sys.path, **first})

    @property
    def pid(self) -> int:
        return self._process.pid

    def columns(self, what: str) -> Mapping[str, Any]:
        """Returns the first answer of the process: the columns `required` and `optional` of the user's
        function, or an `error`. `what` is the kind of the function."""
        try:
            found: Mapping[str, Any] = receive(self.connection)
        except EOFError:
            found = {"error": f"the process that imports the {what} {self.how_it_ended()}"}
        return found

    def how_it_ended(self) -> str:
        """Returns how a process has ended that closed its connection, as `was killed by SIGSEGV`. Ends the
        processes that it has started."""
        give_up = time.monotonic() + EXIT_S
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT  # until it is reaped, its pid is not used again
        while os.waitid(os.P_PID, self._process.pid, options) is None and time.monotonic() < give_up:
            time.sleep(POLL_S)
        code = self.kill()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> int:
        """Kills the process and those that it has started, and returns its exit status."""
        self.connection.close()
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()


def begin(module: str, parent: str, descriptor: str) -> None:
    """Runs the process: `main` of a module."""
    die_with(int(parent), signal.SIGKILL)
    os.set_inheritable(int(descriptor), False)
    connection = Connection(int(descriptor))
    with suppress(EOFError, BrokenPipeError):  # the parent needs nothing more
        first = receive(connection)
        sys.path[:] = first["path"]
        import_module(module).main(connection, first)


def imported(connection: Connection, what: str, known: type[Exception], find: Callable[[], T]) -> T | None:
    """Returns the user's function that `find` imports, which has the columns `required` and `optional`, and
    sends these. If it raises, sends an error and returns None. `known` is the class of errors whose text is
    enough, and `what` the kind of the function."""
    try:
        found = find()
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        send(connection, {"error": str(error) if isinstance(error, known) else _import_error(what, error)})
        return None
    send(connection, {"required": found.required, "optional": found.optional})
    return found


def _import_error(what: str, error: BaseException) -> str:
    trace: Any = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace else ""
    return f"the {what} cannot be imported: {type(error).__name__}: {error}{place}"


def send(connection: Connection, value: Any) -> None:
    """Sends a value. Raises `MessageError` for a value that is not plain data, and OSError."""
    try:
        data = _packed(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"a value cannot be sent to a worker process: {error}") from None
    connection.send_bytes(data)


def receive(connection: Connection) -> Any:
    """Returns the next value. Raises `EOFError` if the other side has closed the connection."""
    try:
        return _unpacked(connection.recv_bytes())
    except ConnectionResetError:
        raise EOFError("the connection is closed") from None


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=_extension, strict_types=True)
    return packed


def _extension(value: Any) -> Any:
    """Returns the form in which msgpack encodes a value that it does not know. Raises `MessageError`."""
    if isinstance(value, tuple):
        return msgpack.ExtType(TUPLE, _packed(list(value)))
    if isinstance(value, int):
        return msgpack.ExtType(LONG, int(value).to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    plain: tuple[Any, ...] = (str, float, list, dict)
    for kind in plain:  # a class that is derived from plain data
        if isinstance(value, kind):
            return kind(value)
    raise MessageError(f"a {type(value).__name__} is not plain data")


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_value, strict_map_key=False)


def _value(code: int, data: bytes) -> Any:
    return int.from_bytes(data, "big", signed=True) if code == LONG else tuple(_unpacked(data))
