"""The head's side of the examination of nodes, before an attempt is sent to them.

    all nodes have joined -> "examine" -> each node's facts -> judged together
                          -> "peers"   -> each node calls the others -> the attempt

Nodes report a peer that they do not reach also later, while the attempt runs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from types import MappingProxyType

from meshctl.dataclass import dataclass
from meshctl.engines.checks import across_nodes, on_node
from meshctl.engines.checks.across_nodes import Problem, name_of
from meshctl.engines.checks.on_node import NodeFacts
from meshctl.engines.checks.requirements import Needs
from meshctl.network.connection import Connection, Message
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.text.english import counted

EXAMINE_S = 60.0
"""Seconds within which a node must have examined itself, and again called its peers."""
TOGETHER_S = 2.0
"""Seconds after the first report of a peer that is not reached, in which others are awaited."""
PEERS_MAX = 64
"""The number of peers that each node calls."""
APART_MAX = 3
"""The number of pairs of nodes that a message names."""
FIREWALL = "look for a firewall or a wrong route between the two"


@dataclass(frozen=True)
class Examined:
    """The problems of all nodes that have examined themselves."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Apart:
    """Nodes do not reach each other, or do not answer the head."""

    reason: str


class Examination:
    def __init__(
        self,
        plan: Plan,
        run: RunDir,
        needs: Needs,
        shares_files: bool,
        ports: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`ports` are the addresses at which the head listens, besides that of the nodes, by what it is."""
        self._ports = dict(ports)
        self._plan, self._run, self._needs, self._shares_files = plan, run, needs, shares_files
        self._facts: dict[int, NodeFacts] = {}
        self._clocks: dict[int, float] = {}
        self._addresses: dict[int, str] = {}
        self._asked: dict[int, float] = {}
        """Node -> when it was asked to examine itself, by the clock of this machine."""
        self._nonce = ""
        self._attempt = 0
        self._nodes: Collection[int] = ()
        self._is_judged = self._is_called = False
        self._reached: set[int] = set()
        self._apart: dict[tuple[int, int], str] = {}
        """Caller and peer -> why the peer is not reached."""
        self._since = 0.0
        """The time of the last request to the nodes, or of the first report about a peer."""
        self.is_over = False
        """True if the nodes can begin the attempt."""

    def begin(self, attempt: int, nodes: Collection[int]) -> None:
        """Begins the round of an attempt. Nodes that have examined themselves call their peers only."""
        self._attempt, self._nodes = attempt, nodes
        self._is_judged = self._is_called = self.is_over = False
        self._reached.clear()
        self._apart.clear()

    def forget(self, node: int) -> None:
        """Forgets a node that was lost: its next process examines itself again."""
        for found in (self._facts, self._clocks, self._addresses, self._asked):
            found.pop(node, None)

    def on_message(self, node: int, message: Message, now: float) -> None:
        """Raises `LookupError`, `TypeError` and `ValueError` for a malformed message."""
        match message["type"]:
            case "examined":
                self._facts[node] = NodeFacts(**message["facts"])
                self._addresses[node] = str(message["address"])
                self._clocks[node] = _ahead(float(message["now"]), self._asked.get(node, 0.0))
            case "reached" if message["attempt"] == self._attempt:
                self._reached.add(node)
            case "unreachable" if message["attempt"] == self._attempt:
                self._since = self._since if self._apart else now
                self._apart[node, int(message["peer"])] = self._why(node, message)

    def _why(self, node: int, message: Message) -> str:
        us, them = name_of(node, self._facts), name_of(int(message["peer"]), self._facts)
        where = f"{them} at {message['address']}"
        if self.is_over:
            return f"{us} has not heard {where} for {float(message['seconds']):.0f} s: {message['problem']}"
        return f"{us} does not reach {where}: {message['problem']}"

    def poll(self, connections: Mapping[int, Connection | None], now: float) -> Iterator[Examined | Apart]:
        """Sends what is due, and yields what has been found. `connections` are those of all nodes of the
        attempt."""
        joined = {node: one for node, one in connections.items() if one is not None}
        if self._apart:
            if now - self._since > TOGETHER_S or self._have_all_answered:
                yield Apart(self._apart_text())
                self._apart.clear()
        elif self._nodes and not self.is_over and joined.keys() >= {*self._nodes}:
            yield from self._advance(joined, now)

    @property
    def _have_all_answered(self) -> bool:
        """True if all nodes have reported whether they reach their peers."""
        return {*self._reached, *(caller for caller, _ in self._apart)} >= {*self._nodes}

    def _advance(self, connections: Mapping[int, Connection], now: float) -> Iterator[Examined | Apart]:
        if missing := [node for node in connections if node not in self._facts]:
            self._ask({node: connections[node] for node in missing if node not in self._asked}, now)
            yield from self._silent(missing, "examined itself", now)
        elif not self._is_judged:
            self._is_judged = True
            self._remove_nonce()
            yield Examined(tuple(self._judged()))
        elif not self._is_called:
            self._is_called, self._since = True, now
            for node, connection in connections.items():
                peers = {str(peer): self._addresses[peer] for peer in peers_of(node, sorted(connections))}
                connection.send({"type": "peers", "attempt": self._attempt, "peers": peers})
        elif waiting := [node for node in connections if node not in self._reached]:
            yield from self._silent(waiting, "called its peers", now)
        else:
            self.is_over = True

    def _ask(self, connections: Mapping[int, Connection], now: float) -> None:
        if not connections:
            return
        self._since = now
        self._nonce = self._nonce or f".seen-{secrets.token_hex(8)}"
        with suppress(OSError):  # nodes then report that they do not see it, and the head ends for its reason
            on_node.write_nonce(self._run, self._nonce)
        for node, connection in connections.items():
            self._asked[node] = time.time()
            connection.send(
                {"type": "examine", "nonce": self._nonce, "needs": asdict(self._needs), "ports": self._ports}
            )

    def _remove_nonce(self) -> None:
        if self._nonce:
            with suppress(OSError):
                (self._run.path / self._nonce).unlink(missing_ok=True)
        self._nonce = ""

    def _silent(self, nodes: Collection[int], what: str, now: float) -> Iterator[Apart]:
        if now - self._since > EXAMINE_S:
            names = across_nodes.names_of(sorted(nodes), self._facts)
            yield Apart(
                f"{names} has not {what} within {EXAMINE_S:.0f} s; look at the log of the node process"
            )

    def _judged(self) -> list[Problem]:
        facts = {node: self._facts[node] for node in sorted(self._nodes)}
        return across_nodes.judge(facts, self._clocks, self._plan, self._shares_files)

    def _apart_text(self) -> str:
        texts = [text for _, text in sorted(self._apart.items())]
        more = len(texts) - APART_MAX
        listed = "; ".join([*texts[:APART_MAX], *([f"{counted(more, 'pair')} more"] if more > 0 else [])])
        return f"{listed}; all of them reach the head: {FIREWALL}"


def peers_of(node: int, nodes: list[int]) -> list[int]:
    """Returns the nodes that a node calls: all others, or of more than `PEERS_MAX` some at even distances."""
    place, count = nodes.index(node), len(nodes)
    called = min(count - 1, PEERS_MAX)
    return [nodes[(place + 1 + step * (count - 1) // called) % count] for step in range(called)]


def _ahead(theirs: float, asked: float) -> float:
    """Returns the seconds by which a clock is certainly ahead of this machine's, negative if it is behind; 0
    within the time that the question and the answer took."""
    received = time.time()
    return max(theirs - received, 0.0) + min(theirs - asked, 0.0)
