"""The engine protocol: how the nodes of a plan become processes, and the table of all engines.

    engine = engine_named("local")
    engine.preflight(plan, start)             # raises `CannotStart` if the environment lacks something
    engine.render(plan, run, "HOST:PORT")     # pure: the files and commands that `--dry-run` prints
    handle = engine.start(job)                # one node process per node; the supervisor never sees a pid

An engine starts one process per node, never one per group, because the groups of a node share its memory and
devices. On each node it runs `meshctl agent --plan RUN/plan.json --node I --head HOST:PORT` or an equivalent.
The supervisor, which is the same for all engines, owns everything else: the store, the attempts, the
observers and the search for the first cause.

An engine whose supervisor runs inside the job that a scheduler starts is a `JobEngine`:

    job = engine.submit(plan, run)            # the job starts `meshctl head`, which calls `engine.start`
    engine.submitted(run, "123").state()      # from any process that can reach the scheduler

A new engine is a file with a class that satisfies `Engine`, and one line in `ENGINES`. Its options in a
recipe are a section of `recipe/engine_fields.py` and the keyword arguments of its class.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, cast

from meshctl.dataclass import dataclass
from meshctl.engines.checks.requirements import Needs
from meshctl.plan.model import Plan
from meshctl.plan.node_sets import node_sets
from meshctl.plan.resizing import Lost
from meshctl.run.directory import LOCAL, NO_START, JobState, RunDir, Start
from meshctl.run.events import Observer

ENGINES = {
    "local": "meshctl.engines.local:LocalEngine",
    "loopback": "meshctl.engines.local:LoopbackEngine",
    "commands": "meshctl.engines.remote:CommandsEngine",
    "ssh": "meshctl.engines.ssh:SshEngine",
    "ray": "meshctl.engines.ray:RayEngine",
    "jobset": "meshctl.engines.kubernetes.engine:JobSetEngine",
    "slurm": "meshctl.engines.slurm.engine:SlurmEngine",
}
"""Name -> "module:attribute" of a callable that returns an `Engine`; its keyword arguments are the options of
`engine.NAME` in a recipe. The module is imported on use."""
DEFAULT_ENGINE = LOCAL

TOKEN_PLACE = "TOKEN-OF-THE-RUN"
"""A text in the place of the token of a run, in files that are kept."""

STOP_KEY = "stop"
"""A key in the store, under the prefix of an attempt. It requests the agents of programs to end in order."""

Resize = Callable[[Lost], Plan]
"""Function that returns the plan of a recipe without what is lost. Raises `CannotResize`."""

WorkerMain = Callable[[Mapping[str, str]], int]
"""Function that runs a worker of components. It receives the worker's environment and returns an exit
code."""


class CannotStart(Exception):
    """The environment cannot run the plan. The message names what is missing."""


@dataclass(frozen=True)
class Command:
    """The command line of one node process."""

    node: int
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Rendered:
    """The files that an engine would write for a plan, and the commands that it would run."""

    commands: tuple[Command, ...]
    head: tuple[str, ...] = ()
    """The command line of the head, if somebody may start it elsewhere than `launch` does."""
    files: Mapping[Path, str] = field(default_factory=dict)
    document: str = ""
    """One of the files that the scheduler's own tool reads, with `TOKEN_PLACE` in the place of the token of
    the run. `--dry-run` prints it, and all else as comments."""


@dataclass(frozen=True)
class Exited:
    """The exit of a node process or of an agent."""

    what: str
    """Name of the process in messages, e.g. "the agent of train"."""
    code: int
    """Exit code, or the negative number of a signal."""
    log: str = ""
    node: int | None = None
    """The node of a node process; None for an agent."""
    group: str = ""
    """The group of an agent; empty for a node process."""
    reason: str = ""
    """The reason that a node process could not be started, as a sentence; empty for another end."""


@dataclass(frozen=True)
class Job:
    """The input of an engine: a run whose node processes it is to start."""

    plan: Plan
    run: RunDir
    worker: WorkerMain
    head: str = ""
    """HOST:PORT at which the supervisor accepts node processes; empty if the supervisor runs inside the
    job."""
    token: str = field(default="", repr=False)
    """The secret by which node processes and the supervisor authenticate each other."""
    keep: tuple[int, ...] = ()
    """Descriptors that node processes and agents keep open until they end, e.g. the lock of the run."""
    spare: Callable[[], Collection[int]] = tuple
    """Returns the children of the launcher that do not belong to the engine: the processes of trackers."""
    needs: Needs = Needs()
    """The needs of the recipe in memory and on disk."""
    resize: Resize | None = None
    """None for a run that cannot go on with fewer workers."""


class Handle(Protocol):
    """The node processes that an engine has started."""

    replaces_nodes: bool = False
    """True if a scheduler may end one node of the run, and starts another one in its place. Otherwise a node
    that its scheduler ends is a sign that the whole job ends."""

    def poll(self) -> list[Exited]:
        """Returns the node processes that have ended since the last call; none where their connections alone
        are known. Never waits."""
        return []

    def files(self) -> list[int]:
        """Returns file descriptors that become readable when a node process ends."""
        return []

    def kill(self) -> None:
        """Kills the node processes that this process has started. Their agents and workers die with them."""
        return

    def restart(self, nodes: Sequence[int]) -> bool:
        """Starts new processes by exec for nodes that were lost. Returns False if the engine does not support
        it."""

    def explain(self, received: signal.Signals) -> str:
        """Returns why the supervisor has received a signal, as a sentence; empty if the engine did not send
        it."""
        return ""

    def close(self) -> None:
        """Waits a short time for all node processes to end, then kills those that are left."""


class Engine(Protocol):
    supervisor: Literal["here", "inside"]
    """The place of the supervisor: in the launcher's process ("here"), or in the job on its first node
    ("inside", for a `JobEngine`)."""
    host: str
    """Address on which a supervisor in the launcher's process listens."""
    join_limit_s: float
    """Seconds within which all node processes must have connected to the supervisor."""
    lease_s: float
    """Seconds without a beat after which a node process and the supervisor regard each other as lost; 0 for
    no limit, as on one machine, where each notices the death of the other."""
    examines_nodes: bool
    """True if every node examines itself before the first attempt, and reports to the supervisor."""
    shares_files: bool
    """True if all nodes must see the run directory of the supervisor."""

    def preflight(self, plan: Plan, start: Start) -> None:
        """Checks that the engine can run the plan. Raises `CannotStart` otherwise."""

    def render(
        self, plan: Plan, run: RunDir, head: str, start: Start = NO_START, recipe: str = ""
    ) -> Rendered:
        """Returns the files and commands of a launch. Pure. `start` has the folders of the recipe's code, and
        `recipe` is the text of the recipe as composed."""

    def start(self, job: Job) -> Handle:
        """Starts one process per node, or returns the handle of those that the job starts. May fork, because
        the caller has no other thread yet. Called where the supervisor is."""


