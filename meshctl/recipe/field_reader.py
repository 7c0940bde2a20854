"""Reads single values of a recipe by the types of their fields, and reports what is wrong.

    reader = FieldReader()
    values = reader.section(node, ("groups", "train"), GROUP)     {"ranks": 4, "device_type": "cuda", ...}

A wrong value is reported once and then replaced by the value of a key that is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe import field_types as types
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, Node, Path
from meshctl.recipe.field_types import MAX_COUNT
from meshctl.recipe.fields import Field, Section
from meshctl.recipe.fixes import as_whole, quoted, renamed, rewritten
from meshctl.text.english import MAX_LETTERS, did_you_mean
from meshctl.topology.cluster import ACCELERATORS, DEVICE_ALIASES, DEVICE_TYPES

MAX_QUOTED = 60
"""Characters of a wrong value that a message quotes."""
Read = Callable[["FieldReader", Node, Path, Any], Any]
"""(reader, node, its path, the type) -> the value; None for a wrong one."""


@dataclass
class FieldReader:
    found: list[Diagnostic] = field(default_factory=list)
    wrong: set[Path] = field(default_factory=set)
    """Key paths that a diagnostic is about."""
    readers: Mapping[type[types.Type], Read] = field(default_factory=lambda: READERS)

    # Reports

    def report(
        self,
        path: Path,
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
        self, wanted: str, node: Node, path: Path, help: str = "", fixes: tuple[Fix, ...] = ()
    ) -> None:
        """Reports a value of a wrong type."""
        if node.value is BROKEN:
            self.wrong.add(path)
        elif node.value == MISSING:
            self.report(path, "MC103", f"`{'.'.join(path)}` must be given", node.span, missing=True)
        elif node.target:
            message = f"`{shown(path)}` must be {wanted}, {_found(node)}"
            self.report(path, "MC102", message, node.span, node.target.with_word("this is its value"))
        else:
            message = f"`{shown(path)}` must be {wanted}, {_found(node)}"
            help, fixes = help or _yaml_hint(node, wanted), fixes or _as_text(node, wanted)
            self.report(path, "MC102", message, node.span, help=help, fixes=fixes)

    def unknown_word(
        self, word: str, words: Iterable[str], noun: str, code: str, node: Node, path: Path
    ) -> None:
        fixes = renamed(node.span, word, words)
        help = did_you_mean(word.lower(), words)
        self.report(path, code, f"`{word}` is not {noun}", node.span, help=help, fixes=fixes)

    def check_octal(self, node: Node, path: Path) -> None:
        """Warns of numbers that YAML 1.1 reads in another base: 010 as 8 and 1:30 as 90."""
        odd = re.fullmatch(r"[-+]?0[0-7_]+|[-+]?\d+(:\d+)+(\.\d*)?", node.written)
        if odd and node.written != str(node.value):
            message = f"`{shown(path)}` is written {node.written}, which YAML 1.1 reads as {node.value}"
            self.found.append(Diagnostic("MC105", message, node.span, (), f"write {node.value}", "warning"))

    # Sections

    def section(
        self, node: Node, path: Path, section: Section, without: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Returns the value of every key of a section, also of those that are left out, and reports missing
        keys; `structure.py` has reported unknown ones. Keys in `without` are not read."""
        return {
            field.key: self.value(node, path, field, section)
            for field in section.fields
            if field.key not in without
        }

    def value(self, parent: Node, path: Path, field: Field, section: Section) -> Any:
        node = parent.get(field.key)
        if node is None:
            if field.required:
                self.missing(parent, (*path, field.key), field)
            return field.value_if_absent
        value = self.read(node, (*path, field.key), field.type)
        return field.value_if_absent if value is None else value

    def read(self, node: Node, path: Path, type_: types.Type) -> Any:
        """Returns the value of a node by its type; None for a wrong one, which is reported."""
        return self.readers[type(type_)](self, node, path, type_)

    def missing(self, node: Node, path: Path, field: Field) -> None:
        """Reports a required key, unless an unknown key may be meant to be it."""
        if path in self.wrong:
            return
        message = field.required.format(name=path[-2])
        self.report(path, "MC103", message, node.key or node.span, help=field.required_help, missing=True)

    def mapping(self, node: Node | None, path: Path, help: str = "") -> Node | None:
        """Returns the node if it is a mapping."""
        if node is None or node.is_mapping:
            return node
        self.expected("a mapping", node, path, "indent the keys below it" if node.value is None else help)
        return None


# One function for each type


