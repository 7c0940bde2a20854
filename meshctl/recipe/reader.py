"""Turns a composed tree into a `Recipe`: checks that every key is known and every value has the right type.

All errors are reported in one pass. A wrong value is replaced by an unknown one (0 or empty), so that rules
do not report it again. `field_types.py` reads single values. This module checks which keys may occur
together, and creates the classes of `model.py`. Values are compared with each other only in `rules/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic
from meshctl.recipe import model
from meshctl.recipe.compose.yaml_tree import KeyPath, Node
from meshctl.recipe.field_types import NAME, FieldReader, Section, SomeStages, is_run_name
from meshctl.recipe.fields import (
    BLOCK,
    CALL,
    COMPONENT,
    GROUP,
    INNER,
    INPUT,
    MODEL_SIZES,
    POOL,
    PROGRAM_KEYS,
    RECIPE,
    SYNC,
)
from meshctl.recipe.model import Block, DispatchWords, Input, Stage
from meshctl.run.directory import EngineChoice
from meshctl.run.settings import Best, Checkpoint, Elastic, Restarts, Run, Stop, Trace, Track
from meshctl.topology.sizes import SIZES


@dataclass(frozen=True)
class Read:
    recipe: model.Recipe
    found: tuple[Diagnostic, ...]
    wrong: frozenset[KeyPath]
    """The key paths of reported values. Rules that need these values report nothing."""

    @cached_property
    def _above_wrong(self) -> frozenset[KeyPath]:
        return frozenset(bad[:length] for bad in self.wrong for length in range(len(bad)))

    def is_known(self, *path: str) -> bool:
        """Returns whether no diagnostic is about a value or a mapping that contains it."""
        return not any(path[:length] in self.wrong for length in range(len(path) + 1))

    def is_valid(self, *path: str) -> bool:
        """Returns whether no diagnostic is about a value, a part of it, or a mapping that contains it."""
        return path not in self._above_wrong and self.is_known(*path)


def read(root: Node, stem: str, wrong: Iterable[KeyPath] = ()) -> Read:
    """Returns the recipe in a tree. `stem` is its name if the tree has none. `wrong` are the key paths of
    values that have been reported already."""
    reader = _RecipeReader(wrong=set(wrong))
    recipe = reader.recipe(root, stem)
    return Read(recipe, tuple(reader.found), frozenset(reader.wrong))


class BlockStages(NamedTuple):
    """A block with its stages, by full name."""

    block: Block
    stages: Mapping[str, Stage]


class _RecipeReader(FieldReader):
    def recipe(self, root: Node, stem: str) -> model.Recipe:
        values = self.section(root, (), RECIPE)
        name = values["name"] if root.get("name") else stem
        cluster, run, pipeline = values["cluster"], values["run"], values["pipeline"] or {}
        blocks = {name: one for name, one in pipeline.items() if isinstance(one, BlockStages)}
        stages = [blocks[name].stages if name in blocks else {name: one} for name, one in pipeline.items()]
        return model.Recipe(
            name=name if is_run_name(name) else "recipe",
            seed=values["seed"],
            cluster=_cluster(cluster) if cluster else model.Cluster(),
            groups=values["groups"] or {},
            components=values["components"] or {},
            pipeline={name: stage for some in stages for name, stage in some.items()},
            blocks={name: one.block for name, one in blocks.items()},
            run=_run(run) if run else Run(),
            engine=values["engine"] or EngineChoice(),
        )

    def build(self, section: Section, name: str, node: Node, path: KeyPath) -> Any:
        """Returns one group, component, stage, node pool or input; the values of another section by key."""
        builders = {
            "group": self.group,
            "component": self.component,
            "stage": self.stage,
            "inner": self.inner,
            "pool": self.pool,
            "input": self.parameter,
        }
        builder = builders.get(section.name)
        return builder(name, node, path) if builder else super().build(section, name, node, path)

    # Nodes and groups

    def pool(self, name: str, node: Node, path: KeyPath) -> model.NodePool:
        return model.NodePool(name, **self.section(node, path, POOL))

    def group(self, name: str, node: Node, path: KeyPath) -> model.DeviceGroup:
        values = self.section(node, path, GROUP, without=() if node.get("program") else PROGRAM_KEYS)
        program = values.pop("program")
        arguments = {key: values.pop(key) for key in PROGRAM_KEYS if key in values}
        is_known = node.get("program") is None and (*path, "program") not in self.wrong
        for key in PROGRAM_KEYS if is_known else ():
            if (item := node.get(key)) is not None:
                message = f"`{key}` is for a program, and this group has no `program`"
                help = "add `program:`, or move `args` to a component" if key == "args" else "add `program:`"
                self.report((*path, key), "MC101", message, item.key or item.span, help=help)
        if program is not None:
            program = model.Program(**program, **arguments)
        return model.DeviceGroup(name=name, program=program, **values)

    # Components

    def component(self, name: str, node: Node, path: KeyPath) -> model.Component:
        values = self.section(node, path, COMPONENT)
        target, layout, sizes = values.pop("_target_"), values.pop("parallel"), values.pop("model")
        return model.Component(
            name=name,
            target=target,
            group=values["group"],
            parallel=_layout(node, layout) if isinstance(layout, dict) else layout or model.Sizes(),
            args=values["args"] or {},
            frozen=values["frozen"],
            model=_model(sizes) if isinstance(sizes, dict) else model.Model(sizes or ""),
        )

    # Stages

    def stage(self, name: str, node: Node, path: KeyPath) -> model.Stage | BlockStages:
        call, sync = node.get("call"), node.get("sync")
        loop = node.get("repeat") or node.get("stages")
        kinds = [kind for kind in (call, sync, loop) if kind is not None]
        if len(kinds) > 1:
            first, second, *_ = kinds
            other = (first.key or first.span).with_word("and here")
            what = "a stage must have only one of `call`, `sync` and `repeat`"
            self.report(path, "MC102", what, second.key or second.span, other)
        elif call is not None:
            return self.call(name, node, path)
        elif sync is not None:
            return self.sync(name, node, path)
        elif loop is not None:
            return self.block(name, node, path)
        elif not self.has_wrong_key(path):
            help = "write `call: COMPONENT.METHOD`, or `sync: COMPONENT` and `to: COMPONENT`"
            message = f"stage `{name}` needs `call` or `sync`"
            self.report(path, "MC103", message, node.key or node.span, help=help, missing=True)
        return model.Stage(name, kind="")

    def block(self, name: str, node: Node, path: KeyPath) -> BlockStages:
        """Reads a block, whose stage `exam` is the stage `NAME.exam` of the pipeline."""
        values = self.section(node, path, BLOCK)
        repeat, stages = values["repeat"] or {}, values["stages"] or {}
        if (written := node.get("repeat")) is not None and written.is_mapping:
            self.check_form(written, (*path, "repeat"))
        if not stages and node.get("stages") is not None and (*path, "stages") not in self.wrong:
            span = node.key or node.span
            self.report((*path, "stages"), "MC103", f"block `{name}` has no stages", span, missing=True)
        full = {inner: f"{name}.{inner}" for inner in stages}
        until, over = repeat.get("until", ""), repeat.get("over", "")
        renamed = [_renamed(stage, full) for stage in stages.values()]
        taken = [other for stage in renamed for other in (*stage.takes, *stage.after)] + [over] * bool(over)
        times = {"every": values["every"], "when": values["when"]}
        times["outside"] = tuple(dict.fromkeys(other for other in taken if other not in full.values()))
        block = Block(
            name,
            tuple(full.values()),
            full.get(until, until),
            repeat.get("times", 1),
            over,
            repeat.get("size", 0),
            repeat.get("seed", 0),
            values["after"],
            repeat.get("take", 0),
            repeat.get("ahead", 0),
            repeat.get("late", 0),
        )
        if block.take:  # a rank may have no pass; a step takes as many samples of the source as passes
            free = [
                replace(
                    one, dispatch=replace(one.dispatch, allow_empty=True), execute="all", collect="flatten"
                )
                for one in renamed
            ]
            renamed = [replace(one, samples=block.take) if one.is_source else one for one in free]
        return BlockStages(block, {one.name: replace(one, block=name, **times) for one in renamed})

    def check_form(self, repeat: Node, path: KeyPath) -> None:
        """Reports a `repeat` that has none of its three forms."""
        until, over, take = repeat.get("until"), repeat.get("over"), repeat.get("take")
        rounds = ["times", "over", "size", "seed"] + ["until"] * (take is not None)
        others = [item for key, item in repeat.items() if key in rounds]
        of_takes = [item for key, item in repeat.items() if key in ("ahead", "late")]
        if take is not None and others:
            message, span = "a block with `take` has no rounds", others[0]
            other = (take.key or take.span).with_word("passes of their own pace")
            self.report(path, "MC570", message, span.key or span.span, other)
            return
        if take is not None:
            return
        if of_takes:
            message, span = "`ahead` and `late` are for a block with `take`", of_takes[0]
            help = "write {take: SAMPLES, ahead: 1}"
            self.report(path, "MC103", message, span.key or span.span, help=help, missing=True)
            return
        if until is not None and others:
            message, span = "a block runs `until` its source ends, or `over` a stage's value", others[0]
            other = (until.key or until.span).with_word("and here")
            self.report(path, "MC570", message, span.key or span.span, other)
        elif until is None and (over is None or repeat.get("size") is None) and not self.has_wrong_key(path):
            lacking = "`until`, `take`, or `over` and `size`" if not others else "`over` and `size`"
            message = f"`repeat` needs {lacking}"
            help = "write {until: SOURCE}, {over: STAGE, size: SAMPLES}, or {take: SAMPLES}"
            self.report(path, "MC103", message, repeat.key or repeat.span, help=help, missing=True)

    def inner(self, name: str, node: Node, path: KeyPath) -> model.Stage:
        """Reads a stage of a block: a call, in every pass."""
        if node.get("call") is not None:
            return self.call(name, node, path, INNER)
        if not self.has_wrong_key(path):
            message, help = f"stage `{name}` needs `call`", "`call: COMPONENT.METHOD`"
            self.report(path, "MC103", message, node.key or node.span, help=help, missing=True)
        return model.Stage(name, kind="")

    def has_wrong_key(self, path: KeyPath) -> bool:
        """Returns whether a mapping or one of its keys was reported."""
        return any(bad[: len(path)] == path for bad in self.wrong)

    def call(self, name: str, node: Node, path: KeyPath, section: Section = CALL) -> model.Stage:
        values = self.section(node, path, section)
        component, method = self.endpoint(values.pop("call"), node, path)
        inputs, dispatch = values.pop("in"), values.pop("dispatch")
        stated = node.get("in")
        is_empty = stated is not None and stated.is_list and not stated.value
        return model.Stage(
            name=name,
            component=component,
            method=method,
            inputs=inputs,
            is_without_data=is_empty,
            dispatch=_dispatch(dispatch) or model.DispatchWords(),
            **values,
        )

    def endpoint(self, text: str, node: Node, path: KeyPath) -> tuple[str, str]:
        """Returns the component and the method of `call`."""
        component, dot, method = text.rpartition(".")
        if ("components", component) in self.wrong:
            self.wrong.add((*path, "call"))  # the component's name was reported at the component
        elif text and not (dot and NAME.fullmatch(component) and method.isidentifier()):
            self.wrong.add((*path, "call"))  # a rule reports it, with the endpoints of the components
            return "", ""
        return component, method

    def sync(self, name: str, node: Node, path: KeyPath) -> model.Stage:
        values = self.section(node, path, SYNC)
        source, _, part = values.pop("sync").partition(".")
        target, _, loader = values.pop("to").partition(".")
        return model.Stage(
            name=name,
            kind="sync",
            component=source,
            method=part or "weights",
            to=target,
            to_method=loader or f"load_{part or 'weights'}",
            **values,
        )

    def parameter(self, name: str, node: Node, path: KeyPath) -> model.Input:
        """Reads `scores: scored` or `scores: {from: scored, dispatch: all}`. `name` is empty for the only
        input of a call."""
        if name and not name.isidentifier():
            self.report(path, "MC102", f"`{name}` is not a valid name of a parameter", node.key or node.span)
        if not node.is_mapping:
            return model.Input(SomeStages().read(self, node, path) or (), name)
        values = self.section(node, path, INPUT)
        return model.Input(values["from"], name, _dispatch(values["dispatch"]))


# Sections as classes of `model.py`


def _cluster(values: Mapping[str, Any]) -> model.Cluster:
    nodes, others = values["nodes"], dict(values)
    if isinstance(nodes, dict):
        others["nodes_by_pool"] = tuple(nodes.values())
        others["nodes"] = sum(pool.count for pool in nodes.values())
    return model.Cluster(**others)


def _layout(component: Node, values: Mapping[str, Any]) -> model.Sizes:
    """Returns the sizes in the order of the file."""
    written = component.get("parallel")
    sizes = [(key, values[key]) for key, _ in written.items() if key in SIZES] if written else []
    given = tuple((key, size) for key, size in sizes if size)
    return model.Sizes(given, values["order"], values["sequence_parallel"])


def _model(values: Mapping[str, Any]) -> model.Model:
    sizes = tuple((key, values[key]) for key in MODEL_SIZES if values[key])
    return model.Model(values["config"], sizes)


def _dispatch(value: Mapping[str, Any] | str | None) -> model.DispatchWords | None:
    if value is None:
        return None
    values = {"mode": value} if isinstance(value, str) else value
    return model.DispatchWords(**{**values, "mode": values["mode"] or None})


def _run(values: Mapping[str, Any]) -> Run:
    stop, logs, trace = values["stop"], values["logs"], values["trace"]
    restarts = values["restarts"] and Restarts(**values["restarts"])
    own = {
        "checkpoint": _checkpoint(values["checkpoint"]),
        "stop": stop and Stop(**stop),
        "restarts": restarts if restarts and restarts.times else None,
        "elastic": tuple(Elastic(name, **given) for name, given in (values["elastic"] or {}).items()),
        "log_keep": logs["keep"] if logs else 0,
        "trace": Trace(**trace) if trace and trace["steps"] else None,
        "track": tuple(Track(name, options) for name, options in values["track"]),
    }
    return Run(**{**{key: value for key, value in values.items() if key != "logs"}, **own})


def _checkpoint(values: Mapping[str, Any] | None) -> Checkpoint | None:
    if not values:
        return None
    best, every = values["best"], values["every"]
    times = {"every": 0, "seconds": every} if isinstance(every, float) else {"every": every}
    own = {**times, "best": best and Best(**best), "is_async": values["async"]}
    return Checkpoint(**{**{key: value for key, value in values.items() if key != "async"}, **own})


def _renamed(stage: Stage, full: Mapping[str, str]) -> Stage:
    """Returns a stage with its full name, and with the full names of the stages of its block to which it
    refers."""

    def names(some: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(full.get(name, name) for name in some)

    def dispatch(words: DispatchWords) -> DispatchWords:
        return replace(words, home=full.get(words.home, words.home))

    def given(one: Input) -> Input:
        own = None if one.dispatch is None else dispatch(one.dispatch)
        return replace(one, stages=names(one.stages), dispatch=own)

    return replace(
        stage,
        name=full[stage.name],
        inputs=tuple(map(given, stage.inputs)),
        dispatch=dispatch(stage.dispatch),
        after=names(stage.after),
    )
