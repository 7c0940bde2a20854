"""The process of one worker of a group of components, from its environment to its last step.

    python -m meshctl.runtime.worker        with torchrun's variables and MESHCTL_PLAN, MESHCTL_GROUP,
                                            MESHCTL_HEAD, MESHCTL_CONTROL, MESHCTL_TOKEN,
                                            MESHCTL_ATTEMPT

A worker reads the plan and never the recipe. Every error is translated here, once, into a `fault` event with
group, rank, stage and step. The traceback is also written to the log.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from meshctl.dataclass import dataclass
from meshctl.network.connection import TOKEN_VARIABLE
from meshctl.network.control_store import StoreTimeout
from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Plan
from meshctl.run import process
from meshctl.run.directory import Recorded, RunDir, Start
from meshctl.run.events import Journal
from meshctl.run.process import is_in_job, shield
from meshctl.run.progress import Activity
from meshctl.run.shutdown import PREFIX, StopAgreement
from meshctl.runtime.component import Component, ComponentError, context_of
from meshctl.runtime.errors import StageError
from meshctl.runtime.group_restarts import GroupRestarts, Rejoining
from meshctl.runtime.instantiate import TargetError, component_class, extend_path, make
from meshctl.runtime.loop import Loop
from meshctl.runtime.loop_context import LoopContext, TakePosition
from meshctl.runtime.metrics.stage_metrics import phase_log
from meshctl.runtime.progress import Progress
from meshctl.runtime.rank_context import RankContext
from meshctl.runtime.routes.record import Recorder
from meshctl.runtime.seeding import seed_all
from meshctl.runtime.trace import Tracer
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import ConnectError, PeerLost
from meshctl.runtime.user_modes import ModeError
from meshctl.runtime.world import (
    Control,
    Handshake,
    connect_again,
    devices_of,
    join,
    ranks_by_node,
    torch_stores,
)
from meshctl.text.bounded import MAX_LINE, MAX_TEXT, bounded, message
from meshctl.text.env_refs import names
from meshctl.text.redaction import is_distinctive, literals, redact, redact_traceback, secret_places

USER_ERRORS = (StageError, TargetError, ComponentError, ConnectError, ModeError)
"""Errors whose message is enough for the user. They are reported without a traceback."""
PEER_ERRORS = (
    *(PeerLost, StoreTimeout, dist.DistNetworkError, dist.DistStoreError),
    *(ConnectionResetError, BrokenPipeError),
)
"""Errors that a worker sees when a peer has failed. The cause is in another process."""
PATH_OR_NUMBER = r"(?s)[~./].*|[-+]?[\d.,_]{1,8}"
OTHER_FRAMES = (str(PACKAGE_DIR), str(importlib.__file__), "<frozen importlib")
"""Beginnings of the names of files whose frames precede the user's own in a traceback."""


SPACE_S = 10.0
"""Seconds for which a worker that is done waits for space for its last events."""


@dataclass(frozen=True)
class WorkerEnv:
    """The environment variables of a worker."""

    plan: Path
    group: str
    rank: int
    head: str
    """HOST:PORT of the store of torch's process groups; in an attempt on one node, the folder of its
    stores."""
    attempt: int
    control: Control
    generations: Mapping[str, int] = field(default_factory=dict)
    """Group -> the number of times that it has restarted alone in this attempt."""

    @property
    def generation(self) -> int:
        """The number of times that this worker's group has restarted alone."""
        return self.generations.get(self.group, 0)

    @classmethod
    def parse(cls, environ: Mapping[str, str]) -> WorkerEnv:
        attempt = int(environ.get("MESHCTL_ATTEMPT", "0"))
        return cls(
            Path(environ["MESHCTL_PLAN"]),
            environ["MESHCTL_GROUP"],
            int(environ["RANK"]),
            environ["MESHCTL_HEAD"],
            attempt,
            Control(environ["MESHCTL_CONTROL"], environ[TOKEN_VARIABLE], attempt),
            json.loads(environ.get("MESHCTL_GENERATIONS", "{}")),
        )


def main(environ: Mapping[str, str] | None = None) -> int:
    """Runs a worker and returns its exit code: 0 after its last step, 1 after a reported fault."""
    env = WorkerEnv.parse(os.environ if environ is None else environ)
    os.environ.pop(TOKEN_VARIABLE, None)  # processes that components start do not inherit the token
    run = RunDir.of_plan(env.plan)
    journal = Journal(run.journal(f"{env.group}-{env.rank}"), env.group, env.rank)
    skip_without_terminal(f"{env.group}:{env.rank}")
    worker = Worker(env, run, journal)
    try:
        worker.work()
    except (Exception, SystemExit) as error:  # any error of a component becomes an event
        with suppress(OSError):  # the disk is full, which the launcher finds out by itself
            worker.report_fault(error)
        return 1
    return 0


