"""The head's side of the connections to the node processes.

    nodes = Nodes(listener, token, lease_s, join_limit_s, digest)
    nodes.begin({"type": "attempt", ...}, {0: ["rollout"], 1: ["train"]})
    while nodes.running:
        for report in nodes.poll(): ...        # agents that ended, nodes that were lost

No method blocks, and `poll` reads only from connections on which something has arrived. The nodes receive the
attempt once all of them have authenticated (`arrivals`).
"""

from __future__ import annotations

import math
import select
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import TypeVar

from meshctl.dataclass import dataclass
from meshctl.engines.connection import BEAT_S, JOIN_S, Handshake, beat_s
from meshctl.engines.supervise.arrivals import Arrivals
from meshctl.engines.supervise.examination import Apart, Examination, Refused
from meshctl.engines.supervise.reports import (
    ClockRead,
    NodeLost,
    NodeRefused,
    NodeUnfit,
    Report,
    StopAsked,
    report_of,
)
from meshctl.network.addresses import joined
from meshctl.network.connection import Connection, Message, ProtocolError, encoded
from meshctl.text.english import counted

Result = TypeVar("Result")

CLOSE_S = 2.0
"""Seconds that nodes have at the end to close their connections."""
LOOK_S = 0.05
"""Seconds between two looks at all nodes: at leases, at the join limit, and at what is still to be sent."""
MISSING_MAX = 8
"""The number of missing nodes that a message names."""

CLOCK_READINGS = 4
"""The number of readings of a node's clock after each of its beats."""


