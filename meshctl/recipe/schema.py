"""The JSON Schema of recipes, for editors: the keys that the reader knows, and what each may be.

Keys come from `model.py`, sizes from `sizes.py`, modes from `routes.py`, limits from the reader, and what a
key means from `meanings.py`. Three things make a schema fit for recipes: `${...}` and `???` may stand for any
value; nothing is required, since an included file may say it; a key is unknown where the reader would refuse
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from meshctl.recipe import meanings, model
from meshctl.recipe.compose.folders import files, shipped
from meshctl.recipe.compose.yaml_tree import Node, Path
from meshctl.recipe.model import MAX_BYTES, MAX_COUNT, MAX_NAME, MAX_SEED, MAX_STEPS
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE
from meshctl.topology.sizes import DIMS, MAY_BE_AUTO, SIZES

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
OPEN = r"^\?\?\?$|\$\{"
"""A text that may stand for any value: still to be given, or said elsewhere."""
WORD, REST = r"[^\x00-@\[-^`{-\x7f]", r"[^\x00-/:-@\[-^`{-\x7f]"
"""The first and the further characters of an identifier in any alphabet: `\\w` is ASCII in some engines, and more in others."""
NAME = "[A-Za-z_][A-Za-z0-9_-]*"
RUN_NAME = f"({WORD}|[0-9])({REST}|[.@+-])*"
GROUP = r"^((override|optional) )*/?"
"""What may stand before a config group in a defaults list."""


def schema() -> Schema:
    """All of it, as plain data."""
    return {
        "$schema": DRAFT,
        "title": "meshctl recipe",
        "description": "Device groups, the components that run on them, and the data flow between them.",
        **part("recipe"),
        "$defs": {**{name: part(name) for name in PARTS if name != "recipe"}, "data": _data()},
    }


def part(name: str) -> Schema:
    """One mapping of a recipe: these keys and no others."""
    values, means = PARTS[name].values(), meanings.MEANS[name]
    properties = {key: {"description": means.get(key, ""), **values.get(key, {})} for key in PARTS[name].keys}
    kind = {"type": ["object", "string"]} if PARTS[name].or_text else _mapping()
    return {**kind, "properties": properties, "additionalProperties": False}


@dataclass(frozen=True)
class Part:
    keys: tuple[str, ...]
    values: Callable[[], Mapping[str, Schema]]
    """What each may be."""
    or_text: bool = False
    """Any text may stand in its place, and not `${...}` alone: the name of another one."""


# Kinds of values


def _mapping(**more: object) -> Schema:
    return {"type": ["object", "string"], "pattern": OPEN, **more}


def _named(item: Schema, names: str = f"^{NAME}$") -> Schema:
    return _mapping(propertyNames={"pattern": names, "maxLength": MAX_NAME}, additionalProperties=item)


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _whole(least: int = 0, most: int = MAX_COUNT) -> Schema:
    return {"type": ["integer", "string"], "minimum": least, "maximum": most, "pattern": OPEN}


def _number() -> Schema:
    return {"type": ["number", "string"], "minimum": 0, "pattern": OPEN}


def _boolean() -> Schema:
    return {"type": ["boolean", "string"], "pattern": OPEN}


def _text(pattern: str = "") -> Schema:
    return {"type": "string", **({"pattern": f"{pattern}|{OPEN}"} if pattern else {})}


def _texts(**more: object) -> Schema:
    """A list of texts, or one."""
    return {"type": ["string", "array"], "items": {"type": "string"}, **more}


def _list(item: Schema, **more: object) -> Schema:
    return {"type": ["array", "string"], "pattern": OPEN, "items": item, **more}


def _count_or_list(least: int, **more: object) -> Schema:
    return {**_whole(least), "type": ["integer", "array", "string"], "items": _whole(), **more}


def _words(words: Iterable[str], means: Mapping[str, str], also: str = "") -> Schema:
    """One of a few words, each with what it means; or what a pattern lets pass."""
    known = [{"const": word, "description": means.get(word, "")} for word in words]
    return {"anyOf": [*known, {"type": "string", "pattern": f"{also}|{OPEN}" if also else OPEN}]}


def _any_case(words: Iterable[str]) -> str:
    """Words in any case: a schema has no flag for that."""
    return f"^({'|'.join(''.join(f'[{letter}{letter.upper()}]' for letter in word) for word in words)})$"


def _default(kind: type, key: str) -> Schema:
    """What a key is where it is left out."""
    return {"default": next(field.default for field in fields(kind) if field.name == key)}


# The parts of a recipe


def _recipe() -> Mapping[str, Schema]:
    return {
        "defaults": _defaults(),
        "name": {**_text(f"^({RUN_NAME})?$"), "maxLength": MAX_NAME},
        "seed": _whole(0, MAX_SEED) | _default(model.Recipe, "seed"),
        "cluster": _ref("cluster"),
        "groups": _named(_ref("group"), f"^(?!agent-){NAME}$"),
        "components": _named(_ref("component")),
        "pipeline": _named(_called_or_synced()),
        "run": _ref("run"),
        "vars": _mapping(),
    }


def _defaults() -> Schema:
    """A list of files, and of one `group@package: option` each."""
    option: Schema = {
        "type": ["string", "number", "boolean", "null", "array"],
        "items": {"type": ["string", "number", "boolean"]},
    }
    shelf = dict(layouts())
    choice = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "propertyNames": {"not": {"pattern": f"{GROUP}hydra(/|@|$)"}},
        "patternProperties": {f"{GROUP}layout(@|$)": {"anyOf": [*_words(shelf, shelf)["anyOf"], option]}},
        "additionalProperties": option,
    }
    known = _words(meanings.DEFAULTS, meanings.DEFAULTS)["anyOf"]
    return {"type": "array", "items": {"anyOf": [*known, {"type": "string"}, choice]}}


def layouts() -> Iterator[tuple[str, str]]:
    """Each layout that meshctl has, with the first line of its file."""
    for file in files(shipped() / "layout", ".yaml"):
        first, _, _ = file.read_text(encoding="utf-8").partition("\n")
        yield file.stem, first.removeprefix("#").strip() if first.startswith("#") else ""


def _cluster() -> Mapping[str, Schema]:
    devices = _count_or_list(1, contains={"not": {"const": 0}})
    kinds = _any_case((*model.ACCELERATORS, *model.DEVICE_ALIASES))
    by_type = {"patternProperties": {kinds: devices}, "additionalProperties": False}
    return {
        "nodes": _whole(1),
        "devices_per_node": {**devices, "type": [*devices["type"], "object"], **by_type},
    }


def _group() -> Mapping[str, Schema]:
    kinds = _any_case((*model.DEVICE_TYPES, *model.DEVICE_ALIASES))
    some = {"minProperties": 1}
    module = {"type": "string", "minLength": 1, "description": "A module, started as `python -m MODULE`."}
    return {
        "ranks": _count_or_list(1, minItems=1, uniqueItems=True),
        "device_type": _words(model.DEVICE_TYPES, meanings.DEVICE_TYPES, kinds),
        "visible_devices": {
            "type": ["string", "integer", "array"],
            "minLength": 1,
            "minItems": 1,
            "items": {"type": ["string", "number", "boolean"]},
        },
        "gpus_per_worker": _whole(1) | _default(model.DeviceGroup, "gpus_per_worker"),
        "env": {
            "type": ["object", "array", "string"],
            "pattern": OPEN,
            "propertyNames": {"pattern": r"^[^=\x00]+$"},
            "additionalProperties": {"type": ["string", "number"]},
            "items": {"type": "string"},
        },
        "colocate": _text(),
        "program": {
            "type": ["string", "object"],
            "minLength": 1,
            "properties": {"module": module},
            "additionalProperties": False,
            **some,
        },
        "args": _list({"type": ["string", "number", "boolean"]}),
        "cwd": _text(),
        "python": _text(),
        "service": _boolean(),
    }


def _component() -> Mapping[str, Schema]:
    return {
        "_target_": _text(rf"^{WORD}{REST}*(\.{WORD}{REST}*)+$"),
        "group": _text(),
        "parallel": _ref("parallel"),
        "args": {"type": ["object", "string", "null"], "pattern": OPEN, **_data()},
        "frozen": _boolean(),
        "model": _ref("model"),
    }


def _data() -> Schema:
    """What `args` hold, at any depth."""
    return {"properties": {"_target_": False}, "additionalProperties": _ref("data"), "items": _ref("data")}


def _parallel() -> Mapping[str, Schema]:
    order = _list(_words(DIMS, {}), minItems=len(DIMS), maxItems=len(DIMS), uniqueItems=True)
    return {**{key: _size(key) for key in SIZES}, "sequence_parallel": _boolean(), "order": order}


def _model() -> Mapping[str, Schema]:
    return {"config": _text(), **{key: _whole(1, MAX_STEPS) for key in model.MODEL_SIZES}}


def _size(key: str) -> Schema:
    return (
        {"anyOf": [{"const": "auto", "description": meanings.AUTO}, _whole(1)]}
        if key in MAY_BE_AUTO
        else _whole(1)
    )


def _called_or_synced() -> Schema:
    """A `call`, a `sync`, or in a recipe that changes another one, some keys of either."""
    other = {"if": {"required": ["sync"]}, "then": _ref("sync"), "else": _ref("stage")}
    return {"if": {"required": ["call"]}, "then": _ref("call"), "else": other}


def _stage() -> Mapping[str, Schema]:
    parameters = {
        "type": ["string", "array", "object"],
        "minProperties": 1,
        "additionalProperties": {"anyOf": [_texts(), _ref("input")]},
    }
    return {
        "call": _text(rf"^{NAME}\.{WORD}{REST}*$"),
        "in": _texts(minItems=1) | parameters,
        "samples": _whole(1),
        "sample_bytes": _whole(1, MAX_BYTES),
        "dispatch": _dispatched(),
        "execute": _words(EXECUTE, meanings.EXECUTE),
        "collect": _words(COLLECT, meanings.COLLECT),
        "sync": _text(),
        "to": _text(),
        "every": _whole(1) | _default(model.Stage, "every"),
        "max_staleness": _whole(),
        "checksum": _boolean(),
        "when": _words(model.WHEN, meanings.WHEN),
        "after": _texts(),
    }


def _dispatched() -> Schema:
    """A mode, or the same in full."""
    return {"anyOf": [*_words(DISPATCH, meanings.DISPATCH)["anyOf"], _ref("dispatch")]}


def _dispatch() -> Mapping[str, Schema]:
    return {
        "mode": _words(DISPATCH, meanings.DISPATCH),
        "balance": _words(meanings.BALANCE, meanings.BALANCE),
        "home": _text(),
        "allow_empty": _boolean(),
        "split_groups": _boolean(),
        "equal_counts": _boolean(),
    }


def _input() -> Mapping[str, Schema]:
    return {"from": _texts(), "dispatch": _dispatched()}


def _run() -> Mapping[str, Schema]:
    return {
        "steps": _whole(0, MAX_STEPS),
        "epochs": _whole(),
        "dir": _text() | _default(model.Run, "dir"),
        "checkpoint": {"anyOf": [_ref("checkpoint"), {"enum": [False, None]}]},
        "grace": _number() | _default(model.Run, "grace"),
        "patience": _number() | _default(model.Run, "patience"),
        "show": _texts(),
        "record": _texts(),
    }


def _checkpoint() -> Mapping[str, Schema]:
    return {"every": _whole(), "keep": _whole(1) | _default(model.Checkpoint, "keep")}


PARTS = {
    "recipe": Part(model.TOP, _recipe),
    "cluster": Part(model.CLUSTER, _cluster),
    "group": Part(model.GROUP, _group),
    "component": Part(model.COMPONENT, _component),
    "parallel": Part(model.PARALLEL, _parallel, or_text=True),
    "model": Part(model.MODEL, _model, or_text=True),
    "stage": Part(model.STAGE, _stage),
    "call": Part(model.CALL, _stage),
    "sync": Part(model.SYNC, _stage),
    "dispatch": Part(model.DISPATCH, _dispatch),
    "input": Part(("from", "dispatch"), _input),
    "run": Part(model.RUN, _run),
    "checkpoint": Part(model.CHECKPOINT, _checkpoint),
}
"""The mappings of a recipe; `stage` is one that is neither a `call` nor a `sync` yet."""


def part_at(path: Path, root: Node) -> str:
    """Which of them stands there; empty for what users name, and for one value."""
    match path:
        case ():
            return "recipe"
        case ("cluster" | "run" as top,):
            return top
        case ("run", "checkpoint"):
            return "checkpoint"
        case ("groups", _):
            return "group"
        case ("components", _):
            return "component"
        case ("components", _, "parallel" | "model" as key):
            return key
        case ("pipeline", _):
            stage = root.at(path)
            return next(
                (kind for kind in ("call", "sync") if stage is not None and stage.get(kind) is not None),
                "stage",
            )
        case ("pipeline", _, "dispatch") | ("pipeline", _, "in", _, "dispatch"):
            return "dispatch"
        case ("pipeline", _, "in", _):
            return "input"
    return ""
