"""The head's side of the examination of nodes, before an attempt is sent to them.

    all nodes have joined -> "examine" -> each node's facts -> judged together -> the attempt

The facts of a node include which others it does not reach: workers of two nodes may need each other while
both reach the head, and a firewall between them would leave them waiting.

A node that joins again is a newcomer until it has begun an attempt. Where the run may go on without it, it is
refused for what it lacks, and a newcomer that joins while an attempt runs without it is examined meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from types import MappingProxyType

from meshctl.dataclass import dataclass
from meshctl.engines.checks import on_node
from meshctl.engines.checks.on_node import NodeFacts, Problem, name_of
from meshctl.engines.checks.requirements import Needs
from meshctl.network.connection import Connection, Message
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir

EXAMINE_S = 60.0
"""Seconds within which a node must have examined itself."""
PEERS_MAX = 64
"""The number of other nodes to which each node connects: those with the next higher numbers."""
LOG = "look at the log of the node process"


@dataclass(frozen=True)
class Examined:
    """The problems of all nodes that have examined themselves."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class NodeLost:
    """A node process has ended, is silent, or refuses the attempt."""

    node: int
    """-1 for several."""
    reason: str
    is_unfit: bool = False
    """True if it lacks something that a worker needs, and has started none."""


@dataclass(frozen=True)
class Refused:
    """A newcomer cannot be used."""

    node: int
    reason: str
    remedy: str


Finding = Examined | NodeLost | Refused


