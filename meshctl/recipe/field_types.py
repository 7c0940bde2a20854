"""The types of recipe values, which the table of fields (`fields.py`) uses.

    value = type_.read(reader, node, path)       the value; None for a wrong one, which the reader reports
    type_.schema()                               the JSON Schema of the values that `read` accepts

A new type is one class. `device_types.py` has the types of values about devices, and `section_types.py` those
of mappings.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import field as made
from functools import cached_property
from typing import Any, ClassVar, Literal

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, KeyPath, Node, is_override
from meshctl.recipe.fixes import renamed
from meshctl.recipe.scalars import (
    BYTES_SCHEMA,
    MIN_MEMORY,
    SECONDS_SCHEMA,
    bytes_in,
    found_instead,
    integers_from,
    is_scalar,
    is_whole,
    number_of,
    quoted,
    seconds_in,
    shown,
    text_of,
    yaml_hint,
)
from meshctl.text.english import abbreviated, counted, did_you_mean, listed
from meshctl.topology.sizes import DIMS

# The JSON Schema of values. It differs from others in three ways: `${...}` and `???` are allowed
# everywhere; no key is required, because an included file may contain it; and keys that the reader
# refuses are unknown.

Schema = dict[str, Any]
MAX_COUNT = 10_000_000
AUTO = "the number of ranks that the other sizes leave"

OPEN = r"^\?\?\?$|\$\{"
"""A text that is allowed for any value: `???`, or one with an interpolation."""
WORD, REST = r"[^\x00-@\[-^`{-\x7f]", r"[^\x00-/:-@\[-^`{-\x7f]"
"""The first and the further characters of an identifier in any alphabet. `\\w` matches only ASCII in some
regex engines."""


def mapping(**more: object) -> Schema:
    return {"type": ["object", "string"], "pattern": OPEN, **more}


def ref(name: str) -> Schema:
    """Returns a reference to the schema of a section."""
    return {"$ref": f"#/$defs/{name}"}


def whole(min: int = 0, max: int = MAX_COUNT) -> Schema:
    return {"type": ["integer", "string"], "minimum": min, "maximum": max, "pattern": OPEN}


def text(pattern: str = "") -> Schema:
    return {"type": "string", **({"pattern": f"{pattern}|{OPEN}"} if pattern else {})}


def texts() -> Schema:
    """A list of texts, or one."""
    return {"type": ["string", "array"], "items": {"type": "string"}}


def list_of(item: Schema, **more: object) -> Schema:
    return {"type": ["array", "string"], "pattern": OPEN, "items": item, **more}


def words(words: Mapping[str, str], pattern: str = "") -> Schema:
    """One of a few words, each with its meaning; or a text that matches a pattern."""
    known = [{"const": word, "description": meaning} for word, meaning in words.items()]
    return {"anyOf": [*known, {"type": "string", "pattern": f"{pattern}|{OPEN}" if pattern else OPEN}]}


def any_case(words: Iterable[str]) -> str:
    """Returns a pattern for words in any case: a schema has no flag for that."""
    return f"^({'|'.join(''.join(f'[{letter}{letter.upper()}]' for letter in word) for word in words)})$"


def count_or_list(**more: object) -> Schema:
    return {**whole(1), "type": ["integer", "array", "string"], "items": whole(), **more}


def plain_data() -> Schema:
    """The schema of plain data of any depth, such as the values in `args`."""
    inner = {"$ref": "#/$defs/data"}
    return {"properties": {"_target_": False}, "additionalProperties": inner, "items": inner}


# Values

MAX_SEED = 2**63 - 1
MAX_STEPS = 10**12
MAX_BYTES = 10**15
MAX_NAME = 100
"""Maximum number of characters of a name, which becomes part of file names."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
RUN_NAME = re.compile(r"\w[\w.@+-]*")

Top = Literal["groups", "components", "pipeline"]
"""The top-level mappings whose keys users choose."""


