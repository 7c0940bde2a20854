"""The reports of nodes, as the head reads them from its connections."""

from __future__ import annotations

import re
import signal

from meshctl.dataclass import dataclass
from meshctl.engines.node.stacks import ProcessState
from meshctl.engines.supervise.examination import Examined
from meshctl.network.connection import Message
from meshctl.plan.resizing import Device
from meshctl.run.progress import Record

PROCESS = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,150}-[0-9]{1,9}")
"""The names of the processes whose events nodes send: GROUP-RANK and agent-GROUP-NODE."""


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
    """The time of the head's request, by the head's clock."""
    remote: float
    """The node's clock."""
    received: float
    """The time at which the head got the answer."""


@dataclass(frozen=True)
class NodeUnfit:
    """A node lacks something that a worker needs, and has started none."""

    node: int
    """-1 for several."""
    reason: str


@dataclass(frozen=True)
class NodeRefused:
    """A node that has joined again lacks something, and is not used."""

    node: int
    reason: str
    remedy: str


@dataclass(frozen=True)
class DevicesRead:
    """The devices that a node has for the workers of a plan. Each is a type and a number."""

    node: int
    has_begun: bool
    """True if the head has asked for those of the whole recipe; otherwise they are those of the attempt,
    which the node cannot begin without the missing ones."""
    own: tuple[Device, ...]
    missing: tuple[Device, ...]


@dataclass(frozen=True)
class StopAsked:
    """The scheduler ends the job: a node process has received its signal."""

    node: int
    signal: signal.Signals


@dataclass(frozen=True)
class ForwardedLines:
    """A node without a shared run directory sends events of one of its processes."""

    who: str
    """The process: GROUP-RANK, or agent-GROUP-NODE."""
    lines: tuple[str, ...]


Report = (
    AgentExited
    | ServerExited
    | NodeLost
    | Standing
    | Stacks
    | Stopped
    | Downloads
    | NodeUnfit
    | NodeRefused
    | LogProblem
    | ClockRead
    | StopAsked
    | DevicesRead
    | Examined
    | ForwardedLines
)


def report_of(node: int, message: Message, name: str) -> Report | None:
    """Returns the report in a message of a node, whose name in texts is `name`; None for a message without
    one. Raises `LookupError`, `TypeError` and `ValueError` for a malformed message."""
    match message["type"]:
        case "exited":
            return AgentExited(node, str(message["group"]), int(message["code"]))
        case "server_exited":
            return ServerExited(node, str(message["python"]), int(message["code"]), str(message["log"]))
        case "refused":
            return NodeLost(node, f"{name} cannot start an agent: {message['error']}")
        case "ending":
            return NodeLost(node, f"{name} was ended by a signal, or with the connection of its engine")
        case "download":
            received, total = int(message["received"]), int(message["total"])
            return Downloads(node, str(message["name"]), received, total)
        case "events":
            return ForwardedLines(process_name(message["who"]), tuple(map(str, message["lines"])))
        case "devices":
            own, missing = (
                tuple((str(kind), int(number)) for kind, number in message[key]) for key in ("own", "missing")
            )
            return DevicesRead(node, bool(message["has_begun"]), own, missing)
        case "log_problem":
            return LogProblem(str(message["path"]), str(message["reason"]))
        case "unfit":
            return NodeUnfit(node, str(message["error"]))
        case "progress":
            workers = [
                (group, rank, Record.of_message(one), float(seconds))
                for group, rank, one, seconds in message["workers"]
            ]
            return Standing(tuple(workers), tuple((group, rank) for group, rank in message["moved"]))
        case "stopped":
            return Stopped(node, tuple((str(what), int(pid)) for what, pid in message["processes"]))
        case "stacks":
            states = [(group, rank, ProcessState(**one)) for group, rank, one in message["workers"]]
            return Stacks(tuple(states))
    return None


def process_name(who: object) -> str:
    """Returns the name of a process that is a part of the name of its event file. Raises `ValueError` for
    another one than those of workers and agents."""
    if isinstance(who, str) and PROCESS.fullmatch(who):
        return who
    raise ValueError("the events are of no worker")
