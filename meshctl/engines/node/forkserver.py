"""The fork server: the parent of all workers of a node, single-threaded, with torch imported once for all of
them.

    launcher --fork--> fork server --fork--> worker train:0, train:1, rollout:0, ...
                            |
    agent train   --------- + one SOCK_SEQPACKET socket per agent, one JSON object per packet
    agent rollout --------- +

    agent says     {"start": 1, "name": "train:1", "env": {...}, "log": PATH, "argv": [...] | null, "cwd":
                   PATH}
                   {"signal": 15, "key": 1}
    server says    {"started": 1, "pid": 4711}
                   {"ended": 1, "pid": 4711, "code": -9}        0 or more: exit code; negative: signal

A worker without `argv` is a call of the one function that the server was given; one with it is exec'd. A
socket that closes is an agent that died: its workers are killed. The server leaves when all sockets are
closed and no worker is left, and on SIGTERM, which it also gets when the launcher dies, with everything that
it has started.

Ours and not `multiprocessing.forkserver`, because several agents share it and because a worker's parent must
be the one process that is told of the launcher's death.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from meshctl.engines.node import guard

WorkerMain = Callable[[Mapping[str, str]], int]
"""What a components' worker does: it gets its environment and gives its exit code."""

PACKET = 1 << 20


@dataclass(frozen=True)
class Order:
    """One worker to be started."""

    start: int
    """The key by which the agent knows it: its local rank."""
    name: str
    """Shown by `ps`, e.g. "train:1"."""
    log: str
    """Where its stdout and stderr go, appended."""
    env: Mapping[str, str]
    """On top of what the server inherited."""
    argv: Sequence[str] | None = None
    """None for the server's own worker function."""
    cwd: str = ""


@dataclass(frozen=True)
class Started:
    key: int
    pid: int


@dataclass(frozen=True)
class Ended:
    key: int
    pid: int
    code: int


class ServerGone(ConnectionError):
    """The fork server has died; so have its workers."""


class Client:
    """An agent's end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def start(self, order: Order) -> None:
        self._say(asdict(order))

    def signal(self, key: int, number: int) -> None:
        """Sent by the workers' parent, which knows that the pid is still theirs."""
        self._say({"signal": number, "key": key})

    def listen(self, seconds: float) -> list[Started | Ended]:
        """What the server says within that time: at least one thing, unless the time runs out."""
        heard: list[Started | Ended] = []
        while select.select([self._socket], [], [], 0 if heard else seconds)[0]:
            try:
                packet = self._socket.recv(PACKET)
            except ConnectionResetError:
                packet = b""
            if not packet:
                if heard:
                    break
                raise ServerGone("the fork server is gone")
            said = json.loads(packet)
            heard.append(
                Started(said["started"], said["pid"])
                if "started" in said
                else Ended(said["ended"], said["pid"], said["code"])
            )
        return heard

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def _say(self, what: Mapping[str, Any]) -> None:
        try:
            self._socket.send(json.dumps(what).encode())
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ServerGone("the fork server is gone") from error


