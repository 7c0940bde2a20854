"""The types of recipe values that count or name devices and nodes: `device_type`, `ranks`, `nodes`,
`devices_per_node` and `visible_devices`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Span
from meshctl.recipe.compose.yaml_tree import MISSING, KeyPath, Node
from meshctl.recipe.field_types import (
    MAX_COUNT,
    NAME,
    OPEN,
    Arguments,
    FieldReader,
    Integer,
    Schema,
    Text,
    Type,
    any_case,
    count_or_list,
    integer,
    whole,
    words,
)
from meshctl.recipe.scalars import is_whole, shown, text_of
from meshctl.text.english import did_you_mean
from meshctl.topology.cluster import ACCELERATORS, DEVICE_ALIASES, DEVICE_TYPES


@dataclass(frozen=True)
class DeviceType(Type):
    """A device type or an alias of one, in any case."""

    words: Mapping[str, str]
    empty: ClassVar[Any] = ""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        written = Text().read(reader, node, path)
        if not written:
            return written
        device_type = DEVICE_ALIASES.get(written.lower(), written.lower())
        if device_type in DEVICE_TYPES:
            return device_type
        reader.unknown_word(written, DEVICE_TYPES, "a device type", "MC301", node, path)
        return None

    def schema(self) -> Schema:
        return words(self.words, any_case((*DEVICE_TYPES, *DEVICE_ALIASES)))


class Ranks(Type):
    """A number of devices, or a list of devices."""

    empty: ClassVar[Any] = 0

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if not node.is_list:
            return Integer(1).read(reader, node, path)
        seen: dict[int, Span] = {}
        for item in node.value:
            number = integer(reader, item, path, "a device number, an integer of at least 0", 0, MAX_COUNT)
            if number is None or _is_twice(reader, f"device {number}", item, path, seen.get(number)):
                return None
            seen[number] = item.span
        if not seen:
            reader.empty(node, path)
        return tuple(seen) or None

    def schema(self) -> Schema:
        return count_or_list(minItems=1, uniqueItems=True)


def _is_twice(reader: FieldReader, name: str, node: Node, path: KeyPath, first: Span | None) -> bool:
    """Returns whether an item of a list is there before. Reports it."""
    if first is not None:
        of_list = path[:-1] if path[-1].isdigit() else path
        message = f"`{shown(of_list)}` names {name} twice"
        reader.report(path, "MC102", message, node.span, first.with_word("first here"))
    return first is not None


class DeviceCounts(Type):
    """A number for all nodes, a list with a number per node, or a mapping of device types to either."""

    empty: ClassVar[Any] = 0

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if not node.is_mapping:
            return self.counts(reader, node, path)
        if not node.value:
            reader.empty(node, path, "write a number, or remove it")
        found: dict[str, int | tuple[int, ...]] = {}
        spans: dict[str, Span] = {}
        for key, item in node.items():
            here, span = (*path, key), item.key or item.span
            device_type = DEVICE_ALIASES.get(key.lower(), key.lower())
            if device_type == "cpu":
                help = "remove it: a cpu group has its number of processes in `ranks`"
                message = f"`{path[-1]}` counts accelerators, not cpus"
                reader.report(here, "MC314", message, span, help=help)
            elif device_type not in ACCELERATORS:
                help = did_you_mean(device_type, ACCELERATORS)
                reader.report(here, "MC301", f"`{key}` is not a device type", span, help=help)
            elif device_type in spans:
                message = f"`{path[-1]}` names {device_type} twice"
                reader.report(here, "MC314", message, span, spans[device_type].with_word("first here"))
            else:
                spans[device_type] = span
                if counts := self.counts(reader, item, here):
                    found[device_type] = counts
        return found

    def counts(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        """Returns one number of devices for all nodes, or a tuple with the number of each node."""
        if not node.is_list:
            return Integer(1).read(reader, node, path)
        counts = [Integer().read(reader, item, (*path, str(index))) for index, item in enumerate(node.value)]
        if not any(counts) and None not in counts:
            reader.empty(node, path, "write one number for each node")
        return tuple(count or 0 for count in counts) if any(counts) else None

    def schema(self) -> Schema:
        return _by_type(count_or_list(contains={"not": {"const": 0}}))


class DevicesOfPool(DeviceCounts):
    """A number for each node of a pool, or a mapping of device types to numbers."""

    def counts(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        return Integer().read(reader, node, path)

    def schema(self) -> Schema:
        return _by_type(whole())


def _by_type(counts: Schema) -> Schema:
    device_types = any_case((*ACCELERATORS, *DEVICE_ALIASES))
    by_type = {"patternProperties": {device_types: counts}, "additionalProperties": False, "minProperties": 1}
    return {**counts, "type": [*counts["type"], "object"], **by_type}


@dataclass(frozen=True)
class NodeNames(Type):
    """The number of a node, the name of a node pool, or a list of these."""

    empty: ClassVar[Any] = ()
    wanted: ClassVar[str] = "the number of a node, the name of a node pool, or a list of these"

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if node.is_list and not node.value:
            reader.empty(node, path, "remove it for all nodes")
            return None
        seen: dict[int | str, Span] = {}
        for index, item in enumerate(node.value if node.is_list else [node]):
            here, value = (*path, str(index)) if node.is_list else path, item.value
            is_name = isinstance(value, str) and NAME.fullmatch(value) is not None
            if not is_name and not (is_whole(value) and 0 <= value <= MAX_COUNT):
                reader.expected(self.wanted, item, here)
                return None
            if _is_twice(reader, f"`{value}`" if is_name else f"node {value}", item, here, seen.get(value)):
                return None
            seen[value] = item.span
        return tuple(seen)

    def schema(self) -> Schema:
        one = {**whole(0, MAX_COUNT), "pattern": f"^{NAME.pattern}$|{OPEN}"}
        return {
            **one,
            "type": ["integer", "string", "array"],
            "items": one,
            "minItems": 1,
            "uniqueItems": True,
        }


class VisibleDevices(Type):
    """A text as in CUDA_VISIBLE_DEVICES, a number, or a list."""

    empty: ClassVar[Any] = ()

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if node.value == "" or (node.is_list and not node.value):
            reader.empty(node, path, "remove it to use all devices, or use `device_type: cpu`")
            return None
        if node.is_list:
            return Arguments().read(reader, node, path)
        is_text_or_number = isinstance(node.value, (str, int)) and not isinstance(node.value, bool)
        devices = tuple(part.strip() for part in text_of(node).split(",")) if is_text_or_number else ()
        if node.value == MISSING or not devices or not all(devices):
            reader.expected('text like "8,9"', node, path)
            return None
        return devices

    def schema(self) -> Schema:
        items = {"type": ["string", "number", "boolean"]}
        return {"type": ["string", "integer", "array"], "minLength": 1, "minItems": 1, "items": items}
