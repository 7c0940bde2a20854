"""The mappings of a recipe: fields, sections, and the types of values that contain sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from meshctl.dataclass import dataclass
from meshctl.recipe.compose.folders import files, shipped
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, KeyPath, Node, leaves, plain
from meshctl.recipe.field_types import (
    MAX_NAME,
    NAME,
    OPEN,
    FieldReader,
    Integer,
    Schema,
    Section,
    Text,
    Type,
    Word,
    mapping,
    plain_data,
    ref,
    texts,
    whole,
    words,
)
from meshctl.recipe.scalars import is_whole
from meshctl.text.english import abbreviated

DEFAULTS_ENTRIES = {
    "_self_": "the position of this file among those that it includes",
    "base": "settings that most runs want",
}
CONFIG_GROUP = r"^((override|optional) )*/?"
"""The prefix of a config group in a defaults list."""


@dataclass(frozen=True)
class Script(Type):
    """The path of a script, or a section that names a module."""

    section: Section

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        """Returns {"script": ...} or {"module": ...}."""
        script = {} if node.is_mapping else {"script": Text().read(reader, node, path) or ""}
        found = script or reader.section(node, path, self.section)
        is_reported = any(wrong[: len(path)] == path for wrong in reader.wrong)
        if not any(found.values()) and not is_reported:
            reader.expected("a script, or {module: NAME}", node, path)
        return found

    def schema(self) -> Schema:
        fields = {field.key: {**field.schema(), "minLength": 1} for field in self.section.fields}
        keys = {"minProperties": 1, "properties": fields, "additionalProperties": False}
        return {"type": ["string", "object"], "minLength": 1, **keys}


@dataclass(frozen=True)
class Inputs(Type):
    """A stage, a list of stages, or a mapping of parameters to stages or to sections."""

    section: Section
    """The section of a parameter that is a mapping."""
    empty: ClassVar[Any] = ()

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        is_one_input = node.is_mapping and node.get("from") is not None
        if is_one_input and {key for key, _ in node.items()} <= set(self.section.keys):
            help = "name its parameter, {batch: {from: STAGE, dispatch: all}}, or write"
            help = f"{help} `dispatch` beside `in`"
            message = "`in` must be a stage, a list of stages, or parameters with stages"
            reader.report(path, "MC102", message, node.span, help=help)
            return None
        if node.is_list and not node.value:
            return ()
        if node.is_mapping and not node.value:
            help = "remove it for a source, or write `in: []` for a stage without data"
            reader.report(path, "MC102", "`in` is empty", node.span, help=help)
            return None
        if node.is_mapping:
            items = node.items()
            return tuple(reader.build(self.section, name, item, (*path, name)) for name, item in items)
        one = reader.build(self.section, "", node, path)
        return None if path in reader.wrong else (one,)

    def schema(self) -> Schema:
        parameter = {"anyOf": [{**texts(), "minItems": 1}, ref(self.section.name)]}
        return {
            **texts(),
            "type": ["string", "array", "object"],
            "minProperties": 1,
            "additionalProperties": parameter,
        }


class PlainData(Type):
    """A mapping of plain data of any depth. Null is an empty mapping."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if node.value is None or reader.mapping(node, path) is None:
            return None
        _check_plain_data(reader, node, path)
        value = plain(node)
        return value if isinstance(value, dict) else None

    def schema(self) -> Schema:
        return {"type": ["object", "string", "null"], "pattern": OPEN, **plain_data()}


class ModelConfig(Text):
    """The path of a file, or a mapping of plain data."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        return PlainData().read(reader, node, path) if node.is_mapping else super().read(reader, node, path)

    def schema(self) -> Schema:
        return {"type": ["string", "object"], **plain_data()}


class FreeMapping(Type):
    """A mapping with any content."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> None:
        """Reports every `???`."""
        for found, leaf in leaves(node, path) if reader.mapping(node, path) else ():
            if leaf.value == MISSING:
                reader.expected("a value", leaf, found)

    def schema(self) -> Schema:
        return mapping()