class Worker:
    """Runs the components of one rank and reports its fault."""

    _plan: Plan
    _start: Start

    def __init__(self, env: WorkerEnv, run: RunDir, journal: Journal) -> None:
        self._env, self._run, self._journal = env, run, journal
        self._progress = Progress.from_environ(os.environ, env.attempt)
        self._loop: Loop | None = None
        self._data_plane: DataPlane | None = None
        self._doing = "setup"

    def work(self) -> None:
        """Connects to the peers, sets up the components and runs the loop until the last step."""
        env, run = self._env, self._run
        plan, start = self._plan, self._start = Plan.read(env.plan), run.read_start()
        self._progress.has_all_checks = plan.run.has_all_checks
        set_log_level(plan.run.log_level)
        self._begin("connection", doing="setup")
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        data_plane, agreement = self._connect()
        self._data_plane = data_plane
        if plan.run.trace:
            worker = env.group, env.rank
            paths, node = (run.traced(*worker), run.profile(*worker)), plan.node_of(*worker)
            tracer = Tracer(plan.stages, plan.run.trace, *paths, node, env.attempt)
            self._progress.trace = data_plane.trace = tracer
        components = self._components(agreement, data_plane)
        takes: Mapping[str, TakePosition] = {}
        if start.resume:
            step, produced, takes = self._resume(components, start.resume)
        else:
            step = start.after  # a replay begins after this step, without a checkpoint
            calls = {stage.name: step // stage.every for stage in plan.sources if not stage.when}
            produced = {name: count * plan.stage(name).samples for name, count in calls.items()}
        self._doing = "the preparation of checkpoints"
        context = self._loop_context(components, agreement, data_plane)
        self._loop = Loop(context)
        has_syncs = any(stage.kind == "sync" and context.hosts(stage) for stage in plan.stages)
        phase = "first sync" if has_syncs else "agreement on the last step"
        self._begin(phase, doing="the preparation of the first step")
        last = self._loop.run(step, produced, takes)
        self._doing = "close"
        for name, component in components.items():
            context_of(component).log = self._log_of(name, "close", last)
            self._progress.enter(Activity.CLOSING, -1, perf_counter())
            component.close()
        self._journal.write("done", step=last)
        self._journal.flush(SPACE_S)
        data_plane.close()
        dist.destroy_process_group()

    def _connect(self) -> tuple[DataPlane, StopAgreement]:
        env, group = self._env, self._plan.group(self._env.group)
        job_rank = group.first_job_rank + env.rank
        own, pairs = torch_stores(env.head, env.attempt, group, env.generation)
        store, listener = env.control.connect(), env.control.connect()
        join(own, group, env.rank, env.generation)
        extend_path(self._start.path)
        data_plane = Handshake(
            self._plan,
            job_rank,
            store,
            devices_of(group)[0],
            env.generations,
            has_left=env.control.peer_has_left,
            torch_store=pairs,
            progress=self._progress,
        ).connect()
        return data_plane, StopAgreement(store.under(PREFIX), listener.under(PREFIX), job_rank)

    def _loop_context(
        self, components: Mapping[str, Component], agreement: StopAgreement, data_plane: DataPlane
    ) -> LoopContext:
        env, connect, plan = self._env, self._env.control.connect, self._plan
        recorder = Recorder(plan.run.record, self._run.recorded) if plan.run.record else None
        recorded = {route: Recorded(Path(folder)) for route, folder in self._start.replay.items()}
        return LoopContext(
            plan,
            env.group,
            env.rank,
            components,
            data_plane,
            agreement,
            self._journal,
            recorder=recorder,
            recorded=recorded,
            progress=self._progress,
            restarts=GroupRestarts(plan, data_plane, connect(), env.generations, connect_again)
            if data_plane.context.restartable
            else None,
            rejoining=Rejoining(plan, data_plane.job_rank, connect(), env.generations)
            if env.generation
            else None,
            **self._checkpoint_hooks(components),
        )

    def _log_of(self, component: str, phase: str, step: int) -> Callable[[Mapping[str, float], float], None]:
        placed = self._plan.component(component)
        return phase_log(placed, phase, self._env.rank, step, self._journal, self._run.path)

    def _begin(self, phase: str, doing: str = "") -> None:
        """Reports a phase before the first step. `doing` is what a fault in it is reported as; `phase` by
        default."""
        self._doing = doing or phase
        self._journal.write("phase", phase=phase)

    def _components(self, agreement: StopAgreement, data_plane: DataPlane) -> dict[str, Component]:
        """Returns the group's components after `setup`.

        They are made in the order of the recipe on all ranks, so that collectives in `setup` match.
        """
        made, plan, start = dict[str, Component](), self._plan, self._start
        devices = devices_of(plan.group(self._env.group))
        before = step_of(start.resume) if start.resume else start.after
        if devices[0].type == "cuda":
            torch.cuda.set_device(devices[0])
        exporting = {stage.component for stage in plan.stages if stage.method == "export"}
        for placed in plan.components_of(self._env.group):
            setup = f"setup of `{placed.name}`"
            self._begin(f"imports of `{placed.name}`", doing=setup)
            component_class(placed, start.path)
            self._begin(setup)
            methods = [
                stage.method
                for stage in plan.stages
                if stage.kind == "call" and stage.component == placed.name
            ]
            seed_all(plan.seed, placed.name, device=devices[0].type)  # replicas start with equal weights
            context = RankContext(
                placed.name,
                placed.mesh.at(self._env.rank),
                self._env.rank,
                devices[0],
                devices,
                run_dir=self._run.path,
                exports=f"exports/{placed.name}" if len(exporting) > 1 else "exports",
                seed=plan.seed,
                log=self._log_of(placed.name, "setup", before),
                stop=agreement.ask,
                nodes=partial(ranks_by_node, plan, self._env.group),
                alloc=data_plane.alloc,
                progress=self._progress,
                peers=made,
                serves=any(one.sampler == placed.name for one in plan.components),
            )
            component = make(placed, methods, start.path, context)
            component.setup()
            made[placed.name] = component
        return made

    def _resume(
        self, components: Mapping[str, Component], folder: str
    ) -> tuple[int, dict[str, int], dict[str, TakePosition]]:
        """Loads the state of every component. Returns the step of the checkpoint, source -> the number of
        samples that it had produced by then, and take block -> its passes."""
        from meshctl.runtime import checkpoint

        self._begin("resume")
        for name, component in stateful(self._plan, components).items():
            if "components" in self._plan.run.accept and not (Path(folder) / name).is_dir():
                continue  # it begins without state
            mesh = self._plan.component(name).mesh.at(self._env.rank)
            state = checkpoint.load(Path(folder), name, component.state_dict(), mesh)
            component.load_state_dict(state)
        return step_of(folder), *checkpoint.load_positions(Path(folder))

    def _checkpoint_hooks(self, components: Mapping[str, Component]) -> dict[str, Any]:
        """Returns the functions that save a checkpoint, and that wait until none is in flight."""
        options = self._plan.run.checkpoint
        if options is None:
            return {}
        from meshctl.runtime.checkpoint_writer import CheckpointWriter  # its import takes half a second

        group, rank = self._env.group, self._env.rank
        states = {
            name: (component.state_dict, self._plan.component(name).mesh.at(rank))
            for name, component in stateful(self._plan, components).items()
        }
        writer = CheckpointWriter(self._run, group, rank, states, self._journal, options, self._progress)
        return {"save": writer.save, "wait_for_save": writer.wait}

    def report_fault(self, error: Exception | SystemExit) -> None:
        """Writes the `fault` event with the stage and step, and the whole traceback to the log."""
        stage, step = self._loop.state.at if self._loop else ("", None)
        self._progress.trace.end()
        has_plan = hasattr(self, "_plan")  # which may be what cannot be read
        known = secrets_of(self._plan, self._env.group, os.environ) if has_plan else ()
        if not sys.stderr.isatty():  # on a terminal the launcher shows it
            sys.stderr.write(redact_traceback("".join(traceback.format_exception(error)), known))
        line, text = _described(error)
        line = bounded(redact(line, known), MAX_LINE)
        text = bounded(redact_traceback(text, known), MAX_TEXT)
        doing = "" if stage else self._doing
        # If this rank has called collectives since its last step, peers that called others may be the cause.
        record = self._progress.record
        lost = error.job_rank if isinstance(error, PeerLost) else None
        facts: dict[str, Any] = {} if lost is None else {"peer": self._plan.group_and_rank(lost)}
        if record.calls:
            facts["progress"] = record.to_message()
        if self._loop and stage:  # the report of an ended step has been written
            self._journal.write_metrics(self._loop.state.report)  # a wrong number may be the cause
        self._journal.write(
            "fault",
            step=step,
            stage=stage,
            error=line,
            traceback=text,
            lost=is_lost(error),
            doing=doing,
            **facts,
        )
        if self._data_plane and isinstance(error, PeerLost):
            with suppress(OSError):  # peers without this message detect the loss themselves
                self._data_plane.announce_loss(error)


def _described(error: Exception | SystemExit) -> tuple[str, str]:
    """Returns the message of an error and its traceback, which is empty for `USER_ERRORS` and `PeerLost`."""
    if isinstance(error, (*USER_ERRORS, PeerLost)):
        return message(error), ""
    if type(error).__name__ == "BdbQuit":
        return "the debugger was left", ""
    shown = error.with_traceback(user_frames(error.__traceback__))
    parts = [bounded(part, MAX_LINE) for part in traceback.format_exception(shown)]  # one is the message
    return f"{type(error).__name__}: {message(error)}", "".join(parts)


def secrets_of(plan: Plan, group: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the secrets of a group's arguments and variables, and texts in them that came from the
    environment, without paths and numbers. The longest come first.

    Error messages must not contain them, because others may read the run directory.
    """
    variables = {name: environ.get(name) if value is None else value for name, value in plan.group(group).env}
    sources = [*(dict(component.args) for component in plan.components_of(group)), variables]
    texts = [str(value) for _, value in secret_places(sources)]
    referenced = [environ.get(name, "") for text in texts for name in names(text)]
    written = [part for text in texts for part in literals(text)]
    every = [name for _, value in secret_places(sources, under=True) for name in names(str(value))]
    given = [text for name in every if not re.fullmatch(PATH_OR_NUMBER, text := environ.get(name, ""))]
    secrets = {text for text in (*referenced, *written, *given) if is_distinctive(text)}
    return tuple(sorted(secrets, key=len)[::-1])


def user_frames(trace: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback that begins in the user's code, or all of it where there is none."""
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(OTHER_FRAMES):
        inner = inner.tb_next
    return inner or trace


def step_of(checkpoint: str) -> int:
    """Returns the step of a checkpoint, by the name of its folder."""
    return int(Path(checkpoint).name.removeprefix("step-"))


STATE_METHODS = ("state_dict", "load_state_dict")


def stateful(plan: Plan, components: Mapping[str, Component]) -> dict[str, Any]:
    """Returns the components with state in a checkpoint, in the order of the recipe.

    Raises `ComponentError` for a component that has only one of the two methods.
    """
    kept = {name: component for name, component in components.items() if not plan.component(name).frozen}
    for name, component in kept.items():
        offered = [method for method in STATE_METHODS if hasattr(component, method)]
        if len(offered) == 1:
            [absent] = {*STATE_METHODS} - {*offered}
            raise ComponentError(f"`{name}` has `{offered[0]}` and no `{absent}`: its state would be lost")
    return {name: component for name, component in kept.items() if hasattr(component, STATE_METHODS[0])}


def is_lost(error: BaseException, depth: int = 20) -> bool:
    """Returns whether an error only reports that a peer is gone. gloo has no class of its own for that. At
    most `depth` causes are examined: users can make a circle of them."""
    if isinstance(error, PEER_ERRORS) or (isinstance(error, RuntimeError) and "gloo" in message(error)):
        return True
    return depth > 0 and error.__cause__ is not None and is_lost(error.__cause__, depth - 1)


def skip_without_terminal(worker: str) -> None:
    """Makes `breakpoint()` a warning in a worker without a terminal, unless the user has chosen a hook of
    their own: PYTHONBREAKPOINT, or `sys.breakpointhook`."""
    is_chosen = "PYTHONBREAKPOINT" in os.environ or sys.breakpointhook is not sys.__breakpointhook__
    if is_chosen or (sys.stdin is not None and sys.stdin.isatty()):
        return

    def skip(*args: Any, **options: Any) -> None:
        warnings.warn(f"breakpoint() is skipped: it needs launch --debug {worker}", stacklevel=2)

    sys.breakpointhook = skip


FORMAT = "%(levelname)s %(name)s: %(message)s"


def set_log_level(level: str) -> None:
    """Writes records of this level and above to standard error, each with its level.

    The handler is `logging.lastResort`, which Python uses only while no other handler exists. A handler that
    the user's code adds, for example by `logging.basicConfig`, replaces it.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.lastResort = handler
    logging.getLogger().setLevel(level.upper())


if __name__ == "__main__":
    faulthandler.enable()  # the fork server does the same for its workers
    process.register_stacks()
    if is_in_job():
        shield()
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread of gloo that outlives the interpreter may abort the process at its exit
