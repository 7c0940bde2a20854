"""Converts a configuration of another system to a recipe: a skeleton, with the values of the table's rows.

Every key of the source gets one `Entry`: it is written to the recipe, it needs nothing there, it has no
effect on this kind of training, or it is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from meshctl.dataclass import dataclass
from meshctl.foreign.formula import NULL, UNKNOWN, Formula
from meshctl.foreign.model import Given, Source, Unreadable
from meshctl.foreign.table import Row, Table
from meshctl.foreign.write import flow
from meshctl.recipe.compose.folders import shipped
from meshctl.text.english import listed

SKELETONS = Path(__file__).parent / "skeletons"
Kind = Literal["mapped", "default", "unused", "lost"]
NOTHING: tuple[Any, ...] = (None, False, 0, "", "none", "null", [], {})
"""Values that switch nothing on."""
ORDER = (
    *("defaults", "name", "seed", "vars", "cluster", "groups", "components", "pipeline", "run"),
    *("prompts", "chats", "texts", "pairs", "held_out", "questions", "sampler", "judge", "trainer", "actor"),
    *("reference", "critic", "batch", "rollouts", "scored", "old", "ref", "values", "metrics", "learn"),
    *("publish", "eval", "export", "_target_", "group", "parallel", "frozen", "args", "model"),
)
"""Sections, components and stages, and keys of a component, in the order in which people write them."""
MODELS = "model"
"""The config group with the sizes of known models."""


@dataclass(frozen=True)
class Entry:
    """A key of the source, and what became of it."""

    given: Given
    kind: Kind
    what: str
    """The place in the recipe with the value there, or the reason why there is none."""
    trains: bool = False
    """True if the training changes because the key is lost."""


@dataclass(frozen=True)
class Converted:
    table: Table
    source: Source
    kind: str
    """The skeleton."""
    recipe: Mapping[str, Any]
    comments: Mapping[tuple[str, ...], str]
    """Path -> the comment of its line."""
    entries: tuple[Entry, ...]
    origins: Mapping[tuple[str, ...], tuple[Given, ...]]
    """Path in the recipe -> the keys from which its value was computed; none for a default of the system."""
    values: Mapping[str, Any]
    """Key or fact -> its value, defaults included."""

    @property
    def changes_training(self) -> bool:
        return any(one.trains for one in self.entries)


def convert(source: Source, table: Table) -> Converted:
    """Returns the recipe of a configuration. Raises `Unreadable` if the table has no skeleton for it."""
    return _Conversion(source, table).converted()


class _Conversion:
    def __init__(self, source: Source, table: Table) -> None:
        self._source, self._table = of_system(source, table), table
        self._given = {one.key: one for one in self._source.given}
        if not any(map(table.row, self._given)):
            raise Unreadable(f"there is no key of {table.title}")
        defaults = {key: row.default for key, row in table.keys.items() if row.default is not None}
        stated = {one.key: self._stated(one) for one in self._source.given}
        self._values: dict[str, Any] = {**defaults, **stated, "words": " ".join(source.words)}
        for name, formula in table.facts.items():
            self._values[name] = Formula(formula)(self._values)
        self._recipe: dict[str, Any] = {}
        self._comments = dict[tuple[str, ...], str]()
        self._origins = dict[tuple[str, ...], tuple[Given, ...]]()
        self._places = dict[str, str]()
        """Key -> the places in the recipe that have its value."""

    def _stated(self, given: Given) -> Any:
        """Returns the value of a key for formulas: `UNKNOWN`, and the text `null` for one that replaces a
        default."""
        row = self._table.row(given.key)
        has_default = row is not None and row.default is not None
        return UNKNOWN if given.unknown else "null" if given.value is None and has_default else given.value

    def converted(self) -> Converted:
        kinds = self._table.kinds.items()
        kind = next((name for name, formula in kinds if Formula(formula)(self._values)), "")
        if not kind:
            raise Unreadable(f"{self._table.title}: there is no recipe for this kind of training")
        self._values["kind"] = kind
        skeleton = skeleton_of(kind)
        self._recipe = _merged({}, skeleton["recipe"])
        self._comments |= {_path(key): text for key, text in (skeleton.get("comments") or {}).items()}
        parts = skeleton.get("parts") or {}
        for name in self._used_parts(parts):
            self._recipe = _merged(self._recipe, parts[name])
        for key, row in self._rows():
            self._apply(key, row)
        self._use_known_model()
        self._recipe = _ordered(self._recipe)
        entries = tuple(self._entry(one) for one in self._source.given)
        return Converted(
            *(self._table, self._source, kind, self._recipe, self._comments, entries),
            *(self._origins, self._values),
        )

    def _rows(self) -> Iterator[tuple[str, Row]]:
        """Yields the rows of the keys that the source has, and of those that have a default."""
        for key, row in self._table.keys.items():
            if "*" not in key and (key in self._given or row.default is not None):
                yield key, row
        for key in self._given:
            found = self._table.row(key)
            if found and key not in self._table.keys:
                yield key, found

    def _used_parts(self, parts: Mapping[str, Any]) -> list[str]:
        used = set[str]()
        for key, row in self._rows():
            if row.uses and self._is_set(key, row) and self._holds(key, row):
                used |= {*row.uses}
        return [name for name in parts if used.issuperset(name.split("+"))]

    def _is_set(self, key: str, row: Row) -> bool:
        value = self._value(key, row)
        return not any(value == one and type(value) is type(one) for one in NOTHING)

    def _holds(self, key: str, row: Row) -> bool:
        return not row.when or bool(Formula(row.when)({**self._values, "this": self._values.get(key)}))

    def _value(self, key: str, row: Row) -> Any:
        """Returns the value of a key in the recipe; None if it is unknown."""
        this = self._values.get(key)
        if row.map is not None:
            this = row.map.get(_text(this))
        return Formula(row.value)({**self._values, "this": this})

    def _apply(self, key: str, row: Row) -> None:
        this = self._values.get(key)
        if not row.to or row.part or this in (None, UNKNOWN, *row.same) or not self._holds(key, row):
            return
        value = self._value(key, row)
        if value is None:
            return
        for text in row.to:
            path = _path(text)
            if not _has_room(self._recipe, path):
                continue
            if row.note:
                self._comments[path] = row.note
            if key not in self._given and _at(self._recipe, path) == value:
                continue
            value = None if value is NULL else value
            value = re.sub("^~/", "${oc.env:HOME}/", value) if isinstance(value, str) else value
            _put(self._recipe, path, value)
            self._places[key] = f"{text}: {flow(value)}"
            usual = f"the default of {self._table.title}"
            if key in self._given and self._comments.get(path) == usual:
                del self._comments[path]
            if key not in self._given:
                self._comments.setdefault(path, usual)
            self._origins[path] = tuple(self._sources_of(key))

    def _sources_of(self, key: str) -> Iterator[Given]:
        """Yields a key and those that are read together with it, as far as the source has them."""
        together = [key, *(one for one, row in self._table.keys.items() if row.part == key)]
        yield from (self._given[one] for one in together if one in self._given)

    def _entry(self, given: Given) -> Entry:
        row = self._table.row(given.key)
        if row is None:
            return Entry(given, "lost", f"the table of {self._table.title} does not know it", trains=True)
        if given.unknown:
            return Entry(given, "lost", f"its value is not known: {given.unknown}", trains=not row.harmless)
        if row.names_files and self._are_read(given.value):
            return Entry(given, "default", "that file is read, too")
        if not self._holds(given.key, row):
            return Entry(given, "unused", f"it has no effect on a recipe for {self._values['kind']}")
        if row.part:
            return self._part(given, row)
        if place := self._places.get(given.key):
            return Entry(given, "mapped", place)
        if given.value is None and row.default not in (None, *row.same) and row.value == "this":
            reason = f"a recipe has {flow(row.default)}, as if the key were left out"
            return Entry(given, "lost", reason, trains=not row.harmless)
        if given.value is None or given.value in row.same:
            return Entry(given, "default", "as in a recipe")
        if row.uses and self._is_set(given.key, row):
            return Entry(given, "mapped", f"adds {listed(row.uses)}")
        if row.map is not None and _text(given.value) not in row.map:
            reason = row.lost or f"there is no `{flow(given.value)}`; there are {listed(map(str, row.map))}"
            return Entry(given, "lost", reason, trains=not row.harmless)
        if row.lost:
            return Entry(given, "lost", row.lost, trains=not row.harmless)
        if row.to and any(_has_room(self._recipe, _path(to)) for to in row.to):
            return Entry(given, "default", "nothing is needed for it in this recipe")
        return Entry(given, "unused", f"it has no effect on a recipe for {self._values['kind']}")

    def _are_read(self, names: Any) -> bool:
        """Returns whether the files that a value names are among those of the source."""
        files = {Path(file).stem for file, _ in self._source.sources}
        return {Path(str(one)).stem for one in (names if isinstance(names, list) else [names])} <= files

    def _part(self, given: Given, row: Row) -> Entry:
        """Returns what became of a key that is read with another one."""
        if place := self._places.get(row.part):
            return Entry(given, "mapped", place)
        if given.value in row.same:
            return Entry(given, "default", "as in a recipe")
        if (other := self._given.get(row.part)) and (main := self._entry(other)).kind == "lost":
            return Entry(given, "lost", f"it is lost with `{row.part}`", main.trains and not row.harmless)
        return Entry(given, "unused", f"it has no effect without `{row.part}`")

    def _use_known_model(self) -> None:
        """Includes the sizes of a model that is shipped, so that `validate` compares them with the layout."""
        components = self._recipe.get("components") or {}
        for name, one in components.items():
            model = str((one.get("args") or {}).get("model"))
            if one.get("_target_") == "meshctl.hf.Model" and model in known_models():
                self._recipe = {
                    "defaults": [{f"model@components.{name}": known_models()[model]}, "_self_"]
                } | {**self._recipe}
                del one["args"]["model"]
                for other in components.values():
                    if (other.get("args") or {}).get("model") == f"${{components.{name}.args.model}}":
                        other["model"] = f"${{components.{name}.model}}"
                return


@cache
def known_models() -> Mapping[str, str]:
    """Returns the name of each model whose sizes are shipped -> the option of the config group."""
    found = dict[str, str]()
    for file in sorted((shipped() / MODELS).glob("*.yaml")):
        name = (yaml.safe_load(file.read_text(encoding="utf-8")).get("args") or {}).get("model")
        if isinstance(name, str):
            found[name] = file.stem
    return found


@cache
def skeleton_of(kind: str) -> Mapping[str, Any]:
    data: Mapping[str, Any] = yaml.safe_load((SKELETONS / f"{kind}.yaml").read_text(encoding="utf-8"))
    return data


def of_system(source: Source, table: Table) -> Source:
    """Returns a source without the keys of other commands, such as a download before the training."""
    marked = {one.command for one in source.given if any(mark in one.command for mark in table.marks)}
    words = " ".join(source.words) + " "
    if sum(words.count(f"{mark} ") for mark in table.marks if "serve" not in mark) > 1:
        raise Unreadable(f"there are several trainings of {table.title}", "keep the command of one of them")
    given = [one for one in source.given if not marked or not one.command or one.command in marked]
    if "training_script" in table.keys:
        given = [one for one in given if not one.is_of_script]
    else:
        given = [one for one in given if not one.key.startswith("training_script")]
    return replace(source, given=tuple(given))


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of nested mappings with further values. Null removes a key."""
    found = {key: _merged(item, {}) if isinstance(item, Mapping) else item for key, item in old.items()}
    for key, item in new.items():
        before = found.get(key)
        if isinstance(item, Mapping):
            item = _merged(before if isinstance(before, dict) else {}, item)
        found[key] = item
        if item is None:
            del found[key]
    return found


def _ordered(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe with its sections, components, stages, and the keys of components in `ORDER`."""

    def in_order(items: Mapping[str, Any]) -> dict[str, Any]:
        return dict(sorted(items.items(), key=lambda one: (*ORDER, one[0]).index(one[0])))

    found = in_order(recipe)
    components = {name: in_order(one) for name, one in (found.get("components") or {}).items()}
    found |= {"components": in_order(components)} if components else {}
    return found | ({"pipeline": in_order(found["pipeline"])} if "pipeline" in found else {})


def _path(text: str) -> tuple[str, ...]:
    return tuple(text.split("."))


def _has_room(recipe: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Returns whether the recipe has the group, the component or the stage to which a path leads."""
    return path[0] not in ("groups", "components", "pipeline") or path[1] in (recipe.get(path[0]) or {})


def _at(recipe: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = recipe
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _put(recipe: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        if not isinstance(recipe.get(key), dict):
            recipe[key] = {}
        recipe = recipe[key]
    recipe[path[-1]] = deepcopy(value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