def _whole(reader: FieldReader, node: Node, path: Path, type_: types.Whole) -> int | None:
    value = number_of(node, int)
    if not is_whole(value) or not type_.min <= value <= type_.max:
        is_too_large = is_whole(value) and value > type_.max
        wanted = f"a whole number {f'up to {type_.max:,}' if is_too_large else f'from {type_.min}'}"
        reader.expected(wanted, node, path, integer_hint(node), as_whole(node, type_.min, type_.max))
        return None
    reader.check_octal(node, path)
    return int(value)


def _size(reader: FieldReader, node: Node, path: Path, type_: types.Size) -> int | str | None:
    if type_.may_be_auto and node.value == "auto":
        return "auto"
    value = number_of(node, int)
    if not is_whole(value) or not 1 <= value <= MAX_COUNT:
        wanted = f"a whole number from 1{' or auto' if type_.may_be_auto else ''}"
        reader.expected(wanted, node, path, integer_hint(node), as_whole(node, 1, MAX_COUNT))
        return None
    reader.check_octal(node, path)
    return int(value)


def _seconds(reader: FieldReader, node: Node, path: Path, type_: types.Seconds) -> float | None:
    value = number_of(node, float)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        reader.expected("a number from 0", node, path)
        return None
    reader.check_octal(node, path)
    return float(value)


def _boolean(reader: FieldReader, node: Node, path: Path, type_: types.Boolean) -> bool | None:
    written = str(node.value).lower()
    value = {"true": True, "false": False}.get(written) if node.from_environment else node.value
    if isinstance(value, bool):
        return value
    hint = _boolean_hint(written)
    right = hint.removeprefix("write ") if hint.startswith("write ") else written
    fixes = rewritten(node, right) if right in ("true", "false") else ()
    reader.expected("true or false", node, path, hint, fixes)
    return None


def _text(reader: FieldReader, node: Node, path: Path, type_: types.Type) -> str | None:
    if not isinstance(node.value, str) or node.value == MISSING:
        reader.expected("text", node, path)
        return None
    return node.value


def _word(reader: FieldReader, node: Node, path: Path, type_: types.Word) -> str | None:
    word = _text(reader, node, path, type_)
    if word and word not in type_.words:
        reader.unknown_word(word, type_.words, type_.noun, type_.code, node, path)
        return None
    return word


def _device_type(reader: FieldReader, node: Node, path: Path, type_: types.DeviceType) -> str | None:
    written = _text(reader, node, path, type_)
    if not written:
        return written
    device_type = DEVICE_ALIASES.get(written.lower(), written.lower())
    if device_type in DEVICE_TYPES:
        return device_type
    reader.unknown_word(written, DEVICE_TYPES, "a device type", "MC301", node, path)
    return None


def _texts(reader: FieldReader, node: Node, path: Path, type_: types.Type) -> tuple[str, ...] | None:
    if isinstance(node.value, str) and node.value != MISSING:
        return (node.value,)
    if not node.is_list:
        reader.expected("a list of texts", node, path)
        return None
    for index, item in enumerate(node.value):
        if not isinstance(item.value, str):
            reader.expected("text", item, (*path, str(index)))
    return tuple(item.value for item in node.value if isinstance(item.value, str))


def _arguments(reader: FieldReader, node: Node, path: Path, type_: types.Type) -> tuple[str, ...] | None:
    if not node.is_list:
        reader.expected("a list", node, path, "write it as [a, b], or one `- item` a line")
        return None
    for index, item in enumerate(node.value):
        if not _is_scalar(item):
            reader.expected("text or a number", item, (*path, str(index)))
    return tuple(text_of(item) for item in node.value if _is_scalar(item))


def _ranks(reader: FieldReader, node: Node, path: Path, type_: types.Ranks) -> int | tuple[int, ...] | None:
    if isinstance(node.value, str) and (devices := _devices_in(node.value)):
        hint = f"write [{', '.join(map(str, devices))}]"
        reader.expected("a whole number from 1, or a list", node, path, hint)
        return None
    if not node.is_list:
        return _whole(reader, node, path, types.Whole(1))
    seen: dict[int, Span] = {}
    for item in node.value:
        number = number_of(item, int)
        if not is_whole(number) or not 0 <= number <= MAX_COUNT:
            reader.expected("the number of a device, from 0", item, path)
            return None
        if number in seen:
            message = f"`{shown(path)}` names device {number} twice"
            reader.report(path, "MC102", message, item.span, seen[number].with_word("here already"))
            return None
        seen[number] = item.span
    if not seen:
        reader.report(path, "MC102", f"`{shown(path)}` names no device", node.span)
    return tuple(seen) or None


