"""Turns a composed tree into a `Recipe`: checks that every key is known and every value has the right type.

All that is wrong is reported in one pass. A wrong value is then passed on as "not known" (0, or empty), so
that the rules stay silent about it. Types of single values are read by `field_reader.py`; here are the checks
of fields beside each other, and the classes of `model.py`. No two values are compared: that is the business
of `rules/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from meshctl.diagnostics import Diagnostic
from meshctl.recipe import field_types as types
from meshctl.recipe import model
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, Node, Path, leaves, plain
from meshctl.recipe.field_reader import READERS, FieldReader
from meshctl.recipe.field_types import MAX_NAME
from meshctl.recipe.fields import (
    CALL,
    COMPONENT,
    GROUP,
    INPUT,
    MODEL_SIZES,
    PROGRAM_KEYS,
    RECIPE,
    STAGE,
    SYNC,
    Section,
)
from meshctl.text.english import MAX_LETTERS
from meshctl.topology.sizes import SIZES

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
RUN_NAME = re.compile(r"\w[\w.@+-]*")


@dataclass(frozen=True)
class Read:
    recipe: model.Recipe
    found: tuple[Diagnostic, ...]
    wrong: frozenset[Path]
    """The key paths that diagnostics are about: rules that need their values stay silent."""

    @cached_property
    def _above_wrong(self) -> frozenset[Path]:
        return frozenset(bad[:length] for bad in self.wrong for length in range(len(bad)))

    def is_known(self, *path: str) -> bool:
        """Returns whether nothing was reported about a value or about anything above it."""
        return not any(path[:length] in self.wrong for length in range(len(path) + 1))

    def is_valid(self, *path: str) -> bool:
        """Returns whether nothing was reported about a value or about anything above or below it."""
        return path not in self._above_wrong and self.is_known(*path)


def read(root: Node, stem: str, wrong: Iterable[Path] = ()) -> Read:
    """Returns the recipe of a tree; `stem` is its name if the tree has none. `wrong` are the key paths that
    diagnostics are about already."""
    reader = _RecipeReader(wrong=set(wrong), readers=TYPE_READERS)
    recipe = reader.recipe(root, stem)
    return Read(recipe, tuple(reader.found), frozenset(reader.wrong))


def is_run_name(name: str) -> bool:
    """Returns whether a name can be that of a folder of runs."""
    return RUN_NAME.fullmatch(name) is not None and len(name) <= MAX_NAME


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

    # Groups

    def group(self, name: str, node: Node, path: Path) -> model.DeviceGroup:
        values = self.section(node, path, GROUP, without=() if node.get("program") else PROGRAM_KEYS)
        program = values.pop("program")
        arguments = {key: values.pop(key) for key in PROGRAM_KEYS if key in values}
        if node.get("program") is None:
            self.check_no_program_keys(node, path)
        elif program is not None:
            program = model.Program(**program, **arguments)
        return model.DeviceGroup(name=name, program=program, **values)

    def check_no_program_keys(self, node: Node, path: Path) -> None:
        for key in PROGRAM_KEYS:
            if (item := node.get(key)) is not None:
                message = f"`{key}` belongs to a program, this group has none"
                help = "say `program:` too, or give `args` to a component"
                self.report((*path, key), "MC101", message, item.key or item.span, help=help)

    # Components

    def component(self, name: str, node: Node, path: Path) -> model.Component:
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

    def check_plain_data(self, node: Node, path: Path) -> None:
        """Reports what is no plain data: a `???` in it must still be given, a `_target_` would be code."""
        if node.value == MISSING or node.value is BROKEN:
            self.expected("a value", node, path)
        for key, item in node.items():
            if key == "_target_":
                message = "`args` are plain data, a `_target_` in them is not instantiated"
                help = "let the component build it from plain arguments"
                self.report((*path, key), "MC107", message, item.span, help=help)
            self.check_plain_data(item, (*path, key))
        for index, item in enumerate(node.value if node.is_list else ()):
            self.check_plain_data(item, (*path, str(index)))
        if isinstance(node.value, float) and not abs(node.value) < float("inf"):
            self.expected("a finite number", node, path)
        if type(node.value) in (int, float):
            self.check_octal(node, path)

    # Stages

    def stage(self, name: str, node: Node, path: Path) -> model.Stage:
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
            message = f"stage `{name}` must say what it does"
            self.report(path, "MC103", message, node.key or node.span, help=help, missing=True)
        return model.Stage(name, kind="")

    def has_wrong_key(self, path: Path) -> bool:
        """Returns whether a key of a mapping, or the mapping itself, was reported."""
        return any(bad[: len(path)] == path for bad in self.wrong)

    def call(self, name: str, node: Node, path: Path) -> model.Stage:
        values = self.section(node, path, CALL)
        component, method = self.endpoint(values.pop("call"), node, path)
        inputs, dispatch = values.pop("in"), values.pop("dispatch")
        return model.Stage(
            name=name,
            component=component,
            method=method,
            inputs=inputs,
            dispatch=_dispatch(dispatch) or model.DispatchWords(),
            **values,
        )

    def endpoint(self, text: str, node: Node, path: Path) -> tuple[str, str]:
        """Returns the component and the method of `call`."""
        component, dot, method = text.rpartition(".")
        if ("components", component) in self.wrong:
            self.wrong.add((*path, "call"))  # the name was reported where the component stands
        elif text and not (dot and NAME.fullmatch(component) and method.isidentifier()):
            call = node.get("call")
            self.report((*path, "call"), "MC511", f"`{text}` is not COMPONENT.METHOD", (call or node).span)
            return "", ""
        return component, method

    def sync(self, name: str, node: Node, path: Path) -> model.Stage:
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

    def parameter(self, name: str, node: Node, path: Path) -> model.Input:
        """Reads `scores: scored`, or `scores: {from: scored, dispatch: all}`."""
        if not name.isidentifier():
            self.report(path, "MC102", f"`{name}` cannot name a parameter", node.key or node.span)
        if not node.is_mapping:
            return model.Input(self.read(node, path, types.Texts()) or (), name)
        values = self.section(node, path, INPUT)
        return model.Input(values["from"], name, _dispatch(values["dispatch"]))


# Types whose values are classes of `model.py`, or whose rules need more than the value


def _run_name(reader: _RecipeReader, node: Node, path: Path, type_: types.RunName) -> str | None:
    name: str | None = reader.read(node, path, types.Text())
    if name and not is_run_name(name):
        help = "use letters, digits, `-`" if len(name) <= MAX_NAME else f"use {MAX_NAME} letters or less"
        message = f"`{name[:MAX_LETTERS]}` cannot name a folder of runs"
        reader.report(path, "MC106", message, node.span, help=help)
    return name


def _class_path(reader: _RecipeReader, node: Node, path: Path, type_: types.ClassPath) -> str | None:
    text: str | None = reader.read(node, path, types.Text())
    if text and not CLASS_PATH.fullmatch(text):
        help = "write module.Class, without a path or `.py`"
        reader.report(path, "MC501", f"`{text}` is no dotted path of a class", node.span, help=help)
        return None
    return text


def _script(reader: _RecipeReader, node: Node, path: Path, type_: types.Script) -> dict[str, str] | None:
    """Returns `script` or `module`."""
    script = {} if node.is_mapping else {"script": reader.read(node, path, types.Text()) or ""}
    found = script or reader.section(node, path, type_.section)
    if not any(found.values()) and path not in reader.wrong:
        reader.expected("a script, or {module: NAME}", node, path)
    return found


def _plain_data(
    reader: _RecipeReader, node: Node, path: Path, type_: types.PlainData
) -> dict[str, Any] | None:
    if node.value is None or reader.mapping(node, path) is None:
        return None
    reader.check_plain_data(node, path)
    value = plain(node)
    return value if isinstance(value, dict) else None


def _free_mapping(reader: _RecipeReader, node: Node, path: Path, type_: types.FreeMapping) -> None:
    """Reports every `???`."""
    for found, leaf in leaves(node, path) if reader.mapping(node, path) else ():
        if leaf.value == MISSING:
            reader.expected("a value", leaf, found)


def _inputs(
    reader: _RecipeReader, node: Node, path: Path, type_: types.Inputs
) -> tuple[model.Input, ...] | None:
    is_one_input = node.is_mapping and node.get("from") is not None
    if is_one_input and {key for key, _ in node.items()} <= set(type_.section.keys):
        help = (
            "say which parameter takes it, {batch: {from: STAGE, dispatch: all}}, or say `dispatch` beside "
            "`in`"
        )
        message = "`in` names a stage, or parameters that take stages"
        reader.report(path, "MC102", message, node.span, help=help)
        return None
    if (node.is_list or node.is_mapping) and not node.value:
        reader.report(path, "MC102", "`in` names no stage", node.span, help="leave it out for a source")
        return None
    if node.is_mapping:
        return tuple(reader.parameter(name, item, (*path, name)) for name, item in node.items())
    stages = reader.read(node, path, types.Texts())
    return (model.Input(stages),) if stages else None


def _named(reader: _RecipeReader, node: Node, path: Path, type_: types.Named) -> dict[str, Any] | None:
    """Returns the groups, components or stages by name; an item that is no mapping is reported and left
    out."""
    if reader.mapping(node, path) is None:
        return None
    build = {"group": reader.group, "component": reader.component, "stage": reader.stage}[type_.section.name]
    found = {}
    for name, item in node.items():
        here = (*path, name)
        _check_name(reader, name, item, here)
        if reader.mapping(item, here, _long_form(item, type_.section)):
            found[name] = build(name, item, here)
    return found


def _check_name(reader: _RecipeReader, name: str, item: Node, path: Path) -> None:
    is_reserved = path[0] == "groups" and name.startswith("agent-")
    if is_reserved or not NAME.fullmatch(name):
        message = f"`{name[:MAX_LETTERS]}` cannot be a name"
        help = "a name has letters, digits, `_` and `-`, and begins with a letter"
    elif len(name) > MAX_NAME:
        message, help = f"a name of {len(name)} letters is too long", f"use {MAX_NAME} or less"
    else:
        return
    reader.report(path, "MC106", message, item.key or item.span, help=help)


def _long_form(item: Node, section: Section) -> str:
    """Returns the mapping to write in place of one value."""
    value = item.value
    if section is GROUP and isinstance(value, int) and not isinstance(value, bool):
        return f"write {{ranks: {value}}}"
    if section is COMPONENT and isinstance(value, str) and CLASS_PATH.fullmatch(value):
        return f"write {{_target_: {value}, group: GROUP}}"
    if section is STAGE and isinstance(value, str) and value.count(".") == 1:
        return f"write {{call: {value}}}"
    return ""


TYPE_READERS: Mapping[type[types.Type], Any] = {
    **READERS,
    types.RunName: _run_name,
    types.ClassPath: _class_path,
    types.Script: _script,
    types.PlainData: _plain_data,
    types.FreeMapping: _free_mapping,
    types.Inputs: _inputs,
    types.Named: _named,
}


# Sections as classes of `model.py`


def _layout(component: Node, values: Mapping[str, Any]) -> model.Sizes:
    """Returns the sizes in the order in which they are written."""
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
