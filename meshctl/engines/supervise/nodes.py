"""The head's side of the connections to the node processes.

    nodes = Nodes(listener, token, lease_s, join_limit_s, digest)
    nodes.begin({"type": "attempt", ...}, {0: ["rollout"], 1: ["train"]})
    while nodes.running:
        for report in nodes.poll(): ...        # agents that ended, nodes that were lost

No method blocks. The nodes receive the attempt once all of them have authenticated. A peer that does not
authenticate in time is dropped.
"""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field

from meshctl.dataclass import dataclass
from meshctl.engines.connection import BEAT_S, JOIN_S, Handshake, beat_s
from meshctl.engines.node.stacks import ProcessState
from meshctl.engines.supervise.examination import Apart, Examination, Examined
from meshctl.run.addresses import joined
from meshctl.run.connection import STRANGER_S, STRANGERS_MAX, Connection, Message, ProtocolError
from meshctl.run.progress import Record
from meshctl.text.english import counted

CLOSE_S = 2.0
"""Seconds that nodes have at the end to close their connections."""
MISSING_MAX = 8
"""The number of missing nodes that a message names."""

CLOCK_READINGS = 4
"""How often the clock of a node is read after each of its beats."""


@dataclass(frozen=True)
class AgentExited:
    """An agent has ended. `code` is an exit code, or the negative number of a signal."""

    node: int
    group: str
    code: int


@dataclass(frozen=True)
class ServerExited:
    """A fork server that runs another interpreter has ended."""

    node: int
    python: str
    code: int
    log: str


@dataclass(frozen=True)
class NodeLost:
    """A node process has ended, is silent, or refuses the attempt, or two nodes do not reach each other."""

    node: int
    """-1 for several."""
    reason: str


@dataclass(frozen=True)
class Standing:
    """The progress records of workers that wait, hang or compute."""

    workers: tuple[tuple[str, int, Record, float], ...]
    """Group, rank, record, and the seconds for which the record has not changed."""
    moved: tuple[tuple[str, int], ...] = ()
    """Group and rank of workers that no longer stand."""


@dataclass(frozen=True)
class Stacks:
    """The states and stacks of workers that the head has asked for."""

    workers: tuple[tuple[str, int, ProcessState], ...]
    """Group, rank and state."""


@dataclass(frozen=True)
class Stopped:
    """The agents and fork servers of a node that are stopped (SIGSTOP), each time that they change."""

    node: int
    processes: tuple[tuple[str, int], ...]
    """Name in messages and pid."""


@dataclass(frozen=True)
class Downloads:
    """A node downloads a model before it starts workers."""

    node: int
    name: str
    received: int
    """Bytes."""
    total: int
    """Bytes; 0 while it is unknown."""


@dataclass(frozen=True)
class LogProblem:
    """The log of a worker cannot be written."""

    path: str
    reason: str


@dataclass(frozen=True)
class ClockRead:
    """The clock of a node was read, in seconds."""

    node: int
    sent: float
    """When the head asked for it, by the head's clock."""
    remote: float
    """The node's clock."""
    received: float
    """When the head got the answer."""


@dataclass(frozen=True)
class NodeUnfit:
    """A node lacks something that a worker needs, and has started none."""

    node: int
    """-1 for several."""
    reason: str


@dataclass(frozen=True)
class StopAsked:
    """The scheduler ends the job: a node process has received its signal."""

    signal: signal.Signals


Report = (
    AgentExited
    | ServerExited
    | NodeLost
    | Standing
    | Stacks
    | Stopped
    | Downloads
    | NodeUnfit
    | LogProblem
    | ClockRead
    | StopAsked
    | Examined
)


@dataclass
class _Node:
    connection: Connection | None = None
    is_lost: bool = False
    groups: set[str] = field(default_factory=set)
    """The groups whose agents run on the node."""
    is_ended: bool = True
    """Whether no process of the attempt is left on the node."""
    last_seen: float = 0.0
    pid: int = 0
    """The pid of its process; 0 while it is unknown."""
    clock_readings: int = 0
    """How often its clock was read since its last beat."""
    has_joined: bool = False
    """Whether it has connected before."""
    has_begun: bool = False
    """Whether it has received the attempt."""