def _device_counts(
    reader: FieldReader, node: Node, path: Path, type_: types.DeviceCounts
) -> int | tuple[int, ...] | dict[str, int | tuple[int, ...]] | None:
    if not node.is_mapping:
        return _devices_of_nodes(reader, node, path)
    found: dict[str, int | tuple[int, ...]] = {}
    spans: dict[str, Span] = {}
    for key, item in node.items():
        here, span = (*path, key), item.key or item.span
        device_type = DEVICE_ALIASES.get(key.lower(), key.lower())
        if device_type == "cpu":
            help = "leave it out: a cpu group says how many processes it has"
            message = "`devices_per_node` counts accelerators, cpu is none"
            reader.report(here, "MC314", message, span, help=help)
        elif device_type not in ACCELERATORS:
            help = did_you_mean(device_type, ACCELERATORS)
            reader.report(here, "MC301", f"`{key}` is not a device type", span, help=help)
        elif device_type in spans:
            message = f"`devices_per_node` says {device_type} twice"
            reader.report(here, "MC314", message, span, spans[device_type].with_word("here already"))
        else:
            spans[device_type] = span
            if counts := _devices_of_nodes(reader, item, here):
                found[device_type] = counts
    return found


def _devices_of_nodes(reader: FieldReader, node: Node, path: Path) -> int | tuple[int, ...] | None:
    """Returns the number of devices of every node, or of one node after the other."""
    if not node.is_list:
        return _whole(reader, node, path, types.Whole(1))
    counts = [
        _whole(reader, item, (*path, str(index)), types.Whole()) for index, item in enumerate(node.value)
    ]
    if not any(counts) and None not in counts:
        message, help = f"`{shown(path)}` says no device", "the list has a number for each node"
        reader.report(path, "MC102", message, node.span, help=help)
    return tuple(count or 0 for count in counts) if any(counts) else None


def _visible_devices(
    reader: FieldReader, node: Node, path: Path, type_: types.VisibleDevices
) -> tuple[str, ...] | None:
    if node.value == "" or (node.is_list and not node.value):
        help = "leave it out for all; a job without devices is on cpu"
        reader.report(path, "MC102", f"`{shown(path)}` names no device", node.span, help=help)
        return None
    if node.is_list:
        return _arguments(reader, node, path, type_)
    is_text_or_number = isinstance(node.value, (str, int)) and not isinstance(node.value, bool)
    devices = tuple(part.strip() for part in text_of(node).split(",")) if is_text_or_number else ()
    if node.value == MISSING or not devices or not all(devices):
        reader.expected('text like "8,9"', node, path)
        return None
    return devices


def _environment(
    reader: FieldReader, node: Node, path: Path, type_: types.Environment
) -> tuple[tuple[str, str | None], ...] | None:
    if node.is_list:
        return tuple((name, None) for name in _texts(reader, node, path, type_) or ())
    if reader.mapping(node, path) is None:
        return None
    values: list[tuple[str, str | None]] = []
    for key, item in node.items():
        here = (*path, key)
        if not key or "=" in key or "\0" in key:
            message = f"`{key[:MAX_LETTERS]}` cannot name an environment variable"
            reader.report(here, "MC106", message, item.key or item.span)
        elif isinstance(item.value, bool):
            reader.expected("text or a number", item, here, f'quote it: "{item.written}"')
        elif _is_scalar(item):
            values.append((key, text_of(item)))
        else:
            reader.expected("text or a number", item, here)
    return tuple(values)


def _nested(reader: FieldReader, node: Node, path: Path, type_: types.Nested) -> dict[str, Any] | str | None:
    """Returns the values of a section, or its shorter form."""
    if node.is_mapping:
        return reader.section(node, path, type_.section)
    if type_.may_be_off and (node.value is None or node.value is False):
        return None
    is_word = isinstance(type_.shorthand, types.Word)
    if type_.shorthand and (is_word or (isinstance(node.value, str) and node.value != MISSING)):
        found = reader.read(node, path, type_.shorthand)
        return found if isinstance(found, str) else None
    if type_.wanted != "a mapping":
        reader.expected(type_.wanted, node, path)
        return None
    steps = node.value if is_whole(node.value) else "STEPS"
    reader.mapping(node, path, f"write {{every: {steps}}}" if "every" in type_.section.by_key else "")
    return None


def _nothing(reader: FieldReader, node: Node, path: Path, type_: types.Type) -> None:
    """Composition has read it, or `reader.py` reads it with what stands beside it."""


