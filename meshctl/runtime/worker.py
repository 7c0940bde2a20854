"""One process of a components' group: from its environment to its last step.

    python -m meshctl.runtime.worker        with torchrun's variables and MESHCTL_PLAN, MESHCTL_GROUP,
                                            MESHCTL_HEAD, MESHCTL_ATTEMPT

It knows the plan and never the recipe. Whatever goes wrong is translated here, once, into a `fault` event
with group, rank, stage and step; the traceback goes to the log, too.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Plan
from meshctl.run.directory import Recorded, RunDir
from meshctl.run.events import Journal
from meshctl.run.shutdown import StopAgreement
from meshctl.runtime.component import Component, ComponentError
from meshctl.runtime.errors import StageError
from meshctl.runtime.instantiate import TargetError, extend_path, make
from meshctl.runtime.loop import CheckpointHook, Loop, LoopContext
from meshctl.runtime.rank_context import RankContext
from meshctl.runtime.routes.record import Recorder
from meshctl.runtime.seeding import seed_all
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import ConnectError, PeerLost
from meshctl.runtime.user_modes import ModeError
from meshctl.runtime.world import connect, connect_all, devices_of, join, ranks_by_node
from meshctl.text.env_refs import names
from meshctl.text.redaction import is_distinctive, literals, redact, redact_traceback, secret_places

SAID = (StageError, TargetError, ComponentError, ConnectError, ModeError)
"""Errors whose message stands for itself: no traceback helps."""
LOST = (PeerLost, dist.DistNetworkError, dist.DistStoreError, ConnectionResetError, BrokenPipeError)
"""Errors of a victim: the fault is elsewhere."""


@dataclass(frozen=True)
class Told:
    """What the environment tells a worker."""

    plan: Path
    group: str
    rank: int
    head: str
    attempt: int

    @classmethod
    def by(cls, environ: Mapping[str, str]) -> Told:
        return cls(
            Path(environ["MESHCTL_PLAN"]),
            environ["MESHCTL_GROUP"],
            int(environ["RANK"]),
            environ["MESHCTL_HEAD"],
            int(environ.get("MESHCTL_ATTEMPT", "0")),
        )


def main(environ: Mapping[str, str] | None = None) -> int:
    """The exit code: 0 when its last step is done, 1 after a fault that it has told."""
    told = Told.by(os.environ if environ is None else environ)
    run = RunDir.of_plan(told.plan)
    journal = Journal(run.journal(f"{told.group}-{told.rank}"), told.group, told.rank)
    worker = Worker(told, run, journal)
    try:
        worker.work()
    except (Exception, SystemExit) as error:  # the one border: whatever a component raises becomes an event
        worker.tell(error)
        return 1
    return 0


class Worker:
    def __init__(self, told: Told, run: RunDir, journal: Journal) -> None:
        self._told, self._run, self._journal = told, run, journal
        self._loop: Loop | None = None
        self._transport: DataPlane | None = None
        self._plan: Plan | None = None
        self._doing = "setup"

    def work(self) -> None:
        told, run = self._told, self._run
        plan, start = Plan.read(told.plan), run.read_start()
        self._plan = plan
        group = plan.group(told.group)
        place = group.first_place + told.rank
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        store, listener = connect(told.head, told.attempt), connect(told.head, told.attempt)
        join(store, group, told.rank)
        extend_path(start.path)
        transport = self._transport = connect_all(plan, place, store, devices_of(group)[0])
        speaking = [
            group.first_place + rank
            for group in plan.groups
            if not group.program
            for rank in range(group.workers)
        ]
        ending = StopAgreement(
            dist.PrefixStore("ending", store),
            dist.PrefixStore("ending", listener),
            place,
            speaking,
            transport.notify,
        )
        components = self._components(plan, start.path, ending, transport)
        step, given = (
            self._resume(plan, components, start.resume)
            if start.resume
            else (start.after, given_after(plan, start.after))
        )
        save = self._saver(plan, components)
        recorder = Recorder(plan.run.record, run.recorded) if plan.run.record else None
        recorded = {route: Recorded(Path(folder)) for route, folder in start.replay.items()}
        context = LoopContext(
            plan,
            told.group,
            told.rank,
            components,
            transport,
            ending,
            self._journal.say,
            save,
            recorder,
            recorded,
        )
        self._loop = Loop(context)
        self._doing = "the first sync"
        last = self._loop.run(step, given)
        self._doing = "close"
        for component in components.values():
            component.close()
        self._journal.say("done", step=last)
        transport.close()
        dist.destroy_process_group()

    def _components(
        self, plan: Plan, path: tuple[str, ...], ending: StopAgreement, transport: DataPlane
    ) -> dict[str, Component]:
        """The group's components, made and set up in the order of the recipe: the same on all ranks, so their
        collectives meet."""
        made = {}
        devices = devices_of(plan.group(self._told.group))
        if devices[0].type == "cuda":
            torch.cuda.set_device(devices[0])
        for placed in plan.components_of(self._told.group):
            self._doing = f"setup of `{placed.name}`"
            methods = [
                stage.method
                for stage in plan.stages
                if stage.kind == "call" and stage.component == placed.name
            ]
            seed_all(plan.seed, placed.name, device=devices[0].type)  # replicas begin alike
            context = RankContext(
                placed.name,
                placed.mesh.at(self._told.rank),
                self._told.rank,
                devices[0],
                devices,
                stop=ending.ask,
                nodes=partial(ranks_by_node, plan, self._told.group),
                alloc=transport.alloc,
            )
            component = make(placed, methods, path, context)
            component.setup()
            made[placed.name] = component
        return made

    def _resume(
        self, plan: Plan, components: Mapping[str, Component], folder: str
    ) -> tuple[int, dict[str, int]]:
        """Loads every component's state; gives the step, and the samples that each source had given by then."""
        from meshctl.runtime import checkpoint

        self._doing = "resume"
        for name, component in stateful(plan, components).items():
            state = component.state_dict()
            checkpoint.load(Path(folder), name, state)
            component.load_state_dict(state)
        return int(Path(folder).name.removeprefix("step-")), checkpoint.load_positions(Path(folder))

    def _saver(self, plan: Plan, components: Mapping[str, Component]) -> CheckpointHook:
        if plan.run.checkpoint is None:
            return lambda step, given: None
        from meshctl.runtime import checkpoint  # half a second, which a run that saves nothing need not spend

        kept = stateful(plan, components)
        mine = [stage.name for stage in plan.stages if stage.is_source and stage.component in components]

        def save(step: int, given: Mapping[str, int]) -> None:
            begin, folder = time.perf_counter(), self._run.checkpoint(step)
            for name, component in kept.items():
                checkpoint.save(folder, name, component.state_dict())
            if not self._told.rank:
                checkpoint.save_position(folder, self._told.group, {name: given[name] for name in mine})
            self._journal.say("saved", step=step, seconds=time.perf_counter() - begin)

        return save

    def tell(self, error: Exception | SystemExit) -> None:
        """Says the fault, with where it is; the log gets the whole traceback."""
        stage, step = self._loop.at if self._loop else ("", None)
        known = secrets_of(self._plan, self._told.group, os.environ) if self._plan else ()
        sys.stderr.write(redact_traceback("".join(traceback.format_exception(error)), known))
        said = isinstance(error, (*SAID, PeerLost))
        text = (
            ""
            if said
            else "".join(traceback.format_exception(error.with_traceback(below_us(error.__traceback__))))
        )
        line = str(error) if said else f"{type(error).__name__}: {error}"
        line, text = redact(line, known), redact_traceback(text, known)
        doing = "" if stage else self._doing
        lost = error.job_rank if isinstance(error, PeerLost) else None
        peer: dict[str, Any] = {"peer": self._plan.at_place(lost)} if self._plan and lost is not None else {}
        self._journal.say(
            "fault",
            step=step,
            stage=stage,
            error=line,
            traceback=text,
            lost=is_lost(error),
            doing=doing,
            **peer,
        )
        if self._transport and isinstance(error, PeerLost):
            with suppress(OSError):  # whoever does not hear it finds out
                self._transport.announce_loss(error)