def is_run_name(name: str) -> bool:
    """Returns whether a name is valid for a folder of runs."""
    return RUN_NAME.fullmatch(name) is not None and len(name) <= MAX_NAME


@dataclass(frozen=True)
class Type(ABC):
    empty: ClassVar[Any] = None
    """The value of a key that is left out and has no default, or whose value could not be read."""

    @abstractmethod
    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        """Returns the value of a node. Reports a wrong value and returns None."""

    @abstractmethod
    def schema(self) -> Schema:
        """Returns the JSON Schema of the values."""


@dataclass(frozen=True)
class Field:
    """One key of a section."""

    key: str
    type: Type
    doc: str
    default: Any = None
    """The value if the key is left out; None if leaving it out has a special meaning."""
    required: str = ""
    """The message if the key is missing, with `{name}` for the name of the mapping; empty for an optional
    key."""
    required_help: str = ""
    aliases: str = ""
    """Names of the key in other systems, separated by spaces."""
    is_optional: bool = False
    """True if "left out" is None, which differs from 0 and false."""

    @property
    def value_if_absent(self) -> Any:
        if self.is_optional:
            return None
        return self.type.empty if self.default is None else self.default

    def schema(self) -> Schema:
        default = {} if self.default is None else {"default": self.default}
        return {"description": self.doc, **self.type.schema(), **default}


@dataclass(frozen=True)
class Retired:
    """A key that an earlier version of meshctl had."""

    key: str
    idle: Any
    """The only value that had no effect."""
    help: str
    """The change, and what users do instead."""


@dataclass(frozen=True, eq=False)
class Section:
    """A mapping of a recipe with a fixed set of keys."""

    name: str
    title: str
    """The words by which messages name the section, such as `a stage of a block`."""
    fields: tuple[Field, ...]
    retired: tuple[Retired, ...] = ()

    @cached_property
    def by_key(self) -> dict[str, Field]:
        return {field.key: field for field in self.fields}

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.by_key)

    def default(self, key: str) -> Any:
        """Returns the value of a key that is left out."""
        return self.by_key[key].value_if_absent

    def defaults(self) -> Iterator[Field]:
        """Yields the fields with a default."""
        return (field for field in self.fields if field.default is not None)

    def schema(self, *, has_shorthand: bool = False) -> Schema:
        """Returns the schema of the mapping, which allows only these keys. If `has_shorthand`, a text is also
        allowed."""
        kind = {"type": ["object", "string"]} if has_shorthand else mapping()
        properties = {field.key: field.schema() for field in self.fields}
        return {**kind, "properties": properties, "additionalProperties": False}


