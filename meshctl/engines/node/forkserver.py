"""The fork server: the single-threaded parent of a node's workers, which imports torch once for all of them.
It is a part of the node process.

    node process (`meshctl-fork`) --fork--> worker train:0, train:1, rollout:0, ...
                            |
    agent train   --------- + one SOCK_SEQPACKET socket per agent, one JSON object per packet
    agent rollout --------- +

    agent to server    {"start": 1, "name": "train:1", "env": {...}, "argv": [...] | null, "cwd": PATH}
                       with the descriptor of its stdout and stderr
                       {"signal": 15, "key": 1}
    server to agent    {"key": 1, "pid": 4711}
                       {"key": 1, "pid": 4711, "code": -9, "was_signalled": false}
                       code is 0 or more: exit code; negative: signal

A worker with `argv` runs that command line by exec; a worker without it calls the server's worker function.
If an agent's socket closes, the agent has died, and the server kills its workers.

`multiprocessing.forkserver` is not usable here: several agents share this server, and a worker's parent must
be the process that the kernel signals when the launcher dies.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn

from meshctl.dataclass import dataclass
from meshctl.engines.connection import MESSAGE_BYTES_MAX
from meshctl.engines.engine import WorkerMain
from meshctl.engines.node import termination
from meshctl.engines.node.scratch import use_scratch
from meshctl.network.connection import Connection, Message, encoded
from meshctl.run import process
from meshctl.run.process import SHIELDED, is_in_job, shield
from meshctl.run.progress import VARIABLE

PACKET_BYTES_MAX = 1 << 20
TITLE = "meshctl-fork"


@dataclass(frozen=True)
class SpawnRequest:
    """An agent's request to start one worker."""

    start: int
    """The key of the worker in messages: its local rank."""
    name: str
    """The title that `ps` shows, e.g. "train:1"."""
    env: Mapping[str, str | None]
    """Variables that are added to the server's environment or replace those in it; None removes one."""
    argv: Sequence[str] | None = None
    """The command line to exec; None to call the server's worker function."""
    cwd: str = ""
    """The working directory; empty for the server's own."""
    terminal: str = ""
    """The terminal of a worker that is debugged; empty for a worker without standard input."""
    record: int = -1
    """The number of its progress record; -1 for a worker without one."""
    scratch: str = ""
    """The folder for the sockets of `multiprocessing`."""


@dataclass(frozen=True)
class Started:
    key: int
    pid: int


@dataclass(frozen=True)
class Ended:
    key: int
    pid: int
    code: int
    was_signalled: bool = False
    """True if the agent had it signalled before it ended."""


class ServerGone(ConnectionError):
    """The fork server has died, and so have its workers."""


class Client:
    """An agent's end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def start(self, request: SpawnRequest, output: int) -> None:
        """Starts a worker whose stdout and stderr are the descriptor `output`."""
        self._send(asdict(request), [output])

    def signal(self, key: int, number: int) -> None:
        """Requests the server to signal a worker. Only the worker's parent knows that the pid still belongs
        to it."""
        self._send({"signal": number, "key": key})

    def receive(self, seconds: float) -> list[Started | Ended]:
        """Waits for reports of the server, for at most `seconds`. Returns an empty list if none arrives."""
        reports: list[Started | Ended] = []
        while select.select([self._socket], [], [], 0 if reports else seconds)[0]:
            try:
                packet = self._socket.recv(PACKET_BYTES_MAX)
            except ConnectionResetError:
                packet = b""
            if not packet:
                if reports:
                    break
                raise ServerGone("the fork server is gone")
            message = json.loads(packet)
            reports.append(Ended(**message) if "code" in message else Started(**message))
        return reports

    def close(self) -> None:
        self._socket.close()

    def _send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], list(descriptors))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ServerGone("the fork server is gone") from error


def agent_sockets() -> tuple[socket.socket, socket.socket]:
    """Returns the two ends of a socket between an agent and a fork server."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@dataclass(frozen=True)
class _Child:
    agent: socket.socket
    key: int
    record: int
    """The number of its progress record, or -1."""


