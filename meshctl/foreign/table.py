"""The table of a system: its keys, and what each is in a recipe. `formats/NAME.yaml` has these parts:

    title, version      the name of the system in messages, and the version that the table was written for
    files               the kinds of files: yaml, sh, toml, py
    marks               keys or words by which a configuration is recognised: any one of them
    facts               name -> a formula over keys, for other formulas: `ranks: "nodes * gpus"`
    kinds               name of a skeleton (`skeletons/NAME.yaml`) -> a formula; the first that holds is used
    keys                key -> a row (`Row`). `*` in a key stands for any number of names. A row in
                        parentheses belongs to no key: its `default` is always written, by its formula
    shown               the keys that the page of the documents lists
    checks              what the system itself requires: `unless` a formula, `say` a message, `at` a key
    codes               the codes of `validate` that hold for the system -> a message in its words, or null

In messages, `{...}` is a formula.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from meshctl.dataclass import dataclass
from meshctl.foreign.model import Source

FORMATS = Path(__file__).parent / "formats"
SUFFIXES = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".py": "py"}
NAMES = ("verl", "trl", "axolotl", "accelerate", "torchtitan", "nemo-rl", "twinkle")


@dataclass(frozen=True)
class Row:
    """The meaning of a key in a recipe."""

    to: tuple[str, ...] = ()
    """The paths in the recipe. A path that the skeleton of this kind has no component or stage for is left
    out."""
    value: str = "this"
    """A formula of the value in the recipe."""
    map: Mapping[str, Any] | None = None
    """Value -> value in the recipe; None for any value. A value that is not in it is lost."""
    default: Any = None
    """The value of the system if the key is left out. It is written to the recipe, too."""
    same: tuple[Any, ...] = ()
    """Values for which the recipe needs nothing."""
    lost: str = ""
    """The reason why other values than `same` are lost; empty if they are not."""
    harmless: bool = False
    """True if a run trains alike without it."""
    when: str = ""
    """A formula; where it does not hold, the key has no effect."""
    part: str = ""
    """The key with whose row it is read; empty for a row of its own."""
    uses: tuple[str, ...] = ()
    """The parts of the skeleton that a value other than 0, false, null and none adds."""
    note: str = ""
    """The comment in the recipe."""
    names_files: bool = False
    """True if the value names other files of the configuration, which may be given, too."""


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    version: str
    files: tuple[str, ...]
    marks: tuple[str, ...]
    facts: Mapping[str, str]
    kinds: Mapping[str, str]
    keys: Mapping[str, Row]
    checks: tuple[Mapping[str, str], ...] = ()
    codes: Mapping[str, str | None] = field(default_factory=dict)
    shown: tuple[str, ...] = ()

    def row(self, key: str) -> Row | None:
        """Returns the row of a key, or of the first pattern that it fits; None if there is none."""
        if key in self.keys:
            return self.keys[key]
        patterns = (one for one in self.keys if "*" in one)
        return next((self.keys[one] for one in patterns if _pattern(one).fullmatch(key)), None)


@cache
def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(re.escape(key).replace(r"\*", ".+"))


@cache
def table(name: str) -> Table:
    """Returns the table of a format."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load((FORMATS / f"{name}.yaml").read_text(encoding="utf-8"), loader)
    keys = {key: _row(row or {}) for key, row in data.pop("keys").items()}
    for part in ("files", "marks", "checks", "shown"):
        data[part] = tuple(data.get(part) or ())
    return Table(name, keys=keys, **{"facts": {}, "version": "", **data})


def _row(data: Mapping[str, Any]) -> Row:
    def several(name: str) -> tuple[Any, ...]:
        value = data.get(name, ())
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)

    return Row(**{**data, **{name: several(name) for name in ("to", "same", "uses")}})


def recognised(source: Source) -> str:
    """Returns the format of a configuration: the one with most marks; empty if there is none."""
    keys, words = {one.key for one in source.given}, " ".join(source.words)
    files = {SUFFIXES.get(Path(file).suffix, "sh") for file, _ in source.sources}

    def marks(name: str) -> int:
        found = table(name)
        if not files & {*found.files}:
            return 0
        return sum(any(_pattern(one).fullmatch(key) for key in keys) or one in words for one in found.marks)

    counts = {name: marks(name) for name in NAMES}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else ""