class Defaults(Type):
    """Hydra's defaults list, which is read by composition before the other values."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> None:
        """Does nothing, because composition has read it."""

    def schema(self) -> Schema:
        """Returns the schema of a list whose items are file names or mappings with one `group@package:
        option`."""
        option: Schema = {
            "type": ["string", "number", "boolean", "null", "array"],
            "items": {"type": ["string", "number", "boolean"]},
        }
        choice = {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "propertyNames": {"not": {"pattern": f"{CONFIG_GROUP}hydra(/|@|$)"}},
            "patternProperties": {
                f"{CONFIG_GROUP}layout(@|$)": {"anyOf": [*words(dict(layouts()))["anyOf"], option]}
            },
            "additionalProperties": option,
        }
        known = words(DEFAULTS_ENTRIES)["anyOf"]
        return {"type": "array", "items": {"anyOf": [*known, {"type": "string"}, choice]}}


@dataclass(frozen=True)
class Nested(Type):
    """A section, or a shorthand for it."""

    section: Section
    shorthand: Text | Word | None = None
    """The type of a single value that is allowed instead of the mapping."""
    wanted: str = "a mapping"
    """Description of a valid value in messages."""
    may_be_off: bool = False
    """True if `false` and null mean that the key is left out."""
    example: str = ""
    """A valid value, which is proposed in place of one that is not a mapping."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        """Returns the values of the section, or the value of the shorthand."""
        if node.is_mapping:
            return reader.section(node, path, self.section)
        if self.may_be_off and (node.value is None or node.value is False):
            return None
        is_word = isinstance(self.shorthand, Word)
        if self.shorthand and (is_word or (isinstance(node.value, str) and node.value != MISSING)):
            found = self.shorthand.read(reader, node, path)
            return found if isinstance(found, str) else None
        if self.wanted != "a mapping":
            reader.expected(self.wanted, node, path)
            return None
        example = self.example.replace("STEPS", str(node.value)) if is_whole(node.value) else self.example
        reader.mapping(node, path, f"write {example}" if example else "")
        return None

    def schema(self) -> Schema:
        if isinstance(self.shorthand, Word):
            return {"anyOf": [*self.shorthand.schema()["anyOf"], ref(self.section.name)]}
        if self.may_be_off:
            return {"anyOf": [ref(self.section.name), {"enum": [False, None]}]}
        return ref(self.section.name)


class FirstKey(Nested):
    """A section, or the value of its first key."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if node.is_mapping or node.value is None or isinstance(node.value, bool):
            return super().read(reader, node, path)
        first, *others = self.section.fields
        value = first.type.read(reader, node, path)
        found = {first.key: first.type.empty if value is None else value}
        return {**found, **{field.key: field.value_if_absent for field in others}}

    def schema(self) -> Schema:
        return {"anyOf": [self.section.fields[0].type.schema(), *super().schema()["anyOf"]]}


@dataclass(frozen=True)
class Named(Type):
    """A mapping of names, which users choose, to values of a section."""

    section: Section

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        """Returns the groups, components or stages by name. Reports and skips items that are not mappings."""
        if reader.mapping(node, path) is None:
            return None
        found = {}
        for name, item in node.items():
            here = (*path, name)
            _check_name(reader, name, item, here)
            if reader.mapping(item, here):
                found[name] = reader.build(self.section, name, item, here)
        return found

    def schema(self) -> Schema:
        item, names = ref(self.section.name), f"^{NAME.pattern}$"
        if self.section.name == "stage":  # one without these keys changes that of another file
            for key, kind in (("repeat", "block"), ("sync", "sync"), ("call", "call")):
                item = {"if": {"required": [key]}, "then": ref(kind), "else": item}
        if self.section.name == "group":
            names = f"^(?!agent-){NAME.pattern}$"
        return mapping(propertyNames={"pattern": names, "maxLength": MAX_NAME}, additionalProperties=item)


class CountOrNamed(Named):
    """A number, or a mapping of names to values of a section."""

    empty: ClassVar[Any] = 0

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if node.is_list:
            help = f"write {len(node.value)}; names of hosts go under `engine.ssh.hosts`"
            reader.expected("a number", node, path, help)
            return None
        is_named = node.is_mapping and node.value
        return super().read(reader, node, path) if is_named else Integer(1).read(reader, node, path)

    def schema(self) -> Schema:
        by_name = super().schema()
        return {**by_name, **whole(1), "type": ["integer", "object", "string"], "minProperties": 1}


def _check_plain_data(reader: FieldReader, node: Node, path: KeyPath) -> None:
    """Reports values that are not plain data: `???`, which is not set yet, and `_target_`, which would be
    code."""
    if node.value == MISSING or node.value is BROKEN:
        reader.expected("a value", node, path)
    for key, item in node.items():
        if key == "_target_":
            message = "`args` must be plain data; a `_target_` in them is not instantiated"
            help = "let the component build it from plain arguments"
            reader.report((*path, key), "MC107", message, item.span, help=help)
        _check_plain_data(reader, item, (*path, key))
    for index, item in enumerate(node.value if node.is_list else ()):
        _check_plain_data(reader, item, (*path, str(index)))
    if isinstance(node.value, float) and not abs(node.value) < float("inf"):
        reader.expected("a finite number", node, path)
    if type(node.value) in (int, float):
        reader.check_octal(node, path)


def _check_name(reader: FieldReader, name: str, item: Node, path: KeyPath) -> None:
    if path[0] == "groups" and name.startswith("agent-"):
        message = f"`{abbreviated(name)}` is a reserved name"
        help = "choose a name that does not begin with `agent-`"
    elif not NAME.fullmatch(name):
        message = f"`{abbreviated(name)}` is not a valid name"
        help = "use letters, digits, `_` and `-`, beginning with a letter"
    elif len(name) > MAX_NAME:
        message, help = f"a name of {len(name)} letters is too long", f"use at most {MAX_NAME}"
    else:
        return
    reader.report(path, "MC106", message, item.key or item.span, help=help)


def layouts() -> Iterator[tuple[str, str]]:
    """Yields (name, first line of the file) for each shipped layout."""
    for file in files(shipped() / "layout", ".yaml"):
        first, _, _ = file.read_text(encoding="utf-8").partition("\n")
        yield file.stem, first.removeprefix("#").strip() if first.startswith("#") else ""