@plain_dataclass
class FieldReader:
    """Reads the values of a recipe by the types of their fields, and reports what is wrong.

        reader = FieldReader()
        values = reader.section(node, ("groups", "train"), GROUP)     {"ranks": 4, "device_type": "cuda", ...}

    A wrong value is reported once. It is then treated like a key that was left out.
    """

    found: list[Diagnostic] = made(default_factory=list)
    wrong: set[KeyPath] = made(default_factory=set)
    """Key paths of reported values."""

    # Reports

    def report(
        self,
        path: KeyPath,
        code: str,
        message: str,
        span: Span,
        *seconds: Span,
        help: str = "",
        fixes: tuple[Fix, ...] = (),
        missing: bool = False,
    ) -> None:
        self.wrong.add(path)
        self.found.append(Diagnostic(code, message, span, seconds, help, fixes=fixes, missing=missing))

    def expected(
        self, wanted: str, node: Node, path: KeyPath, help: str = "", fixes: tuple[Fix, ...] = ()
    ) -> None:
        """Reports a value of the wrong type. `wanted` describes the right type."""
        if node.value is BROKEN:
            self.wrong.add(path)
        elif node.value == MISSING:
            name = ".".join(path)
            help = f"replace the `???`, or write {name}=VALUE on the command line"
            self.report(path, "MC103", f"`{name}` must be given", node.span, help=help, missing=True)
        elif node.target:
            message = f"`{shown(path)}` must be {wanted}, {found_instead(node)}"
            self.report(path, "MC102", message, node.span, node.target.with_word("this is its value"))
        else:
            message = f"`{shown(path)}` must be {wanted}, {found_instead(node)}"
            help, fixes = help or yaml_hint(node, wanted), fixes or quoted(node, wanted)
            self.report(path, "MC102", message, node.span, help=help, fixes=fixes)

    def unknown_word(
        self, word: str, words: Iterable[str], noun: str, code: str, node: Node, path: KeyPath
    ) -> None:
        fixes = renamed(node.span, word, words)
        help = did_you_mean(word.lower(), words)
        self.report(path, code, f"`{word}` is not {noun}", node.span, help=help, fixes=fixes)

    def check_octal(self, node: Node, path: KeyPath) -> None:
        """Warns about numbers that YAML 1.1 reads in another base: 010 as 8 and 1:30 as 90."""
        odd = re.fullmatch(r"[-+]?0[0-7_]+|[-+]?\d+(:\d+)+(\.\d*)?", node.written)
        if odd and node.written != str(node.value):
            message = f"`{shown(path)}` is written {node.written}, which YAML 1.1 reads as {node.value}"
            self.found.append(Diagnostic("MC105", message, node.span, (), f"write {node.value}", "warning"))

    # Sections

    def section(
        self, node: Node, path: KeyPath, section: Section, without: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Returns key -> value for every key of a section, with defaults for keys that are left out. Reports
        missing required keys; `mistakes.py` has reported unknown ones. Keys in `without` are not read."""
        return {
            field.key: self.value(node, path, field, section)
            for field in section.fields
            if field.key not in without
        }

    def value(self, parent: Node, path: KeyPath, field: Field, section: Section) -> Any:
        """Returns the value of a key. Reports a missing required key, unless an unknown key may be a
        misspelling of it."""
        node = parent.get(field.key)
        if node is None:
            here = (*path, field.key)
            if field.required and here not in self.wrong:
                message, span = field.required.format(name=here[-2]), parent.key or parent.span
                self.report(here, "MC103", message, span, help=field.required_help, missing=True)
            return field.value_if_absent
        value = field.type.read(self, node, (*path, field.key))
        return field.value_if_absent if value is None else value

    def build(self, section: Section, name: str, node: Node, path: KeyPath) -> Any:
        """Returns the object that an item of a mapping of names describes, such as one group."""
        return self.section(node, path, section)

    def empty(self, node: Node, path: KeyPath, help: str = "") -> None:
        self.report(path, "MC102", f"`{shown(path)}` is empty", node.span, help=help)

    def mapping(self, node: Node | None, path: KeyPath, help: str = "") -> Node | None:
        """Returns the node if it is a mapping; otherwise reports it and returns None."""
        if node is None or node.is_mapping:
            return node
        if node.value is None:
            help = "indent the keys below it"
            if is_override(node.span.file):
                help = f"to delete it, write ~{'.'.join(path)}"
        self.expected("a mapping", node, path, help)
        return None


# Simple values


def integer(reader: FieldReader, node: Node, path: KeyPath, wanted: str, least: int, most: int) -> int | None:
    """Returns an integer from `least` to `most`. Reports another value; `wanted` describes a right one."""
    value = number_of(node, int)
    if not is_whole(value) or not least <= value <= most:
        reader.expected(wanted, node, path)
        return None
    reader.check_octal(node, path)
    return int(value)


@dataclass(frozen=True)
class Integer(Type):
    """An integer."""

    min: int = 0
    max: int = MAX_COUNT
    empty: ClassVar[Any] = 0

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        value = number_of(node, int)
        is_too_large = is_whole(value) and value > self.max
        wanted = f"an integer up to {self.max:,}" if is_too_large else integers_from(self.min)
        return integer(reader, node, path, wanted, self.min, self.max)

    def schema(self) -> Schema:
        return whole(self.min, self.max)


@dataclass(frozen=True)
class Size(Type):
    """A size of a mesh: a positive integer, or `auto`."""

    may_be_auto: bool = True
    empty: ClassVar[Any] = 0

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if self.may_be_auto and node.value == "auto":
            return "auto"
        wanted = f"{integers_from(1)}{' or `auto`' if self.may_be_auto else ''}"
        return integer(reader, node, path, wanted, 1, MAX_COUNT)

    def schema(self) -> Schema:
        auto = {"const": "auto", "description": AUTO}
        return {"anyOf": [auto, whole(1)]} if self.may_be_auto else whole(1)


@dataclass(frozen=True)
class Seconds(Type):
    """A finite number of seconds, written as a number or with units: 90s, 10m, 1h30m, 2d."""

    least: float = 0
    empty: ClassVar[Any] = 0.0

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        value = number_of(node, float)
        if isinstance(value, str) and (seconds := seconds_in(value)) is not None:
            value = seconds
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not self.least <= value < float("inf"):
            help = "write seconds, or 90s, 10m or 2h" if isinstance(value, str) else ""
            reader.expected(f"a number of at least {self.least:g}", node, path, help)
            return None
        reader.check_octal(node, path)
        return float(value)

    def schema(self) -> Schema:
        kinds = {"type": ["number", "string"], "minimum": self.least}
        return {**kinds, "pattern": f"{SECONDS_SCHEMA}|{OPEN}"}


class Bytes(Type):
    """A number of bytes, written as an integer or with a unit: 80GB, 141GiB, 1.5 TB."""

    empty: ClassVar[Any] = 0

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        value = number_of(node, int)
        count = bytes_in(value) if isinstance(value, str) else value
        if count is not None and is_whole(count) and MIN_MEMORY <= count <= MAX_BYTES:
            return count
        reader.expected("a size in bytes, such as 80GB or 141GiB", node, path)
        return None

    def schema(self) -> Schema:
        return {**whole(MIN_MEMORY, MAX_BYTES), "pattern": f"{BYTES_SCHEMA}|{OPEN}"}


class Boolean(Type):
    empty: ClassVar[Any] = False

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        written = str(node.value).lower()
        value = {"true": True, "false": False}.get(written) if node.from_environment else node.value
        if isinstance(value, bool):
            return value
        reader.expected("true or false", node, path)
        return None

    def schema(self) -> Schema:
        return {"type": ["boolean", "string"], "pattern": OPEN}


@dataclass(frozen=True)
class AbsolutePath(Type):
    """An absolute path, which means the same in every working directory. `~` is the home folder."""

    empty: ClassVar[Any] = ""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        written = node.value if isinstance(node.value, str) else ""
        found = os.path.expanduser(written)
        if os.path.isabs(found) and written != MISSING:
            return found
        reader.expected("an absolute path", node, path)
        return None

    def schema(self) -> Schema:
        return text("^[~/]")


@dataclass(frozen=True)
class Text(Type):
    names: Top | None = None
    """The top-level mapping that must contain the text as a name; None for any text."""
    empty: ClassVar[Any] = ""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if not isinstance(node.value, str) or node.value in ("", MISSING):
            reader.expected(f"a name of `{self.names}`" if self.names else "text", node, path)
            return None
        return node.value

    def schema(self) -> Schema:
        return text()


class Metric(Text):
    """A metric, STAGE.NAME."""


class RunName(Text):
    """A text that is valid as the name of a folder of runs."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        name: str | None = Text().read(reader, node, path)
        if name and not is_run_name(name):
            help = "use letters, digits, `_`, `-`, `.`, `@` and `+`"
            if len(name) > MAX_NAME:
                help = f"use at most {MAX_NAME} letters"
            message = f"`{abbreviated(name)}` cannot be the name of a folder of runs"
            reader.report(path, "MC106", message, node.span, help=help)
        return name

    def schema(self) -> Schema:
        return {**text(f"^({WORD}|[0-9])({REST}|[.@+-])*$"), "maxLength": MAX_NAME}


class ClassPath(Text):
    """The dotted path of a class."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        text: str | None = Text().read(reader, node, path)
        if text and not CLASS_PATH.fullmatch(text):
            help = "write module.Class, without a path or `.py`"
            reader.report(path, "MC501", f"`{text}` is not the dotted path of a class", node.span, help=help)
            return None
        return text

    def schema(self) -> Schema:
        return text(rf"^{WORD}{REST}*(\.{WORD}{REST}*)+$")


class Endpoint(Text):
    """A text of the form COMPONENT.METHOD."""

    def schema(self) -> Schema:
        return text(rf"^{NAME.pattern}\.{WORD}{REST}*$")


@dataclass(frozen=True)
class Word(Type):
    """One of a few words."""

    words: Mapping[str, str]
    """Each word with its meaning."""
    noun: str
    """Name of the type in messages, e.g. "a collect mode"."""
    code: str
    """The code of the diagnostic for an unknown word."""
    empty: ClassVar[Any] = ""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if not isinstance(node.value, str) or not node.value:
            reader.expected(listed(self.words, "or"), node, path)
            return None
        word = Text().read(reader, node, path)
        if word is not None and word not in self.words:
            reader.unknown_word(word, self.words, self.noun, self.code, node, path)
            return None
        return word

    def schema(self) -> Schema:
        return words(self.words)


# Lists


@dataclass(frozen=True)
class TextList(Type):
    """A list of texts, or one text."""

    empty: ClassVar[Any] = ()

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        items = [(node, path)]
        if not isinstance(node.value, str) or node.value in ("", MISSING):
            if not node.is_list:
                reader.expected("a list of texts", node, path)
                return None
            items = [(item, (*path, str(index))) for index, item in enumerate(node.value)]
        for item, here in items:
            if isinstance(item.value, str):
                self.check(reader, item.value, item, here)
            else:
                reader.expected("text", item, here)
        return tuple(item.value for item, _ in items if isinstance(item.value, str))

    def check(self, reader: FieldReader, text: str, node: Node, path: KeyPath) -> None:
        """Reports a text that is not allowed."""

    def schema(self) -> Schema:
        return texts()


@dataclass(frozen=True)
class Texts(TextList):
    names: Top | None = None
    is_prefix: bool = False
    """True if the name is only the first part of each text, as in `STAGE.NAME`."""


class SomeStages(Texts):
    """A list of at least one stage, or one stage."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if not node.is_list or node.value:
            return super().read(reader, node, path)
        reader.empty(node, path, "write the name of a stage, or remove the parameter if it has a default")
        return None

    def schema(self) -> Schema:
        return {**texts(), "minItems": 1}


@dataclass(frozen=True)
class Words(TextList):
    """A list of words, or one word."""

    words: Mapping[str, str]
    """Each word with its meaning."""
    noun: str
    code: str
    """The code of the diagnostic for an unknown word."""

    def check(self, reader: FieldReader, text: str, node: Node, path: KeyPath) -> None:
        if text not in self.words:
            reader.unknown_word(text, self.words, self.noun, self.code, node, path)

    def schema(self) -> Schema:
        word = words(self.words)
        return {"anyOf": [*word["anyOf"], {"type": "array", "items": word}]}


class Arguments(Type):
    """A list of texts and numbers. Numbers keep their text."""

    empty: ClassVar[Any] = ()

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if not node.is_list:
            reader.expected("a list", node, path, "write it as [a, b], or one `- item` a line")
            return None
        for index, item in enumerate(node.value):
            if not is_scalar(item):
                reader.expected("text or a number", item, (*path, str(index)))
        return tuple(text_of(item) for item in node.value if is_scalar(item))

    def schema(self) -> Schema:
        return list_of({"type": ["string", "number", "boolean"]})


class DimOrder(Texts):
    """All dims of a mesh, outermost first."""

    def schema(self) -> Schema:
        dims = words(dict.fromkeys(DIMS, ""))
        return list_of(dims, minItems=len(DIMS), maxItems=len(DIMS), uniqueItems=True)


class Environment(Type):
    """A mapping of environment variables to values, or a list of variables to pass through."""

    empty: ClassVar[Any] = ()

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if node.is_list:
            names = [item for item in node.value if isinstance(item.value, str)]
            if all(self.is_name(reader, item.value, item.span, path) for item in names):
                return tuple((name, None) for name in Texts().read(reader, node, path) or ())
            return None
        if reader.mapping(node, path) is None:
            return None
        values: list[tuple[str, str | None]] = []
        for key, item in node.items():
            here = (*path, key)
            if not self.is_name(reader, key, item.key or item.span, here):
                continue
            if is_scalar(item) and not isinstance(item.value, bool):
                values.append((key, text_of(item)))
            else:
                help = f'quote it: "{item.written}"' if isinstance(item.value, bool) else ""
                reader.expected("text or a number", item, here, help)
        return tuple(values)

    def is_name(self, reader: FieldReader, name: str, span: Span, path: KeyPath) -> bool:
        """Returns whether a text can be the name of a variable. Reports another one."""
        if name and "=" not in name and "\0" not in name:
            return True
        message = f"`{abbreviated(name)}` is not a valid name of an environment variable"
        message = message if name else "the name of an environment variable is empty"
        left, equals, right = name.partition("=")
        help = f"write {{{left}: {right}}}" if left and equals else ""
        reader.report(path, "MC106", message, span, help=help)
        return False

    def schema(self) -> Schema:
        return {
            "type": ["object", "array", "string"],
            "pattern": OPEN,
            "propertyNames": {"pattern": r"^[^=\x00]+$"},
            "additionalProperties": {"type": ["string", "number"]},
            "items": {"type": "string"},
        }


# Steps


class StepsOrTime(Integer):
    """A number of steps, an integer, or a time with units, 90s, 10m, 1h30m, which is read as a float."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if isinstance(node.value, str) and node.value and node.value[-1].isalpha():
            if (seconds := seconds_in(node.value)) and not node.value.isdigit():
                return seconds
            reader.expected("a number of steps, or a time such as 10m", node, path)
            return None
        return super().read(reader, node, path)

    def schema(self) -> Schema:
        time = {"type": "string", "pattern": f"{SECONDS_SCHEMA}|{OPEN}"}
        return {"anyOf": [whole(self.min, self.max), time]}


class Window(Integer):
    """A first and a last step, [FIRST, LAST], or one step."""

    empty: ClassVar[Any] = ()

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if not node.is_list:
            step = integer(reader, node, path, "[FIRST, LAST], or one step", self.min, self.max)
            return None if step is None else (step, step)
        if len(node.value) != 2:
            message = f"`{shown(path)}` has {counted(len(node.value), 'number')} in place of two"
            reader.report(path, "MC102", message, node.span, help="write [FIRST, LAST]")
            return None
        ends = [super(Window, self).read(reader, item, path) for item in node.value]
        if None in ends:
            return None
        first, last = ends
        if first > last:
            message = f"`{shown(path)}` ends with step {last}, before its first step {first}"
            reader.report(path, "MC102", message, node.span, help=f"write [{last}, {first}]")
            return None
        return first, last

    def schema(self) -> Schema:
        step = whole(self.min, self.max)
        return {"anyOf": [step, {"type": "array", "items": step, "minItems": 2, "maxItems": 2}]}
