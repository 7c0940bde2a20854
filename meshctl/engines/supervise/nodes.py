"""The head's side of the connections to the node processes.

    nodes = Nodes(listener, token, lease_s, join_limit_s, digest)
    nodes.begin({"type": "attempt", ...}, {0: ["rollout"], 1: ["train"]})
    while nodes.running:
        for report in nodes.poll(): ...        # nodes that were lost, and messages of nodes

No method blocks, and `poll` reads only from connections on which something has arrived. The nodes receive the
attempt once all of them have authenticated and have passed their examination.
"""

from __future__ import annotations

import math
import select
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import field
from typing import TypeVar

from meshctl.dataclass import dataclass
from meshctl.engines.connection import BEAT_S, JOIN_S, Arrivals, beat_s
from meshctl.engines.supervise.examination import Examination, Examined, NodeLost, Refused
from meshctl.network.addresses import joined
from meshctl.network.connection import Connection, Message, ProtocolError, encoded
from meshctl.text.english import counted, in_words

Result = TypeVar("Result")

CLOSE_S = 2.0
"""Seconds that nodes have at the end to close their connections."""
LOOK_S = 0.05
"""Seconds between two looks at all nodes: at leases, at the join limit, and at what is still to be sent."""

CLOCK_READINGS = 4
"""The number of readings of a node's clock after each of its beats."""