@dataclass
class _Node:
    connection: Connection | None = None
    is_lost: bool = False
    groups: set[str] = field(default_factory=set)
    """The groups whose agents run on the node."""
    is_ended: bool = True
    """True if no process of the attempt is left on the node."""
    last_seen: float = 0.0
    host: str = ""
    """The address from which it has connected last; empty if it has not."""
    pid: int = 0
    """The pid of its process; 0 while it is unknown."""
    clock_readings: int = 0
    """The number of readings of its clock since its last beat."""
    has_joined: bool = False
    """True if it has connected before."""
    has_begun: bool = False
    """True if it has received the attempt."""
    generations: object = field(default_factory=dict)
    """The generations of groups that it was told last. An end that it has reported before is outdated."""


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
        self._listener, self._lease_s, self._join_limit_s = listener, lease_s, join_limit_s
        self._reads_clocks, self._examination = reads_clocks, examination
        self._epoll = select.epoll()
        handshake = partial(Handshake, token=token, lease_s=lease_s, digest=digest)
        self._arrivals = Arrivals(listener, self._epoll, handshake)
        self._owners: dict[int, int] = {}
        """File of a connection -> the number of its node. `_epoll` forgets a file that is closed; its entry
        stays until another connection has the number."""
        self._dropped_by: dict[int, Mapping[str, int]] = {}
        """Node -> the connections that it has dropped."""
        self._nodes: dict[int, _Node] = {}
        self._attempt: Message = {}
        self._groups_of: dict[str, list[int]] = {}
        """Group -> the nodes on which its agents run."""
        self._is_cancelled = self._is_over = False
        """True if nodes that join from now on do not begin the attempt, and if the run has ended."""
        self._refused: dict[int, str] = {}
        """Node -> the reason for which it was refused last."""
        self._began = self._polled = self._beat = time.monotonic()
        self._looked = -math.inf
        """The time at which all nodes were polled last."""

    @property
    def running(self) -> bool:
        """True if a process of the attempt is left on any node."""
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

    def all_dropped(self) -> list[Mapping[str, int]]:
        """Returns the connections that the head and each node have dropped."""
        return [self._arrivals.dropped, *self._dropped_by.values()]

    def has_joined(self, number: int) -> bool:
        """Returns whether a node has connected, now or earlier."""
        return number in self._nodes and self._nodes[number].has_joined

    def is_connected(self, number: int) -> bool:
        return number in self._nodes and self._nodes[number].connection is not None

    def is_fit(self, number: int) -> bool:
        """Returns whether a node that has joined again can be used."""
        return self.is_connected(number) and (self._examination is None or self._examination.is_fit(number))

    def named(self, number: int) -> str:
        """Returns the name of a node, with its address where the nodes are several machines."""
        host = self._nodes[number].host if self._lease_s else ""
        return f"node {number} ({host})" if host else f"node {number}"

    @property
    def absent(self) -> list[int]:
        """The lost nodes that did not join the attempt."""
        return [number for number, node in self._nodes.items() if node.is_lost and not node.has_begun]

    def files(self) -> list[int]:
        """Returns the file descriptors to wait for: one, whatever the number of nodes."""
        return [self._epoll.fileno()]

    def begin(self, attempt: Mapping[str, object], groups: Mapping[int, Collection[str]]) -> None:
        """Sends an attempt to all nodes. `groups` maps each node to the groups whose agents it runs."""
        self._attempt, self._is_cancelled = dict(attempt), False
        self._groups_of = {
            name: [number for number, names in groups.items() if name in names]
            for name in {name for names in groups.values() for name in names}
        }
        self._began = time.monotonic()
        for number, names in groups.items():
            node = self._nodes.setdefault(number, _Node())
            node.groups, node.is_ended, node.is_lost, node.has_begun = set(names), False, False, False
            node.generations = {}
            self._refused.pop(number, None)
        if self._examination:
            self._examination.begin(int(self._attempt["number"]), groups)
        self._send_attempt()

    def _send_attempt(self) -> None:
        """Sends the attempt to its nodes if all of them have joined and can begin it."""
        can_begin = self._examination is None or self._examination.is_over
        if self._is_cancelled or not can_begin:
            return
        nodes = [node for node in self._nodes.values() if not node.is_ended]
        if not all(node.connection for node in nodes):
            return
        data = encoded(self._attempt)  # once, because it contains the plan
        for node in nodes:
            if node.connection and not node.has_begun:
                node.has_begun = True
                node.connection.send_bytes(data)

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

    def ask_devices(self) -> None:
        """Asks all nodes for the devices of the whole recipe that they lack."""
        for node in self._nodes.values():
            if node.connection:
                node.connection.send({"type": "devices", "attempt": self._attempt["number"]})

    def restart(self, group: str, attempt: Mapping[str, object]) -> None:
        """Sends the attempt again to the nodes of a group, whose agents have ended. They start only this
        group."""
        self._attempt = dict(attempt)
        data = encoded({**attempt, "type": "restart", "group": group})
        for number in self._groups_of[group]:
            node = self._nodes[number]
            node.groups.add(group)
            node.is_ended = False
            node.generations = attempt["generations"]
            if node.connection:
                node.connection.send_bytes(data)

    def ask_stacks(self, number: int, workers: Sequence[tuple[str, int, int]]) -> None:
        """Asks a node for the states and stacks of some of its workers: group, rank and pid."""
        node = self._nodes.get(number)
        if node and node.connection:
            message = {"type": "stacks", "attempt": self._attempt["number"], "workers": workers}
            node.connection.send(message)

    def prune(self, latest: int, keep: int, exempt: Collection[int]) -> None:
        """Requests nodes that do not share the run directory to delete old checkpoints, as in
        `RunDir.prune_checkpoints`."""
        message = {"type": "prune", "latest": latest, "keep": keep, "exempt": sorted(exempt)}
        for node in self._nodes.values():
            if node.connection:
                node.connection.send(message)

    def leave(self, is_final: bool = True) -> None:
        """Requests all node processes to end. `is_final`: the run is over, and no scheduler that has ended it
        starts it again."""
        for node in self._nodes.values():
            if node.connection:
                node.connection.send({"type": "leave", "is_final": is_final})
        self._is_cancelled = self._is_over = True

    def turn_away(self, number: int) -> None:
        """Requests the process of a node to end, and regards the node as lost. Another process may join in
        its place."""
        node = self._nodes[number]
        if node.connection:
            node.connection.send({"type": "leave", "is_final": False})
        self._lose(number, node)

    def close(self) -> None:
        """Waits a moment for the nodes to close their connections, so that none loses its last message."""
        self._arrivals.close()
        connections = [node.connection for node in self._nodes.values() if node.connection]
        for connection in connections:
            connection.end()
        until = time.monotonic() + CLOSE_S
        while any(not one.is_closed for one in connections) and time.monotonic() < until:
            for file, _ in self._epoll.poll(0.05):
                if found := self._connection_of(self._owners.get(file)):
                    with suppress(ProtocolError):
                        found.receive()
        for connection in connections:
            connection.close()
        self._epoll.close()

    def _connection_of(self, number: int | None) -> Connection | None:
        node = None if number is None else self._nodes.get(number)
        return node.connection if node else None

    def drop(self, number: int) -> None:
        """Marks a node as lost, since its process has ended."""
        if node := self._nodes.get(number):
            self._lose(number, node)

    def poll(self) -> list[Report]:
        """Returns the reports of the nodes since the last call."""
        now = time.monotonic()
        was_stopped = now - self._polled > 2 * BEAT_S
        self._polled = now
        if was_stopped:  # the head itself was stopped, so silence is not a node's fault
            self._began = now
            for node in self._nodes.values():
                node.last_seen = now
        reports: list[Report] = []
        for file, _ in self._epoll.poll(0):
            if file == self._listener.fileno():
                self._arrivals.accept()
            elif file in self._arrivals:
                for number, connection in self._arrivals.receive(file):
                    self._owners[file] = number
                    self._join(number, connection, now)
            elif (owner := self._owners.get(file)) is not None and owner in self._nodes:
                reports += self._receive(owner, self._nodes[owner], now)
        if is_due := now - self._looked >= LOOK_S:
            self._looked = now
            reports += self._look(now)
        if self._examination and not self._is_cancelled and (is_due or not self._examination.is_over):
            reports += self._examine(self._examination, now)
        self._send_beats(now)
        return reports

    def _look(self, now: float) -> list[Report]:
        """Looks at all connections, also those on which nothing has arrived."""
        self._arrivals.expire(now)
        reports: list[Report] = []
        for number, node in self._nodes.items():
            reports += self._check(number, node, now)
        return reports

    def _examine(self, examination: Examination, now: float) -> list[Report]:
        """Goes on with the examination of the nodes, and sends the attempt after it. In a run, a node that
        the head does not hear either is the cause, and not the path between it and others: its lease ends
        soon."""
        if examination.is_over and self._is_one_silent(now):
            return []
        connections = {number: node.connection for number, node in self._nodes.items() if not node.is_ended}
        idle = {
            number: one.connection for number, one in self._nodes.items() if one.is_ended and one.connection
        }
        was_over, reports = examination.is_over, list[Report]()
        for found in examination.poll(connections, now, idle):
            if isinstance(found, Apart):
                is_first = not was_over and self._attempt["number"] == 0
                reports.append((NodeUnfit if is_first else NodeLost)(-1, found.reason))
            elif isinstance(found, Refused):
                reports += self._refuse(found)
            else:
                reports.append(found)
        if examination.is_over and not was_over:
            self._send_attempt()
        return reports

    def _refuse(self, found: Refused) -> list[Report]:
        """Turns a node away that cannot be used. Reports it once for each reason. The attempt loses the node
        if it was to begin there."""
        number, reason = found.node, found.reason
        is_new, was_ended = self._refused.get(number) != reason, self._nodes[number].is_ended
        self._refused[number] = reason
        self.turn_away(number)
        reports: list[Report] = [NodeRefused(number, reason, found.remedy)] if is_new else []
        return [*reports, *([] if was_ended else [NodeLost(number, reason)])]

    def _is_one_silent(self, now: float) -> bool:
        """Returns whether the head has missed two beats of a node."""
        limit_s = 2 * beat_s(self._lease_s)
        return bool(self._lease_s) and any(
            node.connection is not None and now - node.last_seen > limit_s for node in self._nodes.values()
        )

    # Joining

    def _join(self, number: int, connection: Connection, now: float) -> None:
        node = self._nodes.get(number)
        if node is None or node.connection is not None or self._is_over:
            connection.send({"type": "leave", "is_final": self._is_over})
            connection.close()
            return
        node.connection, node.last_seen, node.is_lost, node.has_joined = connection, now, False, True
        node.host = connection.peer_host
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

    def _receive(self, number: int, node: _Node, now: float) -> list[Report]:
        """Handles what has arrived from a node."""
        if node.connection is None:
            return []
        reports: list[Report] = []
        try:
            for message in node.connection.receive():
                node.last_seen = now
                reports += self._on_message(number, node, message, now)
        except (ProtocolError, LookupError, TypeError, ValueError) as error:
            return [
                *reports,
                *self._lose(number, node, f"{self.named(number)} sends a malformed message: {error}"),
            ]
        return [*reports, *self._check(number, node, now)]

    def _check(self, number: int, node: _Node, now: float) -> list[Report]:
        """Sends what a node has not taken yet. Gives the node up if it is lost, or has not joined in time."""
        if node.connection is None:
            if node.is_ended or now - self._began <= self._join_limit_s:
                return []
            return self._lose_missing()
        node.connection.flush()
        if node.connection.is_closed:
            return self._lose(number, node, f"the connection to {self.named(number)} is lost")
        if self._lease_s and now - node.last_seen > self._lease_s:
            return self._lose(
                number, node, f"{self.named(number)} has not answered for {self._lease_s:.0f} s"
            )
        return []

    def _on_message(self, number: int, node: _Node, message: Message, now: float) -> list[Report]:
        if message["type"] in ("beat", "clock", "stop"):
            return self._on_beat(number, node, message)
        if message["type"] in ("examined", "reached", "unreachable"):
            if self._examination:
                self._examination.on_message(number, message, now)
            return []
        if message.get("attempt") != self._attempt["number"]:
            return []
        if message["type"] == "exited":
            node.groups.discard(message["group"])
        elif message["type"] == "ended" and message["generations"] == node.generations:
            _end(node)
        report = report_of(number, message, self.named(number))
        return [report] if report else []

    def _on_beat(self, number: int, node: _Node, message: Message) -> list[Report]:
        """Handles a beat of a node, its clock, for which the head has asked, or the signal of its
        scheduler."""
        received = time.monotonic()
        if message["type"] == "stop":
            return [StopAsked(number, signal.Signals(message["signal"]))]
        if message["type"] == "beat":
            node.pid, node.clock_readings = int(message.get("pid", 0)), 0
            if dropped := message.get("strangers"):
                self._dropped_by[number] = {str(host): int(count) for host, count in dropped.items()}
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

    def while_beating(self, call: Callable[..., Result], *args: object) -> Result:
        """Returns what a call returns that may take longer than the lease. It runs in a thread, and the nodes
        receive beats meanwhile."""
        if not self._lease_s:
            return call(*args)
        with ThreadPoolExecutor(1) as thread:
            future = thread.submit(call, *args)
            while not future.done():
                self._send_beats(time.monotonic())
                wait([future], beat_s(self._lease_s) / 2)
            return future.result()

    def _send_beats(self, now: float) -> None:
        if self._lease_s and now - self._beat >= beat_s(self._lease_s):
            self._beat = now
            for node in self._nodes.values():
                if node.connection:
                    node.connection.send({"type": "beat"})


def _end(node: _Node) -> None:
    node.is_ended = True
    node.groups.clear()