def fork(
    agents: int, worker: WorkerMain, log: str, keep: Sequence[int] = ()
) -> tuple[int, list[socket.socket]]:
    """Forks the server; gives its pid and one socket per agent. `log` is for what it has to say of itself:
    nothing, as a rule.

    To be called from the main thread, after the heavy imports and before any other thread exists. `keep` are
    descriptors that the server holds open, and its workers do not.
    """
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(agents)]
    parent = os.getpid()
    flush()
    gc.collect()
    gc.freeze()
    if pid := os.fork():
        gc.unfreeze()
        for _, theirs in pairs:
            theirs.close()
        return pid, [ours for ours, _ in pairs]
    try:
        sockets = [theirs for _, theirs in pairs]
        redirect(log)
        guard.close_files([*(sock.fileno() for sock in sockets), *keep])
        os.setsid()
        guard.adopt_orphans()
        guard.rename("meshctl-fork")
        _Server(sockets, worker).run(parent)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def flush() -> None:
    """What is still in a buffer at a fork would be written twice."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


@dataclass(frozen=True)
class _Child:
    owner: socket.socket
    key: int


class _Server:
    def __init__(self, sockets: Sequence[socket.socket], worker: WorkerMain) -> None:
        self._sockets = list(sockets)
        self._worker = worker
        self._children: dict[int, _Child] = {}
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ending = False

    def run(self, parent: int) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        guard.die_with(parent, signal.SIGTERM)
        while not self._ending and (self._sockets or self._children):
            ready, _, _ = select.select([self._woken, *(agent.fileno() for agent in self._sockets)], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
            for agent in [agent for agent in self._sockets if agent.fileno() in ready]:
                self._hear(agent)
            self._reap()
        guard.kill_children()
        os._exit(0)

    def _end(self, *_: object) -> None:
        self._ending = True

    def _hear(self, agent: socket.socket) -> None:
        try:
            packet = agent.recv(PACKET)
        except ConnectionResetError:
            packet = b""
        if not packet:
            self._sockets.remove(agent)
            self._signal(agent, None, signal.SIGKILL)
            agent.close()
            return
        said = json.loads(packet)
        if "signal" in said:
            self._signal(agent, said["key"], said["signal"])
        else:
            self._start(agent, Order(**said))

    def _signal(self, owner: socket.socket, key: int | None, number: int) -> None:
        for pid, child in self._children.items():
            if child.owner is owner and key in (None, child.key):
                with suppress(PermissionError):  # it became somebody else
                    os.kill(pid, number)

    def _start(self, agent: socket.socket, order: Order) -> None:
        server = os.getpid()
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if not pid:
                _become(order, self._worker, server)
        except OSError as error:
            self._refuse(agent, order, error)
        else:
            self._children[pid] = _Child(agent, order.start)
            self._say(agent, {"started": order.start, "pid": pid})
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)

    def _refuse(self, agent: socket.socket, order: Order, error: OSError) -> None:
        """There are no more processes or no more memory: to the agent, a worker that has ended at once."""
        with open(order.log, "a", encoding="utf-8") as log:
            log.write(f"meshctl: {order.name} could not be started: {error}\n")
        self._say(agent, {"started": order.start, "pid": 0})
        self._say(agent, {"ended": order.start, "pid": 0, "code": 127})

    def _reap(self) -> None:
        """Tells of each child that has ended; what is left of a worker's own process group goes with it."""
        while (pid := guard.ended_child()) is not None:
            child = self._children.pop(pid, None)
            if child is not None:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # not reaped yet, so the number is still this worker's
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if child is not None and child.owner in self._sockets:
                self._say(child.owner, {"ended": child.key, "pid": pid, "code": code})

    def _say(self, agent: socket.socket, what: Mapping[str, Any]) -> None:
        with suppress(
            BrokenPipeError, ConnectionResetError
        ):  # its end of file is about to be read, and says the same
            agent.send(json.dumps(what).encode())


def _become(order: Order, worker: WorkerMain, server: int) -> NoReturn:
    """In the forked child: from a copy of the server to the worker that was ordered. Never returns."""
    code = 70
    try:
        os.setsid()  # a terminal's Ctrl-C never gets here
        _default_signals()
        guard.die_with(server, signal.SIGKILL)
        redirect(order.log)
        guard.close_files()
        guard.rename(order.name)
        os.environ.update(order.env)
        if order.cwd:
            os.chdir(order.cwd)
        if order.argv is not None:
            _execute(order.argv)
        code = _call(worker)
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except OSError as error:
        os.write(2, f"meshctl: {order.name} could not be started: {error}\n".encode())
        code = 127
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        try:
            flush()
        finally:
            os._exit(code)


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def redirect(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for source, target in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(source, target)


def _execute(argv: Sequence[str]) -> NoReturn:
    for number in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):  # Python ignores them, and ignored signals survive an exec
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvpe(argv[0], list(argv), os.environ)


def _call(worker: WorkerMain) -> int:
    inherited = (
        sys.stdin,
        sys.stdout,
        sys.stderr,
    )  # held, as their end would close numbers that are somebody else's by now
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    faulthandler.enable()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1").split(",")[0]))
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # every worker has inherited the same state
    code = worker(os.environ)
    del inherited
    return code