Report = NodeLost | Refused | Examined | Message
"""A message of a node has its number as `node`. See `engines.connection` for all of them."""


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
    """The pid of the node process, once it has sent a beat."""
    clock_readings: int = 0
    """The number of readings of its clock since its last beat."""
    has_joined: bool = False
    """True if it has connected before."""
    has_begun: bool = False
    """True if it has received the attempt."""
    generations: object = field(default_factory=dict)
    """The generations of groups that it was told last. An end that it has reported before is outdated."""

    def send(self, message: Mapping[str, object]) -> None:
        if self.connection:
            self.connection.send(message)

    def end(self) -> None:
        self.is_ended = True
        self.groups.clear()


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
        self._arrivals = Arrivals(listener, self._epoll, token, lease_s, digest)
        self._owners: dict[int, int] = {}
        """File of a connection -> the number of its node. `_epoll` forgets a file that is closed; its entry
        stays until another connection has the number."""
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

    def local_pids(self) -> dict[int, int]:
        """Returns the pids of the node processes, where all of them are on this machine."""
        known = {} if self._lease_s else self._nodes
        return {number: node.pid for number, node in known.items() if node.connection and node.pid}

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

    def fileno(self) -> int:
        """Returns the file descriptor to wait for: one, whatever the number of nodes."""
        return self._epoll.fileno()

    def begin(self, attempt: Mapping[str, object], groups: Mapping[int, Collection[str]]) -> None:
        """Sends an attempt to all nodes. `groups` maps each node to the groups whose agents it runs."""
        self._attempt, self._is_cancelled = dict(attempt), False
        self._groups_of = {
            name: [number for number, names in groups.items() if name in names]
            for name in {name for names in groups.values() for name in names}
        }
        for number, names in groups.items():
            node = self._nodes.setdefault(number, _Node())
            node.is_ended, node.has_begun, node.groups = False, False, set(names)
            node.generations = {}
        self._began = self._polled = time.monotonic()
        if self._examination:
            self._examination.begin(groups)
        self._send_attempt()

    def _send_attempt(self) -> None:
        """Sends the attempt to its nodes if all of them have joined and can begin it."""
        can_begin = self._examination is None or self._examination.is_over
        nodes = [node for node in self._nodes.values() if not node.is_ended]
        if self._is_cancelled or not can_begin or not all(node.connection for node in nodes):
            return
        data = encoded(self._attempt)  # once, because it contains the plan
        for node in nodes:
            if node.connection and not node.has_begun:
                node.has_begun = True
                node.connection.send_bytes(data)

    def signal(self, number: signal.Signals, groups: Sequence[str] | None = None) -> None:
        """Sends a signal to the agents of `groups`, or to all agents if it is None. A signal to all also
        cancels the attempt on nodes that have not joined yet."""
        attempt = self._attempt["number"]
        for node in self._nodes.values():
            if node.connection and node.has_begun:
                node.send({"type": "signal", "attempt": attempt, "signal": int(number), "groups": groups})
            elif groups is None:
                self._is_cancelled = True
                node.end()

    def send(self, message: Mapping[str, object]) -> None:
        """Sends a message to all nodes."""
        for node in self._nodes.values():
            node.send(message)

    def ask_devices(self) -> None:
        """Asks all nodes for the devices of the whole recipe that they lack."""
        self.send({"type": "devices", "attempt": self._attempt["number"]})

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
        message = {"type": "stacks", "attempt": self._attempt["number"], "workers": workers}
        if node := self._nodes.get(number):
            node.send(message)

    def prune(self, latest: int, keep: int, exempt: Collection[int]) -> None:
        """Requests nodes that do not share the run directory to delete old checkpoints, as in
        `RunDir.prune_checkpoints`."""
        self.send({"type": "prune", "latest": latest, "keep": keep, "exempt": sorted(exempt)})

    def leave(self, is_final: bool = True) -> None:
        """Requests all node processes to end. `is_final`: the run is over, and no scheduler that has ended it
        starts it again."""
        self.send({"type": "leave", "is_final": is_final})
        self._is_cancelled = self._is_over = True

    def turn_away(self, number: int) -> None:
        """Requests the process of a node to end, and regards the node as lost. Another process may join in
        its place."""
        self._nodes[number].send({"type": "leave", "is_final": False})
        self.drop(number)

    def close(self) -> None:
        """Waits a moment for the nodes to close their connections, so that none loses its last message."""
        self._arrivals.close()
        connections = [node.connection for node in self._nodes.values() if node.connection]
        for connection in connections:
            connection.end()
        until = time.monotonic() + CLOSE_S
        while any(not one.is_closed for one in connections) and time.monotonic() < until:
            self._epoll.poll(0.05)
            for connection in connections:
                with suppress(ProtocolError, ValueError):
                    connection.receive()
        for connection in connections:
            connection.close()
        self._epoll.close()

    def drop(self, number: int) -> None:
        """Marks a node as lost, since its process has ended."""
        if node := self._nodes.get(number):
            self._lose(number, node)

    def poll(self) -> list[Report]:
        """Returns the reports of the nodes since the last call."""
        now = time.monotonic()
        if now - self._polled > 2 * BEAT_S:  # the head itself was stopped: silence is not a node's fault
            self._began = now
            for node in self._nodes.values():
                node.last_seen = now
        self._polled = now
        reports: list[Report] = []
        for file, _ in self._epoll.poll(0):
            if file == self._listener.fileno():
                self._arrivals.accept()
            elif file in self._arrivals:
                peer, messages = self._arrivals.receive(file)
                if peer:
                    self._owners[file] = peer.node
                    reports += self._join(peer.node, peer.connection, messages, now)
            elif (owner := self._owners.get(file)) is not None and owner in self._nodes:
                reports += self._receive(owner, self._nodes[owner], now)
        is_due = now - self._looked >= LOOK_S
        if is_due:
            self._looked = now
            self._arrivals.expire(now)
            for number, node in self._nodes.items():
                reports += self._check(number, node, now)
        if self._examination and not self._is_cancelled and (is_due or not self._examination.is_over):
            reports += self._examine(self._examination, now)
        self._send_beats(now)
        return reports

    def _examine(self, examination: Examination, now: float) -> list[Report]:
        """Goes on with the examination of the nodes, and sends the attempt after it."""
        connections = {number: node.connection for number, node in self._nodes.items() if not node.is_ended}
        idle = {
            number: one.connection for number, one in self._nodes.items() if one.is_ended and one.connection
        }
        was_over, reports = examination.is_over, list[Report]()
        for found in examination.poll(connections, now, idle):
            reports += self._refuse(found) if isinstance(found, Refused) else [found]
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
        return [*([found] if is_new else []), *([] if was_ended else [NodeLost(number, reason)])]

    # Joining

    def _join(
        self, number: int, connection: Connection, messages: Iterable[Message], now: float
    ) -> list[Report]:
        """Adds a node. `messages` have arrived from it already."""
        node = self._nodes.get(number)
        if node is None or node.connection is not None or self._is_over:
            connection.send({"type": "leave", "is_final": self._is_over})
            connection.close()
            return []
        node.connection, node.last_seen, node.is_lost, node.has_joined = connection, now, False, True
        node.host = connection.peer_host
        self._send_attempt()
        return [report for message in messages for report in self._on_message(number, node, message)]

    def _lose_missing(self) -> list[Report]:
        """Gives up all nodes that have not joined. Returns one report, which names them."""
        missing = {number: one for number, one in self._nodes.items() if not (one.connection or one.is_ended)}
        which = f"{counted(len(missing), 'node')} of {len(self._nodes)} did not connect"
        names = in_words([f"node {number}" for number in missing])
        address = joined(*self._listener.getsockname()[:2])
        reason = f"{which} to the head at {address} within {self._join_limit_s:.0f} s: {names}"
        is_unfit = not any(one.has_joined for one in missing.values())
        for number, one in missing.items():
            self._lose(number, one)
        return [NodeLost(min(missing), reason, is_unfit)]

    # Messages of nodes

    def _receive(self, number: int, node: _Node, now: float) -> list[Report]:
        if node.connection is None:
            return []
        reports: list[Report] = []
        try:
            for message in node.connection.receive():
                node.last_seen = now
                reports += self._on_message(number, node, message)
        except ProtocolError as error:
            return reports + self._lose(
                number, node, f"{self.named(number)} sends a malformed message: {error}"
            )
        return reports + self._check(number, node, now)

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
            reason = f"{self.named(number)} has not answered for {self._lease_s:.0f} s"
            return self._lose(number, node, reason)
        return []

    def _on_message(self, number: int, node: _Node, message: Message) -> list[Report]:
        kind, name = message["type"], self.named(number)
        if kind in ("beat", "clock"):
            return self._on_beat(number, node, message)
        if kind in ("listens", "examined"):
            if self._examination:
                self._examination.on_message(number, message)
            return []
        if kind != "stop" and message.get("attempt") != self._attempt["number"]:
            return []
        match kind:
            case "exited":
                node.groups.discard(message["group"])
            case "ended" if message["generations"] == node.generations:
                node.end()
            case "refused":
                return [NodeLost(number, f"{name} cannot start an agent: {message['error']}")]
            case "ending":
                reason = f"{name} was ended by a signal, or with the connection of its engine"
                return [NodeLost(number, reason)]
            case "unfit":
                return [NodeLost(number, message["error"], is_unfit=True)]
        return [{**message, "node": number}]

    def _on_beat(self, number: int, node: _Node, message: Message) -> list[Report]:
        """Handles a beat of a node, or its clock, for which the head has asked some times after each beat:
        the quickest answer counts."""
        received = time.monotonic()
        is_beat = message["type"] == "beat"
        if is_beat:
            node.clock_readings, node.pid = 0, message["pid"]
        if self._reads_clocks and node.clock_readings < CLOCK_READINGS:
            node.clock_readings += 1
            node.send({"type": "clock", "sent": time.monotonic()})
        return [] if is_beat else [{**message, "node": number, "received": received}]

    def _lose(self, number: int, node: _Node, reason: str = "") -> list[Report]:
        was_ended = node.is_ended
        if self._examination:
            self._examination.forget(number)
        if node.connection:
            node.connection.close()
        node.connection, node.is_lost = None, True
        node.end()
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
            self.send({"type": "beat"})