READERS: Mapping[type[types.Type], Read] = {
    types.Whole: _whole,
    types.OptionalWhole: _whole,
    types.Size: _size,
    types.Seconds: _seconds,
    types.Boolean: _boolean,
    types.Text: _text,
    types.RunName: _text,
    types.ClassPath: _text,
    types.Endpoint: _text,
    types.Word: _word,
    types.DeviceType: _device_type,
    types.Texts: _texts,
    types.DimOrder: _texts,
    types.Arguments: _arguments,
    types.Ranks: _ranks,
    types.DeviceCounts: _device_counts,
    types.VisibleDevices: _visible_devices,
    types.Environment: _environment,
    types.Nested: _nested,
    types.Defaults: _nothing,
}
"""`reader.py` adds the types whose values are classes of `model.py`."""


# Values and texts


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def shown(path: Path) -> str:
    """Returns the last key of a path; of a list's item, with the key of the list."""
    return ".".join(path[-2:]) if len(path) > 1 and path[-1].isdigit() else path[-1]


def number_of(node: Node, kind: Callable[[str], Any]) -> Any:
    """Returns a node's value; text from the environment is converted by `kind` if it can be."""
    if node.from_environment and isinstance(node.value, str):
        try:
            return kind(node.value)
        except ValueError:
            return node.value
    return node.value


def text_of(node: Node) -> str:
    """Returns a scalar as it is written: 010 is a name here, not 8."""
    return node.value if isinstance(node.value, str) else node.written or str(node.value)


def _is_scalar(node: Node) -> bool:
    return isinstance(node.value, (str, int, float)) and node.value != MISSING


def _devices_in(text: str) -> list[int]:
    """Returns the numbers in `0,1` or `0-3` if there are at least two, and not too many for a list."""
    if found := re.fullmatch(r"(\d{1,6})-(\d{1,6})", text):
        first, last = int(found[1]), int(found[2])
        return list(range(first, last + 1)) if 0 < last - first < 16 else []
    return [int(part) for part in text.split(",")] if re.fullmatch(r"\d{1,6}( *, *\d{1,6})+", text) else []


# Help for wrong values


def _found(node: Node) -> str:
    """Returns what stands in place of a right value. A text from the environment may be a secret."""
    if node.from_environment:
        return "what the environment gives is not"
    if node.value is None:
        return "found nothing"
    if node.is_mapping:
        return "found a mapping"
    if node.is_list:
        return "found a list"
    if isinstance(node.value, str):
        return f"it is the text `{node.value[:MAX_QUOTED]}`"
    return f"it is {(node.written or str(node.value))[:MAX_QUOTED]}"


def integer_hint(node: Node) -> str:
    """Returns how to write a value as a whole number, if it may have been meant to be one."""
    value = node.value
    if isinstance(value, str) and not node.from_environment:
        if re.fullmatch(r"[-+]?(0|[1-9]\d*)", value):
            return "remove the quotes"
        if re.fullmatch(r"[-+]?0\d+", value):
            return f"write {int(value)}: a number does not begin with 0"
        if re.fullmatch(r"0o[0-7]{1,20}", value):
            return f"write {int(value, 8)}"
        if re.fullmatch(r"[-+]?\d{1,3}([ ,.']\d{3})+", value):
            return f"write {re.sub('[^0-9+-]', '', value)}"
    if isinstance(value, float) and value == value and abs(value) < 1e15 and value == int(value):
        return f"write {int(value)}"
    return ""


def _boolean_hint(written: str) -> str:
    if written in ("true", "false"):
        return "remove the quotes"
    if written in ("1", "yes", "on"):
        return "write true"
    return "write false" if written in ("0", "no", "off") else ""


def _as_text(node: Node, wanted: str) -> tuple[Fix, ...]:
    is_text_wanted = wanted in ("text", "text or a number")
    return quoted(node) if is_text_wanted and isinstance(node.value, (bool, int, float)) else ()


def _yaml_hint(node: Node, wanted: str) -> str:
    value = node.value
    if wanted == "text" and isinstance(value, bool):
        return f'`{node.written}` is a boolean in YAML 1.1, quote it: "{node.written}"'
    if wanted == "text" and isinstance(value, (int, float)):
        return f'quote it: "{node.written}"'
    if not isinstance(value, str) or not value:
        return ""
    reference = re.fullmatch(r"\$?[({]{0,2}(\w+(\.\w+)+)[)}]{0,2}", value)
    if reference and not value[0].isalnum():
        return f"another value of the recipe is ${{{reference[1]}}}"
    return "YAML's quotes are straight ones" if value[0] in "\u201c\u201d\u2018\u2019\u201e" else ""