class Nodes:
    def __init__(
        self,
        listener: socket.socket,
        token: str,
        lease_s: float,
        join_limit_s: float = JOIN_S,
        digest: str = "",
        *,
        reads_clocks: bool = False,
        examination: Examination | None = None,
    ) -> None:
        """`join_limit_s` are the seconds after which a node is missing, and `digest` is that of the plan.
        With `reads_clocks`, `poll` also returns readings of the clocks of all nodes. With an `examination`,
        the nodes examine themselves before they get an attempt."""
        listener.setblocking(False)
        self._listener, self._token, self._lease_s = listener, token, lease_s
        self._join_limit_s, self._digest = join_limit_s, digest
        self._reads_clocks, self._examination = reads_clocks, examination
        self._strangers: list[Handshake] = []
        self._nodes: dict[int, _Node] = {}
        self._attempt: Message = {}
        self._is_cancelled = False
        """Whether nodes that join from now on do not begin the attempt."""
        self._began = self._polled = self._beat = time.monotonic()

    @property
    def running(self) -> bool:
        """Whether a process of the attempt is left on any node."""
        return any(not node.is_ended for node in self._nodes.values())

    @property
    def running_groups(self) -> set[str]:
        return {group for node in self._nodes.values() for group in node.groups}

    @property
    def lost(self) -> list[int]:
        """The lost nodes, which must be restarted before another attempt."""
        return [number for number, node in self._nodes.items() if node.is_lost]

    @property
    def local_pids(self) -> dict[int, int]:
        """Node -> the pid of its node process, if all nodes are on this machine and therefore need no
        lease."""
        return {number: node.pid for number, node in self._nodes.items() if node.pid and not self._lease_s}

    def has_joined(self, number: int) -> bool:
        """Whether a node has connected, now or earlier."""
        return number in self._nodes and self._nodes[number].has_joined

    def files(self) -> list[int]:
        """Returns the file descriptors to wait for."""
        connections = [node.connection for node in self._nodes.values() if node.connection]
        connections += [stranger.connection for stranger in self._strangers]
        return [self._listener.fileno(), *(one.fileno() for one in connections if not one.is_closed)]

    def begin(self, attempt: Mapping[str, object], groups: Mapping[int, Collection[str]]) -> None:
        """Sends an attempt to all nodes. `groups` maps each node to the groups whose agents it runs."""
        self._attempt, self._is_cancelled = dict(attempt), False
        self._began = time.monotonic()
        for number, names in groups.items():
            node = self._nodes.setdefault(number, _Node())
            node.groups, node.is_ended, node.is_lost, node.has_begun = set(names), False, False, False
        if self._examination:
            self._examination.begin(int(self._attempt["number"]), groups)
        self._send_attempt()

    def _send_attempt(self) -> None:
        """Sends the attempt to its nodes if all of them have joined and can begin it."""
        nodes = [node for node in self._nodes.values() if not node.is_ended]
        can_begin = self._examination is None or self._examination.is_over
        if self._is_cancelled or not can_begin or not all(node.connection for node in nodes):
            return
        for node in nodes:
            if node.connection and not node.has_begun:
                node.has_begun = True
                node.connection.send(self._attempt)

    def signal(self, number: signal.Signals, groups: Sequence[str] | None = None) -> None:
        """Sends a signal to the agents of `groups`, or to all agents if it is None. A signal to all also
        cancels the attempt on nodes that have not joined yet."""
        message = {
            "type": "signal",
            "attempt": self._attempt["number"],
            "signal": int(number),
            "groups": groups,
        }
        for node in self._nodes.values():
            if node.connection and node.has_begun:
                node.connection.send(message)
            elif groups is None:
                self._is_cancelled = True
                _end(node)

    def ask_stacks(self, number: int, workers: Sequence[tuple[str, int, int]]) -> None:
        """Asks a node for the states and stacks of some of its workers: group, rank and pid."""
        node = self._nodes.get(number)
        if node and node.connection:
            message = {"type": "stacks", "attempt": self._attempt["number"], "workers": workers}
            node.connection.send(message)

    def leave(self) -> None:
        """Requests all node processes to end."""
        for node in self._nodes.values():
            if node.connection:
                node.connection.send({"type": "leave"})
        self._is_cancelled = True

    def close(self) -> None:
        """Waits a moment for the nodes to close their connections, so that none loses its last message."""
        connections = [node.connection for node in self._nodes.values() if node.connection]
        for connection in connections:
            connection.end()
        until = time.monotonic() + CLOSE_S
        while (left := [one for one in connections if not one.is_closed]) and time.monotonic() < until:
            for connection in select.select(left, [], [], 0.05)[0]:
                with suppress(ProtocolError):
                    connection.receive()
        for connection in left:
            connection.close()
        for stranger in self._strangers:
            stranger.connection.close()
        self._listener.close()

    def drop(self, number: int) -> None:
        """Marks a node as lost, since its process has ended."""
        if node := self._nodes.get(number):
            self._lose(number, node)

    def poll(self) -> list[Report]:
        """Returns the reports of the nodes since the last call."""
        now = time.monotonic()
        was_stopped = now - self._polled > 2 * BEAT_S
        self._polled = now
        self._accept()
        self._authenticate(now)
        reports: list[Report] = []
        for number, node in self._nodes.items():
            if was_stopped:  # the head itself was stopped, so silence is not a node's fault
                node.last_seen = self._began = now
            reports += self._poll_node(number, node, now)
        if self._examination and not self._is_cancelled:
            reports += self._examine(self._examination, now)
        self._send_beats(now)
        return reports

    def _examine(self, examination: Examination, now: float) -> list[Report]:
        """Goes on with the examination of the nodes, and sends the attempt after it."""
        connections = {number: node.connection for number, node in self._nodes.items() if not node.is_ended}
        was_over, reports = examination.is_over, list[Report]()
        for found in examination.poll(connections, now):
            if isinstance(found, Apart):
                is_first = not was_over and self._attempt["number"] == 0
                reports.append((NodeUnfit if is_first else NodeLost)(-1, found.reason))
            else:
                reports.append(found)
        if examination.is_over and not was_over:
            self._send_attempt()
        return reports

    # Joining

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if len(self._strangers) >= STRANGERS_MAX:
                sock.close()
            else:
                self._strangers.append(self._handshake(Connection(sock)))

    def _handshake(self, connection: Connection) -> Handshake:
        return Handshake(connection, self._token, self._lease_s, self._digest)

    def _authenticate(self, now: float) -> None:
        for stranger in list(self._strangers):
            try:
                has_proved = any(stranger.accepts(message) for message in stranger.connection.receive())
            except ProtocolError:
                has_proved = False
                stranger.connection.close()
            if has_proved:
                self._join(stranger.node, stranger.connection, now)
            elif now - stranger.began > STRANGER_S:
                stranger.connection.close()
            if has_proved or stranger.connection.is_closed:
                self._strangers.remove(stranger)

    def _join(self, number: int, connection: Connection, now: float) -> None:
        node = self._nodes.get(number)
        if node is None or node.connection is not None or self._is_cancelled:
            connection.send({"type": "leave"})
            connection.close()
            return
        node.connection, node.last_seen, node.is_lost, node.has_joined = connection, now, False, True
        self._send_attempt()

    def _lose_missing(self) -> list[Report]:
        """Gives up all nodes that have not joined. Returns one report, which names them."""
        missing = {number: one for number, one in self._nodes.items() if not (one.connection or one.is_ended)}
        which = f"{counted(len(missing), 'node')} of {len(self._nodes)} did not connect"
        first, more = list(missing)[:MISSING_MAX], len(missing) - MISSING_MAX
        names = ", ".join(f"node {number}" for number in first) + (f" and {more} more" if more > 0 else "")
        address = joined(*self._listener.getsockname()[:2])
        reason = f"{which} to the head at {address} within {self._join_limit_s:.0f} s: {names}"
        had_joined = any(one.has_joined for one in missing.values())
        for number, one in missing.items():
            self._lose(number, one)
        number = first[0]
        return [NodeLost(number, reason) if had_joined else NodeUnfit(number, reason)]

    # Messages of nodes

    def _poll_node(self, number: int, node: _Node, now: float) -> list[Report]:
        if node.connection is None:
            if node.is_ended or now - self._began <= self._join_limit_s:
                return []
            return self._lose_missing()
        reports: list[Report] = []
        try:
            for message in node.connection.receive():
                node.last_seen = now
                reports += self._on_message(number, node, message, now)
        except (ProtocolError, LookupError, TypeError, ValueError) as error:
            return [*reports, *self._lose(number, node, f"node {number} sends a malformed message: {error}")]
        node.connection.flush()
        if node.connection.is_closed:
            return [*reports, *self._lose(number, node, f"the connection to node {number} is lost")]
        if self._lease_s and now - node.last_seen > self._lease_s:
            return self._lose(number, node, f"node {number} has not answered for {self._lease_s:.0f} s")
        return reports

    def _on_message(self, number: int, node: _Node, message: Message, now: float) -> list[Report]:
        if message["type"] in ("beat", "clock"):
            return self._on_beat(number, node, message)
        if message["type"] == "stop":
            return [StopAsked(signal.Signals(message["signal"]))]
        if message["type"] in ("examined", "reached", "unreachable"):
            if self._examination:
                self._examination.on_message(number, message, now)
            return []
        if message.get("attempt") != self._attempt["number"]:
            return []
        match message["type"]:
            case "exited":
                node.groups.discard(message["group"])
                return [AgentExited(number, str(message["group"]), int(message["code"]))]
            case "server_exited":
                return [
                    ServerExited(number, str(message["python"]), int(message["code"]), str(message["log"]))
                ]
            case "refused":
                return [NodeLost(number, f"node {number} cannot start an agent: {message['error']}")]
            case "download":
                received, total = int(message["received"]), int(message["total"])
                return [Downloads(number, str(message["name"]), received, total)]
            case "log_problem":
                return [LogProblem(str(message["path"]), str(message["reason"]))]
            case "unfit":
                return [NodeUnfit(number, str(message["error"]))]
            case "progress":
                workers = [
                    (group, rank, Record.of_message(one), float(seconds))
                    for group, rank, one, seconds in message["workers"]
                ]
                return [Standing(tuple(workers), tuple((group, rank) for group, rank in message["moved"]))]
            case "stopped":
                return [Stopped(number, tuple((str(what), int(pid)) for what, pid in message["processes"]))]
            case "stacks":
                states = [(group, rank, ProcessState(**one)) for group, rank, one in message["workers"]]
                return [Stacks(tuple(states))]
            case "ended":
                _end(node)
        return []

    def _on_beat(self, number: int, node: _Node, message: Message) -> list[Report]:
        """Handles a beat of a node, or its clock, for which the head has asked."""
        received = time.monotonic()
        if message["type"] == "beat":
            node.pid, node.clock_readings = int(message.get("pid", 0)), 0
        self._ask_clock(node)
        if message["type"] == "beat":
            return []
        return [ClockRead(number, float(message["sent"]), float(message["at"]), received)]

    def _ask_clock(self, node: _Node) -> None:
        """Asks a node for its clock, some times after each of its beats: the quickest answer counts."""
        if self._reads_clocks and node.connection and node.clock_readings < CLOCK_READINGS:
            node.clock_readings += 1
            node.connection.send({"type": "clock", "sent": time.monotonic()})

    def _lose(self, number: int, node: _Node, reason: str = "") -> list[Report]:
        was_ended = node.is_ended
        if self._examination:
            self._examination.forget(number)
        if node.connection:
            node.connection.close()
        node.connection, node.is_lost = None, True
        _end(node)
        return [NodeLost(number, reason)] if reason and not was_ended else []

    def _send_beats(self, now: float) -> None:
        if self._lease_s and now - self._beat >= beat_s(self._lease_s):
            self._beat = now
            for node in self._nodes.values():
                if node.connection:
                    node.connection.send({"type": "beat"})


def _end(node: _Node) -> None:
    node.is_ended = True
    node.groups.clear()
