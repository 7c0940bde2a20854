"""The JSON Schema of recipes, for editors: derived from the table of fields.

Three things make a schema fit for recipes: `${...}` and `???` may stand for any value; nothing is required,
since an included file may contain it; a key is unknown where the reader would refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from meshctl.recipe import field_types as types
from meshctl.recipe.compose.folders import files, shipped
from meshctl.recipe.field_types import MAX_NAME
from meshctl.recipe.fields import (
    AUTO,
    DEFAULTS_ENTRIES,
    GROUP,
    MODEL,
    PARALLEL,
    RECIPE,
    SECTIONS,
    STAGE,
    Field,
    Section,
)
from meshctl.topology.cluster import ACCELERATORS, DEVICE_ALIASES, DEVICE_TYPES
from meshctl.topology.sizes import DIMS

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
OPEN = r"^\?\?\?$|\$\{"
"""A text that may stand for any value: still to be given, or written elsewhere."""
WORD, REST = r"[^\x00-@\[-^`{-\x7f]", r"[^\x00-/:-@\[-^`{-\x7f]"
"""The first and the further characters of an identifier in any alphabet: `\\w` is ASCII in some engines, and
more in others."""
NAME = "[A-Za-z_][A-Za-z0-9_-]*"
RUN_NAME = f"({WORD}|[0-9])({REST}|[.@+-])*"
CONFIG_GROUP = r"^((override|optional) )*/?"
"""What may stand before a config group in a defaults list."""


def schema() -> Schema:
    """Returns the whole schema as plain data."""
    return {
        "$schema": DRAFT,
        "title": "meshctl recipe",
        "description": "Device groups, the components that run on them, and the data flow between them.",
        **section_schema(RECIPE),
        "$defs": {
            **{section.name: section_schema(section) for section in SECTIONS if section is not RECIPE},
            "data": _plain_data(),
        },
    }


def section_schema(section: Section) -> Schema:
    """Returns the schema of one mapping: these keys and no others."""
    has_shorthand = section in (PARALLEL, MODEL)
    kind = {"type": ["object", "string"]} if has_shorthand else _mapping()
    properties = {field.key: field_schema(field) for field in section.fields}
    return {**kind, "properties": properties, "additionalProperties": False}


def field_schema(field: Field) -> Schema:
    default = {} if field.default is None else {"default": field.default}
    return {"description": field.doc, **type_schema(field.type), **default}


def type_schema(type_: types.Type) -> Schema:
    return SCHEMAS[type(type_)](type_)


# Simple values


def _mapping(**more: object) -> Schema:
    return {"type": ["object", "string"], "pattern": OPEN, **more}


def _ref(section: Section) -> Schema:
    return {"$ref": f"#/$defs/{section.name}"}


def _whole(min: int = 0, max: int = types.MAX_COUNT) -> Schema:
    return {"type": ["integer", "string"], "minimum": min, "maximum": max, "pattern": OPEN}


def _size(type_: types.Size) -> Schema:
    auto = {"const": "auto", "description": AUTO}
    return {"anyOf": [auto, _whole(1)]} if type_.may_be_auto else _whole(1)


def _text(pattern: str = "") -> Schema:
    return {"type": "string", **({"pattern": f"{pattern}|{OPEN}"} if pattern else {})}


def _texts() -> Schema:
    """A list of texts, or one."""
    return {"type": ["string", "array"], "items": {"type": "string"}}


def _list(item: Schema, **more: object) -> Schema:
    return {"type": ["array", "string"], "pattern": OPEN, "items": item, **more}


def _words(words: Mapping[str, str], pattern: str = "") -> Schema:
    """One of a few words, each with its meaning; or a text that matches a pattern."""
    known = [{"const": word, "description": meaning} for word, meaning in words.items()]
    return {"anyOf": [*known, {"type": "string", "pattern": f"{pattern}|{OPEN}" if pattern else OPEN}]}


def _any_case(words: Iterable[str]) -> str:
    """Returns a pattern for words in any case: a schema has no flag for that."""
    return f"^({'|'.join(''.join(f'[{letter}{letter.upper()}]' for letter in word) for word in words)})$"


# Values of several forms


def _count_or_list(**more: object) -> Schema:
    return {**_whole(1), "type": ["integer", "array", "string"], "items": _whole(), **more}


def _device_counts(type_: types.DeviceCounts) -> Schema:
    counts = _count_or_list(contains={"not": {"const": 0}})
    device_types = _any_case((*ACCELERATORS, *DEVICE_ALIASES))
    by_type = {"patternProperties": {device_types: counts}, "additionalProperties": False}
    return {**counts, "type": [*counts["type"], "object"], **by_type}


def _visible_devices(type_: types.VisibleDevices) -> Schema:
    items = {"type": ["string", "number", "boolean"]}
    return {"type": ["string", "integer", "array"], "minLength": 1, "minItems": 1, "items": items}


def _environment(type_: types.Environment) -> Schema:
    return {
        "type": ["object", "array", "string"],
        "pattern": OPEN,
        "propertyNames": {"pattern": r"^[^=\x00]+$"},
        "additionalProperties": {"type": ["string", "number"]},
        "items": {"type": "string"},
    }


def _script(type_: types.Script) -> Schema:
    fields = {field.key: {**field_schema(field), "minLength": 1} for field in type_.section.fields}
    keys = {"minProperties": 1, "properties": fields, "additionalProperties": False}
    return {"type": ["string", "object"], "minLength": 1, **keys}


def _inputs(type_: types.Inputs) -> Schema:
    parameter = {"anyOf": [_texts(), _ref(type_.section)]}
    return {
        **_texts(),
        "type": ["string", "array", "object"],
        "minItems": 1,
        "minProperties": 1,
        "additionalProperties": parameter,
    }


def _plain_data() -> Schema:
    """The schema of what `args` contain, at any depth."""
    inner = {"$ref": "#/$defs/data"}
    return {"properties": {"_target_": False}, "additionalProperties": inner, "items": inner}


def _defaults(type_: types.Defaults) -> Schema:
    """A list of files, and of one `group@package: option` each."""
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
            f"{CONFIG_GROUP}layout(@|$)": {"anyOf": [*_words(dict(layouts()))["anyOf"], option]}
        },
        "additionalProperties": option,
    }
    known = _words(DEFAULTS_ENTRIES)["anyOf"]
    return {"type": "array", "items": {"anyOf": [*known, {"type": "string"}, choice]}}


def layouts() -> Iterator[tuple[str, str]]:
    """Yields the layouts of the package, each with the first line of its file."""
    for file in files(shipped() / "layout", ".yaml"):
        first, _, _ = file.read_text(encoding="utf-8").partition("\n")
        yield file.stem, first.removeprefix("#").strip() if first.startswith("#") else ""


# Sections


def _nested(type_: types.Nested) -> Schema:
    if isinstance(type_.shorthand, types.Word):
        return {"anyOf": [*type_schema(type_.shorthand)["anyOf"], _ref(type_.section)]}
    if type_.may_be_off:
        return {"anyOf": [_ref(type_.section), {"enum": [False, None]}]}
    return _ref(type_.section)


def _named(type_: types.Named) -> Schema:
    item, names = _ref(type_.section), f"^{NAME}$"
    if (
        type_.section is STAGE
    ):  # a `call`, a `sync`, or in a recipe that changes another one, some keys of either
        sync = {"if": {"required": ["sync"]}, "then": {"$ref": "#/$defs/sync"}, "else": item}
        item = {"if": {"required": ["call"]}, "then": {"$ref": "#/$defs/call"}, "else": sync}
    if type_.section is GROUP:
        names = f"^(?!agent-){NAME}$"
    return _mapping(propertyNames={"pattern": names, "maxLength": MAX_NAME}, additionalProperties=item)


SCHEMAS: Mapping[type[types.Type], Callable[[Any], Schema]] = {
    types.Whole: lambda type_: _whole(type_.min, type_.max),
    types.OptionalWhole: lambda type_: _whole(),
    types.Size: _size,
    types.Seconds: lambda type_: {"type": ["number", "string"], "minimum": 0, "pattern": OPEN},
    types.Boolean: lambda type_: {"type": ["boolean", "string"], "pattern": OPEN},
    types.Text: lambda type_: _text(),
    types.RunName: lambda type_: {**_text(f"^({RUN_NAME})?$"), "maxLength": MAX_NAME},
    types.ClassPath: lambda type_: _text(rf"^{WORD}{REST}*(\.{WORD}{REST}*)+$"),
    types.Endpoint: lambda type_: _text(rf"^{NAME}\.{WORD}{REST}*$"),
    types.Word: lambda type_: _words(type_.words),
    types.DeviceType: lambda type_: _words(type_.words, _any_case((*DEVICE_TYPES, *DEVICE_ALIASES))),
    types.Texts: lambda type_: _texts(),
    types.DimOrder: lambda type_: _list(
        _words(dict.fromkeys(DIMS, "")), minItems=len(DIMS), maxItems=len(DIMS), uniqueItems=True
    ),
    types.Arguments: lambda type_: _list({"type": ["string", "number", "boolean"]}),
    types.Ranks: lambda type_: _count_or_list(minItems=1, uniqueItems=True),
    types.DeviceCounts: _device_counts,
    types.VisibleDevices: _visible_devices,
    types.Environment: _environment,
    types.Script: _script,
    types.Inputs: _inputs,
    types.PlainData: lambda type_: {
        "type": ["object", "string", "null"],
        "pattern": OPEN,
        **_plain_data(),
    },
    types.FreeMapping: lambda type_: _mapping(),
    types.Defaults: _defaults,
    types.Nested: _nested,
    types.Named: _named,
}