class Examination:
    def __init__(
        self,
        plan: Plan,
        run: RunDir,
        needs: Needs,
        shares_files: bool,
        can_lose: bool = False,
    ) -> None:
        """`can_lose` is whether the run may go on without a newcomer."""
        self._plan, self._run, self._needs, self._shares_files = plan, run, needs, shares_files
        self._can_lose = can_lose
        self._facts: dict[int, NodeFacts] = {}
        self._addresses: dict[int, str] = {}
        """Node -> HOST:PORT at which it answers other nodes."""
        self._asked: set[int] = set()
        """The nodes that were asked to examine themselves."""
        self._nonce = ""
        self._nodes: Collection[int] = ()
        self._known: set[int] = set()
        """The nodes that have begun an attempt."""
        self._is_judged = False
        self._fit: set[int] = set()
        """The newcomers that have passed while an attempt ran without them."""
        self._since = 0.0
        """The time of the last request to the nodes, or since which their addresses are awaited; 0 if nothing
        is awaited."""
        self.is_over = False
        """True if the nodes can begin the attempt."""

    def begin(self, nodes: Collection[int]) -> None:
        """Begins the round of an attempt. Nodes that have examined themselves do not do so again."""
        self._nodes, self._is_judged, self.is_over = nodes, False, False

    def forget(self, node: int) -> None:
        """Forgets a node that was lost: its next process examines itself again."""
        self._facts.pop(node, None)
        self._addresses.pop(node, None)
        for known in (self._asked, self._known, self._fit):
            known.discard(node)

    def is_fit(self, node: int) -> bool:
        """Returns whether a newcomer has passed while an attempt ran without it."""
        return node in self._fit

    def on_message(self, node: int, message: Message) -> None:
        if message["type"] == "listens":
            self._addresses[node] = message["address"]
        else:
            self._facts[node] = NodeFacts(**message["facts"])

    def poll(
        self,
        connections: Mapping[int, Connection | None],
        now: float,
        idle: Mapping[int, Connection] = MappingProxyType({}),
    ) -> Iterator[Finding]:
        """Sends what is due, and yields what has been found. `connections` are those of all nodes of the
        attempt, and `idle` those of nodes that run no part of it."""
        joined = {node: one for node, one in connections.items() if one is not None}
        if self.is_over:
            yield from self._admit({node: one for node, one in idle.items() if node not in self._nodes}, now)
        elif self._nodes and joined.keys() >= {*self._nodes}:
            yield from self._advance(joined, now)

    def _advance(self, connections: Mapping[int, Connection], now: float) -> Iterator[Finding]:
        can_lose = self._can_lose and not self._known.isdisjoint(self._nodes)  # not all nodes are new
        newcomers = {*self._nodes} - self._known if can_lose else set[int]()
        if missing := [node for node in connections if node not in self._facts]:
            self._ask({node: connections[node] for node in missing if node not in self._asked}, now)
            yield from self._silent(missing, newcomers, now)
        elif not self._is_judged:
            self._is_judged = True
            self._remove_nonce()
            old = sorted({*self._nodes} - newcomers)
            refused, others = self._judged([*old, *sorted(newcomers)], newcomers)
            if not refused and not any(one.is_failure for one in others):
                self.is_over = True
                self._known.update(self._nodes)
            yield from refused
            yield Examined(tuple(others))

    def _admit(self, newcomers: Mapping[int, Connection], now: float) -> Iterator[Finding]:
        """Examines newcomers while an attempt runs without them."""
        self._ask({node: one for node, one in newcomers.items() if node not in self._asked}, now)
        for node in newcomers:
            if node in self._facts and node not in self._fit:
                refused, _ = self._judged([*sorted(self._nodes), node], {node})
                yield from refused
                if not refused:
                    self._fit.add(node)
        if waiting := [node for node in newcomers if node not in self._facts]:
            yield from self._silent(waiting, {*waiting}, now)
        else:
            self._remove_nonce()

    def _ask(self, connections: Mapping[int, Connection], now: float) -> None:
        if not connections:
            return
        if not self._addresses.keys() >= {*self._nodes, *connections}:
            self._since = self._since or now
            return  # it is asked in a later poll
        self._since = now
        self._nonce = self._nonce or f".seen-{secrets.token_hex(8)}"
        with suppress(OSError):  # nodes then report that they do not see it, and the head ends for its reason
            on_node.write_nonce(self._run, self._nonce)
        for node, connection in connections.items():
            self._asked.add(node)
            others = sorted({*self._nodes} - {node})
            others = [peer for peer in others if peer > node] + [peer for peer in others if peer < node]
            peers = {str(peer): self._addresses[peer] for peer in others[:PEERS_MAX]}
            connection.send(
                {"type": "examine", "nonce": self._nonce, "needs": asdict(self._needs), "peers": peers}
            )

    def _remove_nonce(self) -> None:
        if self._nonce:
            with suppress(OSError):
                (self._run.path / self._nonce).unlink(missing_ok=True)
        self._nonce, self._since = "", 0.0

    def _silent(
        self, nodes: Collection[int], newcomers: Collection[int], now: float
    ) -> Iterator[NodeLost | Refused]:
        if now - self._since <= EXAMINE_S:
            return
        nodes = [node for node in nodes if node not in self._addresses] or nodes
        within = f"has not examined itself within {EXAMINE_S:.0f} s"
        if {*newcomers}.issuperset(nodes):
            yield from (Refused(node, f"{name_of(node, self._facts)} {within}", LOG) for node in nodes)
        else:
            reason = f"{on_node.names_of(sorted(nodes), self._facts)} {within}; {LOG}"
            yield NodeLost(-1, reason, is_unfit=not self._known)

    def _judged(
        self, nodes: Iterable[int], newcomers: Collection[int]
    ) -> tuple[list[Refused], list[Problem]]:
        """Returns the newcomers that have failed, each with its first failure, and the problems of others.
        The nodes that come first are those with which others are compared."""
        facts = {node: self._facts[node] for node in nodes if node in self._facts}
        problems = on_node.judge(facts, self._plan, self._shares_files)
        failures: dict[int, Problem] = {}
        for one in problems:
            for node in newcomers:
                if one.is_failure and node in one.nodes:
                    failures.setdefault(node, one)
        others = [one for one in problems if not (one.is_failure and failures.keys() & {*one.nodes})]
        return [Refused(node, one.text, one.remedy) for node, one in failures.items()], others
