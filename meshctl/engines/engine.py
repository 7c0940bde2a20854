"""The engine protocol: how the nodes of a plan become processes, and the table of all engines.

    engine = engine_named("local")
    engine.preflight(plan, start)             # raises `CannotStart` with what is missing
    engine.render(plan, run, "HOST:PORT")     # pure: the files and commands that `--dry-run` prints
    handle = engine.start(job)                # one node process per node; the supervisor never sees a pid

An engine places whole nodes, never single groups: groups of one node share its memory and devices. On each
node it runs `meshctl agent --plan RUN/plan.json --node I --head HOST:PORT` or an equivalent. Everything else
(the store, attempts, observers, the first cause) belongs to the supervisor, which knows no engine by name.

A new engine is a file with a class that satisfies `Engine`, and one line in `ENGINES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol, cast

from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir, Start

ENGINES = {"local": "meshctl.engines.local:LocalEngine"}
"""Name -> "module:attribute" of a callable that returns an `Engine`. The module is imported on use."""
DEFAULT_ENGINE = "local"

STOP_KEY = "stop"
"""The store key, under the prefix of an attempt, that asks the agents of programs for an orderly end."""

WorkerMain = Callable[[Mapping[str, str]], int]
"""Runs a worker of a components' group. It receives the worker's environment and returns its exit code."""


class CannotStart(Exception):
    """The environment refuses a launch; the message says what is missing."""


@dataclass(frozen=True)
class Command:
    """The command line of one node process."""

    node: int
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Rendered:
    """What an engine would write and run for a plan."""

    commands: tuple[Command, ...]
    files: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Exited:
    """A process of the run that has ended."""

    what: str
    """Its name in messages, e.g. "the agent of train"."""
    code: int
    """Exit code, or the negative number of a signal."""
    log: str = ""
    node: int | None = None
    """Set for a node process."""
    group: str = ""
    """Set for an agent."""


@dataclass(frozen=True)
class Job:
    """What an engine needs to start the node processes of a run."""

    plan: Plan
    run: RunDir
    worker: WorkerMain
    head: str = ""
    """HOST:PORT at which the supervisor accepts node processes; empty where the supervisor runs inside the
    job."""
    token: str = field(default="", repr=False)
    """The secret with which node processes and supervisor authenticate each other."""
    keep: tuple[int, ...] = ()
    """Descriptors that every node process and agent keeps open until it ends, e.g. the lock of the run."""
    python: Mapping[str, str] = field(default_factory=dict)
    """Group -> path of the interpreter for the fork server of its workers. Groups that are not in it are
    forked by the node process."""


class Handle(Protocol):
    """The node processes that an engine has started."""

    address: str
    """HOST:PORT of the supervisor, as the nodes reach it."""

    def poll(self) -> list[Exited]:
        """Returns the node processes that have ended since the last call. Never waits."""

    @property
    def running(self) -> bool: ...

    def files(self) -> list[int]:
        """Returns descriptors that become readable when a node process ends."""

    def terminate(self) -> None:
        """Asks all node processes to end."""

    def kill(self) -> None:
        """Kills all node processes. Their agents and workers die with them."""

    def restart(self, nodes: Sequence[int]) -> bool:
        """Starts new processes for nodes that were lost, by exec. Returns False where the engine cannot."""

    def close(self) -> None:
        """Waits shortly until all node processes have ended, then kills whatever is left."""


class Engine(Protocol):
    supervisor: Literal["here", "inside"]
    """Where the supervisor runs: in the process that launches, or inside the job, on its first node."""
    host: str
    """Address on which a supervisor that runs here listens."""
    lease_s: float
    """Seconds without a beat after which a node process and the supervisor give each other up; 0 where the
    death of the one is noticed by the other in any case, as on one machine."""

    def preflight(self, plan: Plan, start: Start) -> None:
        """Compares the plan with what the engine can offer. Raises `CannotStart`."""

    def render(self, plan: Plan, run: RunDir, head: str) -> Rendered:
        """Returns what `start` would write and run. Pure."""

    def start(self, job: Job) -> Handle:
        """Starts one process per node, or submits a job that does. It may fork: the caller has no thread
        yet. For an engine whose supervisor runs inside the job, the handle is that of the submitted job."""

    def attach(self, job: Job, environ: Mapping[str, str]) -> Handle:
        """Returns the handle that a supervisor inside the job uses. Not called where it runs here."""


def engine_named(name: str = DEFAULT_ENGINE) -> Engine:
    module, _, attribute = ENGINES[name].partition(":")
    return cast(Engine, getattr(import_module(module), attribute)())


def nodes_of(plan: Plan) -> tuple[int, ...]:
    """Returns the nodes on which the plan places workers, in order."""
    return tuple(sorted({node for group in plan.groups for node in plan.nodes_of(group.name)}))


def groups_on(plan: Plan, node: int) -> tuple[str, ...]:
    """Returns the names of the groups with workers on a node, in the order of the plan."""
    return tuple(group.name for group in plan.groups if node in plan.nodes_of(group.name))


def agent_commands(plan: Plan, run: RunDir, head: str) -> tuple[Command, ...]:
    """Returns the command line of every node process. Pure."""
    start = ("meshctl", "agent", "--plan", str(run.plan))
    return tuple(Command(node, (*start, "--node", str(node), "--head", head)) for node in nodes_of(plan))
