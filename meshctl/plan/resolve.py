"""A checked recipe -> the plan: every name a placed thing, every `auto` a number, every input a route.

`resolve` never fails on a recipe that the rules accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, Protocol, cast

from meshctl.plan.model import Checkpoint, Component, Group, Input, Plan, Program, Run, Stage
from meshctl.recipe import model as said
from meshctl.recipe.meshes import mesh_of
from meshctl.topology.allocation import allocate
from meshctl.topology.modes import Route

DeviceType = Literal["cuda", "npu", "mps", "cpu"]


class Words(Protocol):
    """What a method's decorator says."""

    @property
    def dispatch(self) -> str: ...
    @property
    def collect(self) -> str: ...
    @property
    def execute(self) -> str: ...
    @property
    def unread(self) -> str:
        """The one of them that is no literal; empty if all are."""


class Defaults:
    """The words of a method whose source could not be read."""

    dispatch, collect, execute, unread = "slice_dp", "flatten", "all", ""


def resolve(recipe: said.Recipe, endpoints: Mapping[str, Mapping[str, Words]]) -> Plan:
    """The plan of a recipe; `endpoints` are component -> method -> what its decorator says."""
    allocation = allocate(recipe.groups, recipe.cluster)
    stages = tuple(_stage(stage, endpoints) for stage in in_order(recipe))
    routes = tuple(_routes(stages))
    return Plan(
        name=recipe.name,
        seed=recipe.seed,
        cluster=allocation.cluster,
        groups=tuple(_groups(recipe, allocation.devices)),
        components=tuple(
            _component(recipe, component, endpoints.get(component.name, {}))
            for component in recipe.components.values()
        ),
        stages=stages,
        routes=routes,
        run=_run(recipe.run, routes),
    )


def in_order(recipe: said.Recipe) -> list[said.Stage]:
    """Stages as written, except that one comes after those it takes and those it says `after`."""
    left, placed = dict(recipe.pipeline), list[said.Stage]()
    while left:
        ready = next(
            stage
            for stage in left.values()
            if not any(before in left for before in (*stage.takes, *stage.after))
        )
        placed.append(left.pop(ready.name))
    return placed


def _groups(recipe: said.Recipe, devices: Mapping[str, tuple[tuple[int, int], ...]]) -> Iterator[Group]:
    """In written order, with places that run on over all of them."""
    first_place = 0
    for group in recipe.groups.values():
        yield Group(
            name=group.name,
            device_type=cast(DeviceType, group.device_type),
            workers=group.workers,
            first_place=first_place,
            devices=devices[group.name],
            gpus_per_worker=group.gpus_per_worker,
            visible_devices=group.visible_devices,
            env=group.env,
            colocate=group.colocate,
            program=_program(group.program) if group.program else None,
        )
        first_place += group.workers


def _program(program: said.Program) -> Program:
    start = ("-m", program.module) if program.module else (program.script,)
    return Program((*start, *program.args), program.cwd, program.python, program.service)


def _component(recipe: said.Recipe, component: said.Component, endpoints: Mapping[str, Words]) -> Component:
    mesh, calls = (
        mesh_of(recipe, component),
        [stage for stage in recipe.pipeline.values() if stage.component == component.name],
    )
    declared = {
        stage.method: (words.dispatch, words.collect, words.execute)
        for stage in calls
        if (words := endpoints.get(stage.method)) and not _says(stage, words.unread)
    }
    return Component(
        component.name, component.target, component.group, mesh, component.args, component.frozen, declared
    )


def _says(stage: said.Stage, word: str) -> bool:
    """Whether a stage itself says a word that its method's decorator leaves unread, so that there is nothing
    to compare."""
    return bool(
        {"dispatch": stage.dispatch.mode, "collect": stage.collect, "execute": stage.execute}.get(word)
    )


def _stage(stage: said.Stage, endpoints: Mapping[str, Mapping[str, Words]]) -> Stage:
    when = cast(Literal["", "start", "end", "checkpoint"], stage.when)
    if stage.kind == "sync":
        return Stage(
            name=stage.name,
            kind="sync",
            component=stage.component,
            method=stage.method,
            every=stage.every,
            when=when,
            to=stage.to,
            to_method=stage.to_method,
            lag=stage.lag,
            checksum=stage.checksum,
        )
    words: Words = endpoints.get(stage.component, {}).get(stage.method) or Defaults()
    return Stage(
        name=stage.name,
        kind="call",
        component=stage.component,
        method=stage.method,
        inputs=tuple(
            Input(
                given.stages, given.parameter, (given.dispatch or stage.dispatch).with_default(words.dispatch)
            )
            for given in stage.inputs
        ),
        execute=cast(Literal["all", "first", "peer"], stage.execute or words.execute),
        collect=stage.collect or words.collect,
        samples=stage.samples,
        sample_bytes=stage.sample_bytes,
        every=stage.every,
        when=when,
    )


def _routes(stages: tuple[Stage, ...]) -> Iterator[Route]:
    """One per stage that is taken and parameter that takes it; a sync's leads from itself to itself."""
    collects = {stage.name: stage.collect for stage in stages}
    for stage in stages:
        if stage.kind == "sync":
            yield Route(stage.name, stage.name, stage.name, kind="weights", slots=stage.lag + 2)
        for given in stage.inputs:
            for source in given.stages:
                name = said.route_name(source, stage.name, given.parameter if len(stage.inputs) > 1 else "")
                yield Route(
                    name,
                    source,
                    stage.name,
                    given.parameter,
                    collect=collects[source],
                    dispatch=given.dispatch,
                )


def _run(run: said.Run, routes: tuple[Route, ...]) -> Run:
    checkpoint = Checkpoint(run.checkpoint.every, run.checkpoint.keep) if run.checkpoint else None
    record = tuple(route.name for route in routes if {route.name, route.source} & {*run.record})
    return Run(run.steps, run.epochs, run.dir, checkpoint, run.grace, run.show, record, run.patience)