class SubmittedJob(Protocol):
    """A job of a scheduler, as a process outside of it sees it. No method waits for the job."""

    name: str
    """The name of the job in messages, e.g. "Slurm job 123"."""
    number: str
    """Its name for the scheduler, e.g. "123"."""

    def state(self) -> JobState | None:
        """Returns the state of the job; None if the scheduler does not answer."""

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the head. Raises `OSError` with a sentence if that is impossible."""

    def cancel(self) -> None:
        """Ends the job, also if it has not begun. Raises `OSError` with a sentence if that is impossible."""


class JobEngine(Engine, Protocol):
    """An engine whose supervisor runs inside the job."""

    def submit(self, plan: Plan, run: RunDir) -> SubmittedJob:
        """Submits a job that runs `meshctl head` on its first node. Raises `CannotStart`."""

    def submitted(self, run: RunDir, number: str) -> SubmittedJob:
        """Returns the job to which a run was submitted."""

    def observers(self, run: RunDir, environ: Mapping[str, str]) -> Sequence[Observer]:
        """Returns the observers of the run in the head, which come before the usual ones."""


def engine_named(name: str = DEFAULT_ENGINE, options: Mapping[str, Any] = MappingProxyType({})) -> Engine:
    """Returns an engine with its options, as a recipe states them."""
    options = {key: value for key, value in options.items() if key != "secure"}  # one of meshctl 0.1
    module, _, attribute = ENGINES[name].partition(":")
    return cast(Engine, getattr(import_module(module), attribute)(**options))


def nodes_of(plan: Plan) -> tuple[int, ...]:
    """Returns the numbers of the nodes on which the plan places workers, in ascending order."""
    return tuple(sorted(node for alike in node_sets(plan) for node in alike.numbers()))


def groups_on(plan: Plan, node: int) -> tuple[str, ...]:
    """Returns the names of the groups with workers on a node, in the order of the plan."""
    return tuple(
        group.name
        for group in plan.groups
        if any(start <= node < stop for start, stop in plan.node_runs_of(group.name))
    )


def agent_commands(plan: Plan, run: RunDir, head: str) -> tuple[Command, ...]:
    """Returns the command line of every node process. Pure."""
    start = ("meshctl", "agent", "--plan", str(run.plan))
    return tuple(Command(node, (*start, "--node", str(node), "--head", head)) for node in nodes_of(plan))