class ForkServer:
    """Forks workers for agents and reports their exits. The owner runs the `select` loop."""

    def __init__(self, worker: WorkerMain, records: int) -> None:
        """`records` is the descriptor of the memory with the progress records of this node."""
        self._worker, self._records = worker, records
        self.agents: list[socket.socket] = []
        """The sockets of agents. The owner adds them, and waits for them."""
        self._children: dict[int, _Child] = {}
        self._signalled = set[int]()
        """The pids of children that agents have had signalled."""
        self.failed: list[int] = []
        """The numbers of the progress records of workers that have failed, until the owner clears it."""

    @property
    def is_idle(self) -> bool:
        """True if no agent is connected and no worker is left."""
        return not self.agents and not self._children

    def serve(self, ready: Sequence[object]) -> None:
        """Reads a packet from each agent that is ready."""
        for agent in [agent for agent in self.agents if agent in ready]:
            self._read_request(agent)

    def reap(self) -> list[tuple[int, int]]:
        """Reports workers that have ended to their agents, and kills the rest of their process groups.
        Returns (pid, exit status) of other children that have ended."""
        others = []
        while (pid := termination.ended_child()) is not None:
            child = self._children.pop(pid, None)
            if child is not None:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # not reaped yet, so no other process has this pid
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if child is not None and code and child.record >= 0:
                self.failed.append(child.record)
            if child is None:
                others.append((pid, code))
            elif child.agent in self.agents:
                self._send_end(child.agent, child.key, pid, code)
            self._signalled.discard(pid)
        return others

    def _read_request(self, agent: socket.socket) -> None:
        """Serves a request, unless the agent has died since it sent the request."""
        packet, outputs, poller = b"", list[int](), select.poll()
        poller.register(agent, 0)  # a hang-up is always reported
        if not poller.poll(0):
            with suppress(ConnectionResetError):
                packet, outputs, _, _ = socket.recv_fds(agent, PACKET_BYTES_MAX, 1)
        if not packet:
            self.agents.remove(agent)
            self._signal(agent, None, signal.SIGKILL)
            agent.close()
            return
        message = json.loads(packet)
        if "signal" in message:
            self._signal(agent, message["key"], message["signal"])
        else:
            self._start(agent, SpawnRequest(**message), outputs[0])
            os.close(outputs[0])

    def _signal(self, agent: socket.socket, key: int | None, number: int) -> None:
        for pid, child in self._children.items():
            if child.agent is agent and key in (None, child.key):
                if not termination.is_exiting(pid):
                    self._signalled.add(pid)
                with suppress(PermissionError):  # the worker has changed its user
                    os.kill(pid, number)

    def _start(self, agent: socket.socket, request: SpawnRequest, output: int) -> None:
        server = os.getpid()
        try:
            with blocked_signals():
                pid = os.fork()
                if not pid:
                    _become(request, output, self._worker, server, self._records)
        except OSError as error:
            os.write(output, f"meshctl: {request.name} could not be started: {error}\n".encode())
            # for lack of memory or of pids; reported as ended
            self._send(agent, {"key": request.start, "pid": 0})
            self._send_end(agent, request.start, 0, 127)
        else:
            self._children[pid] = _Child(agent, request.start, request.record)
            self._send(agent, {"key": request.start, "pid": pid})

    def _send_end(self, agent: socket.socket, key: int, pid: int, code: int) -> None:
        signalled = pid in self._signalled
        self._send(agent, {"key": key, "pid": pid, "code": code, "was_signalled": signalled})

    def _send(self, agent: socket.socket, message: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the next read reports the end of file
            agent.send(json.dumps(message).encode())


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Blocks signals around a fork, so that the child receives none before it has its own handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def flush() -> None:
    """Flushes the standard streams. Otherwise a forked child would write their buffers a second time."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def leave(code: int) -> NoReturn:
    """Ends a forked process without unwinding its copy of the parent's stack."""
    try:
        flush()
    finally:
        os._exit(code)


# The worker


def _become(request: SpawnRequest, output: int, worker: WorkerMain, server: int, records: int) -> NoReturn:
    """Turns a forked copy of the server into the requested worker. Never returns."""
    code = 70
    try:
        os.setsid()  # a Ctrl-C in the terminal does not reach a session of its own
        default_signals()
        process.die_with(server, signal.SIGKILL)
        redirect(output, request.terminal)
        has_record = request.record >= 0
        process.close_files([records] if has_record else [])
        process.set_title(request.name)
        for name, value in request.env.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if has_record:
            os.environ[VARIABLE] = f"{records}:{request.record}"
            os.set_inheritable(records, True)  # for a worker that is exec'd; `Progress` closes it
        if request.cwd:
            os.chdir(request.cwd)
        if request.argv is not None:
            _execute(request.argv, is_deaf=has_record and is_in_job())
        use_scratch(request.scratch)
        code = _call(worker)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except OSError as error:
        os.write(2, f"meshctl: {request.name} could not be started: {error}\n".encode())
        code = 127
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        leave(code)


def default_signals() -> None:
    """Restores the default signal handling in a forked child of the server."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_in_job():
        shield()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def redirect(target: int, terminal: str = "") -> None:
    """Makes the descriptor `target` stdout and stderr, and makes stdin empty. With a `terminal`, all three
    streams are the terminal."""
    source = os.open(os.devnull, os.O_RDONLY)
    if terminal:
        os.write(target, f"meshctl: the output is on {terminal}\n".encode())
        source = target = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    for file, number in ((source, 0), (target, 1), (target, 2)):
        os.dup2(file, number)


def _execute(argv: Sequence[str], is_deaf: bool) -> NoReturn:
    """Becomes another program. `is_deaf`: it ignores the signals of a scheduler from its beginning."""
    for number in SHIELDED if is_deaf else ():
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals, and exec would keep that
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.setdefault("PYTHONIOENCODING", "utf-8:backslashreplace")  # its log is UTF-8
    os.execvpe(argv[0], list(argv), os.environ)


def _call(worker: WorkerMain) -> int:
    # Keeps the old streams alive: their finalizers would close descriptors that have other owners by now.
    inherited = (sys.stdin, sys.stdout, sys.stderr)
    sys.stdin = os.fdopen(0, closefd=False)
    # The logs are UTF-8, whatever the locale.
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    faulthandler.enable()
    process.register_stacks()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1").split(",")[0]))
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # otherwise all workers would have the state of the server
    code = worker(os.environ)
    del inherited
    return code


# Other children of the node process


BUG = 70
"""Exit code of a task that raises an exception."""


class Task:
    """A child that does one task: an examination, a download, the call of other nodes. The node process must
    not wait for a disk, a driver or a network itself. It reaps the child.

        task = Task("meshctl-check", log, call)      # forks a child, which calls `call(writer)`
        for message in task.receive(): ...           # what it has reported, whenever its socket is readable

    The child reports over a socket."""

    def __init__(self, title: str, log: str, call: Callable[[int], int]) -> None:
        """Forks the child, whose output goes to the file `log`. `call` gets the descriptor to which it
        reports, and returns the exit code."""
        ours, theirs = socket.socketpair()
        self._connection, parent, writer = Connection(ours), os.getpid(), theirs.fileno()
        self._connection.message_bytes_max = MESSAGE_BYTES_MAX
        self.messages: list[Message] = []
        """All that it has reported."""
        flush()
        with blocked_signals():
            self.pid = os.fork()
            if not self.pid:
                become(title, parent, log, [writer], partial(call, writer))
        theirs.close()

    @property
    def is_open(self) -> bool:
        """True if the child may still report."""
        return not self._connection.is_closed

    def fileno(self) -> int:
        return self._connection.fileno()

    def receive(self) -> list[Message]:
        """Returns the reports that have arrived."""
        found = self._connection.receive() if self.is_open else []
        self.messages += found
        return found

    def close(self) -> None:
        self._connection.close()


def report(writer: int, message: Mapping[str, Any]) -> None:
    """Sends a message from the child to the node process."""
    data = encoded(message)
    while data:
        data = data[os.write(writer, data) :]


def become(
    title: str,
    parent: int,
    log: str,
    keep: Sequence[int],
    task: Callable[[], int],
    by: signal.Signals = signal.SIGKILL,
) -> NoReturn:
    """Runs a task in a forked child, and exits with the code that it returns. Never returns.

    The child dies with `parent`, by the signal `by`; 0 for none. Its output goes to the file `log`; empty for
    that of the parent. Of the inherited files it keeps the descriptors `keep`.
    """
    code = BUG
    try:
        os.setsid()
        default_signals()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if parent:
            process.die_with(parent, by)
        process.set_title(title)
        if log:
            os.makedirs(os.path.dirname(log), exist_ok=True)
            redirect(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
        process.close_files(keep)
        code = task()
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)