def secrets_of(plan: Plan, group: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What an error's message must not tell of what a group was given: the run's directory may be read by
    others."""
    given = [dict(component.args) for component in plan.components_of(group)]
    given.append(
        {name: environ.get(name) if value is None else value for name, value in plan.group(group).env}
    )
    texts = [str(value) for _, value in secret_places(given)]
    found = [environ.get(name, "") for text in texts for name in names(text)]
    return tuple(
        sorted(
            {
                text
                for text in (*found, *(one for text in texts for one in literals(text)))
                if is_distinctive(text)
            },
            key=len,
        )[::-1]
    )


def below_us(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the user's code; all of it where the fault is ours."""
    ours, inner = str(PACKAGE_DIR), trace
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(ours):
        inner = inner.tb_next
    return inner or trace


def given_after(plan: Plan, step: int) -> dict[str, int]:
    """The samples that sources have given by a step, where a replay begins behind it and nobody has counted
    them."""
    return {
        stage.name: step // stage.every * stage.samples
        for stage in plan.stages
        if stage.is_source and not stage.when
    }


@runtime_checkable
class Stateful(Protocol):
    """A component with something to keep."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


def stateful(plan: Plan, components: Mapping[str, Component]) -> dict[str, Stateful]:
    """Those that a checkpoint holds, in the order of the recipe."""
    kept = {name: component for name, component in components.items() if not plan.component(name).frozen}
    return {name: component for name, component in kept.items() if isinstance(component, Stateful)}


def is_lost(error: BaseException) -> bool:
    """Whether an error only says that a peer is gone: gloo has no class of its own for that."""
    if isinstance(error, LOST) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
        return True
    return error.__cause__ is not None and is_lost(error.__cause__)


if __name__ == "__main__":
    faulthandler.enable()  # as the fork server does for the workers that it calls
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread of gloo's that outlives the interpreter may abort the process at its exit
