"""Turns a composed tree into a `Recipe`: checks that every key is known and every value has the right type.

All errors are reported in one pass. A wrong value is replaced by an unknown one (0 or empty), so that rules
do not report it again. `field_reader.py` reads single values. This module checks which keys may occur
together, and creates the classes of `model.py`. Values are compared with each other only in `rules/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from meshctl.diagnostics import Diagnostic
from meshctl.recipe import model
from meshctl.recipe.compose.yaml_tree import KeyPath, Node
from meshctl.recipe.field_reader import FieldReader
from meshctl.recipe.field_types import NAME, Texts, is_run_name
from meshctl.recipe.fields import (
    CALL,
    COMPONENT,
    GROUP,
    INPUT,
    MODEL_SIZES,
    PROGRAM_KEYS,
    RECIPE,
    SYNC,
)
from meshctl.recipe.section_types import Section
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
        """Whether no diagnostic is about a value or a mapping that contains it."""
        return not any(path[:length] in self.wrong for length in range(len(path) + 1))

    def is_valid(self, *path: str) -> bool:
        """Whether no diagnostic is about a value, a part of it, or a mapping that contains it."""
        return path not in self._above_wrong and self.is_known(*path)


def read(root: Node, stem: str, wrong: Iterable[KeyPath] = ()) -> Read:
    """Returns the recipe in a tree. `stem` is its name if the tree has none. `wrong` are the key paths of
    values that have been reported already."""
    reader = _RecipeReader(wrong=set(wrong))
    recipe = reader.recipe(root, stem)
    return Read(recipe, tuple(reader.found), frozenset(reader.wrong))


class _RecipeReader(FieldReader):
    def recipe(self, root: Node, stem: str) -> model.Recipe:
        values = self.section(root, (), RECIPE)
        name = values["name"] if root.get("name") else stem
        cluster, run = values["cluster"], values["run"]
        return model.Recipe(
            name=name if is_run_name(name) else "recipe",
            seed=values["seed"],
            cluster=model.Cluster(**cluster) if cluster else model.Cluster(),
            groups=values["groups"] or {},
            components=values["components"] or {},
            pipeline=values["pipeline"] or {},
            run=_run(run) if run else model.Run(),
        )

    def build(self, section: Section, name: str, node: Node, path: KeyPath) -> Any:
        """Returns one group, component, stage or input."""
        builders = {"group": self.group, "component": self.component, "stage": self.stage}
        return builders.get(section.name, self.parameter)(name, node, path)

    # Groups

    def group(self, name: str, node: Node, path: KeyPath) -> model.DeviceGroup:
        values = self.section(node, path, GROUP, without=() if node.get("program") else PROGRAM_KEYS)
        program = values.pop("program")
        arguments = {key: values.pop(key) for key in PROGRAM_KEYS if key in values}
        if node.get("program") is None:
            self.check_no_program_keys(node, path)
        elif program is not None:
            program = model.Program(**program, **arguments)
        return model.DeviceGroup(name=name, program=program, **values)

    def check_no_program_keys(self, node: Node, path: KeyPath) -> None:
        for key in PROGRAM_KEYS:
            if (item := node.get(key)) is not None:
                message = f"`{key}` is a key of a program, and this group has none"
                help = "write `program:` too, or give `args` to a component"
                self.report((*path, key), "MC101", message, item.key or item.span, help=help)

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

    def stage(self, name: str, node: Node, path: KeyPath) -> model.Stage:
        call, sync = node.get("call"), node.get("sync")
        loop = next((item for key, item in node.items() if key in ("repeat", "stages")), None)
        if loop is not None:
            message = "`repeat` (a loop inside a step) is not supported yet"
            self.report(path, "MC104", message, loop.key or loop.span)
        elif call is not None and sync is not None:
            other = (call.key or call.span).with_word("and here")
            self.report(path, "MC102", "a stage is a `call` or a `sync`", sync.key or sync.span, other)
        elif call is not None:
            return self.call(name, node, path)
        elif sync is not None:
            return self.sync(name, node, path)
        elif not self.has_wrong_key(path):
            help = "`call: COMPONENT.METHOD`, or `sync: COMPONENT, to: COMPONENT`"
            message = f"stage `{name}` needs `call` or `sync`"
            self.report(path, "MC103", message, node.key or node.span, help=help, missing=True)
        return model.Stage(name, kind="")

    def has_wrong_key(self, path: KeyPath) -> bool:
        """Whether a mapping or one of its keys was reported."""
        return any(bad[: len(path)] == path for bad in self.wrong)

    def call(self, name: str, node: Node, path: KeyPath) -> model.Stage:
        values = self.section(node, path, CALL)
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
            self.report(path, "MC102", f"`{name}` cannot name a parameter", node.key or node.span)
        if not node.is_mapping:
            return model.Input(Texts().read(self, node, path) or (), name)
        values = self.section(node, path, INPUT)
        return model.Input(values["from"], name, _dispatch(values["dispatch"]))


# Sections as classes of `model.py`


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


def _run(values: Mapping[str, Any]) -> model.Run:
    checkpoint = values["checkpoint"]
    return model.Run(**{**values, "checkpoint": model.Checkpoint(**checkpoint) if checkpoint else None})
