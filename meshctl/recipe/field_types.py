"""The types of recipe values, as the table of fields (`fields.py`) names them.

A type is plain data. What it accepts is written once for each side that needs it: `field_reader.py` and
`reader.py` read a value of the type, `schema.py` describes it to editors, and shell completion proposes
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from meshctl.recipe.fields import Section

MAX_COUNT = 10_000_000
MAX_SEED = 2**63 - 1
MAX_STEPS = 10**12
MAX_BYTES = 10**15
MAX_NAME = 100
"""Characters of a name, which becomes a part of file names."""

Top = Literal["groups", "components", "pipeline"]
"""The top-level mappings whose keys users choose."""


@dataclass(frozen=True)
class Type:
    empty: ClassVar[Any] = None
    """The value of a key that is left out and has no default, and of one that could not be read."""


# Simple values


@dataclass(frozen=True)
class Whole(Type):
    """A whole number."""

    min: int = 0
    max: int = MAX_COUNT
    empty: ClassVar[Any] = 0


class OptionalWhole(Whole):
    """A whole number of which 0 and "left out" mean different things."""

    empty: ClassVar[Any] = None


@dataclass(frozen=True)
class Size(Type):
    """A size of a mesh: a whole number from 1, or `auto`."""

    may_be_auto: bool = True
    empty: ClassVar[Any] = 0


class Seconds(Type):
    """A finite number from 0."""

    empty: ClassVar[Any] = 0.0


class Boolean(Type):
    empty: ClassVar[Any] = False


@dataclass(frozen=True)
class Text(Type):
    names: Top | None = None
    """The mapping whose names the text may be; None for any text."""
    empty: ClassVar[Any] = ""


class RunName(Text):
    """A text that can name a folder of runs."""


class ClassPath(Text):
    """The dotted path of a class."""


class Endpoint(Text):
    """COMPONENT.METHOD."""


@dataclass(frozen=True)
class Word(Type):
    """One of a few words."""

    words: Mapping[str, str]
    """Each word with its meaning."""
    noun: str
    """What messages call such a word: "a collect mode"."""
    code: str
    """The code of the diagnostic for another word."""
    empty: ClassVar[Any] = ""


@dataclass(frozen=True)
class DeviceType(Type):
    """A device type or an alias of one, in any case."""

    words: Mapping[str, str]
    empty: ClassVar[Any] = ""


# Lists


@dataclass(frozen=True)
class Texts(Type):
    """A list of texts, or one text."""

    names: Top | None = None
    is_prefix: bool = False
    """Whether the names are only the first part of each text: `STAGE.NAME`."""
    empty: ClassVar[Any] = ()


class Arguments(Type):
    """A list of texts and numbers; numbers stay as they are written."""

    empty: ClassVar[Any] = ()


class DimOrder(Texts):
    """All dims of a mesh, outermost first."""


# Values of several forms, each the type of one key


class Ranks(Type):
    """A count of devices, or a list of devices."""

    empty: ClassVar[Any] = 0


class DeviceCounts(Type):
    """A count for all nodes, a list with one for each node, or a mapping of device types to either."""

    empty: ClassVar[Any] = 0


class VisibleDevices(Type):
    """Text as in CUDA_VISIBLE_DEVICES, one number, or a list."""

    empty: ClassVar[Any] = ()


class Environment(Type):
    """A mapping of environment variables to values, or a list of variables to pass through."""

    empty: ClassVar[Any] = ()


@dataclass(frozen=True)
class Script(Type):
    """The path of a script, or a section that names a module."""

    section: Section


@dataclass(frozen=True)
class Inputs(Type):
    """A stage, a list of stages, or a mapping of parameters to stages or to sections."""

    section: Section
    """The section that a parameter may be."""
    empty: ClassVar[Any] = ()


class PlainData(Type):
    """A mapping of plain data to any depth; null is an empty one."""


class FreeMapping(Type):
    """A mapping of anything."""


class Defaults(Type):
    """Hydra's defaults list, which composition has consumed before a recipe is read."""


# Sections


@dataclass(frozen=True)
class Nested(Type):
    """A mapping that is a section, or a shorter form of it."""

    section: Section
    shorthand: Text | Word | None = None
    """The type of a single value in place of the mapping."""
    wanted: str = "a mapping"
    """What messages call an acceptable value."""
    may_be_off: bool = False
    """Whether `false` and null stand for its absence."""


@dataclass(frozen=True)
class Named(Type):
    """A mapping of names, which users choose, to sections."""

    section: Section
