"""The parameters of a node process, and the agents of an attempt on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from meshctl.dataclass import dataclass
from meshctl.engines.connection import JOIN_S
from meshctl.engines.engine import WorkerMain
from meshctl.engines.node.agent import AgentJob
from meshctl.run.directory import RunDir


@dataclass(frozen=True)
class NodeJob:
    """The parameters of a node process that are known before it connects to the head."""

    run: RunDir
    node: int
    head: str
    """HOST:PORT"""
    token: str = field(repr=False)
    worker: WorkerMain
    groups: tuple[str, ...] = ()
    """Starts only these groups of the node; empty for all."""
    keep: tuple[int, ...] = ()
    """Descriptors that the node process and its agents keep open."""
    digest: str = ""
    """The digest of the node's plan, which must be that of the head; empty for a process of the head."""
    limit_s: float = JOIN_S
    """Seconds that a head which does not answer is given."""
    wait_s: float = 0.0
    """Seconds that a head which has not been started is given."""
    path: tuple[str, ...] = ()
    """The folders of the recipe's code, if they were shipped. The node then sends its events to the head."""


@dataclass
class NodeAttempt:
    number: int
    waiting: Sequence[AgentJob]
    """The agents that are not forked yet, because a download or a fork server is not ready."""
    agents: dict[int, str] = field(default_factory=dict)
    """Pid -> group, for each running agent."""
    generations: dict[str, int] = field(default_factory=dict)
    """Group -> how often it has restarted alone."""
