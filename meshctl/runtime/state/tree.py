"""A component's state as a document and tensors, and back, with the type of every value.

    {"step": 3, "model": {"w": tensor}}
        document    ["dict", [["step", 3], ["model", ["dict", [["w", ["tensor", "model.w"]]]]]]]
        tensors     {"model.w": tensor}

The document is JSON: null, booleans, integers, floats and texts are themselves, and every other value is a
list whose first item is a tag. A name is the path of a value, joined by dots, as torch.distributed.checkpoint
names it. A list without tensors is one value with one name; a list with tensors is a container, whose items
are named by their index.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from meshctl.dataclass import dataclass
from meshctl.runtime.errors import CheckpointError

Path = tuple[str, ...]
Document = Any
"""A JSON value, as in the module's docstring."""

MAX_DECIMAL_BITS = 4096
"""Larger integers are written in hexadecimal, because Python limits the digits of decimal ones."""
NUMPY_KINDS = "biufcSUmM"
"""numpy's letters for the kinds of dtypes whose arrays are stored: no objects and no records."""


def _text(data: bytes | bytearray) -> list[Any]:
    return [base64.b64encode(data).decode()]


def _bounds(value: range | slice) -> list[Any]:
    return [value.start, value.stop, value.step]


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch.{name} is not a dtype")
    return found


SIMPLE: dict[type, tuple[str, Callable[[Any], list[Any]], Callable[..., Any]]] = {
    bytes: ("bytes", _text, base64.b64decode),
    bytearray: ("bytearray", _text, lambda text: bytearray(base64.b64decode(text))),
    complex: ("complex", lambda value: [value.real, value.imag], complex),
    range: ("range", _bounds, range),
    slice: ("slice", _bounds, slice),
    torch.Size: ("torch.Size", lambda value: [list(value)], torch.Size),
    torch.dtype: ("torch.dtype", lambda value: [str(value).removeprefix("torch.")], _dtype),
    torch.device: ("torch.device", lambda value: [str(value)], torch.device),
}
"""Type -> the tag of its values, which are written as a few JSON values, and what writes and reads them."""
READERS: dict[str, Callable[..., Any]] = {tag: read for tag, _, read in SIMPLE.values()}

MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter"}
SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
SETS: dict[type, str] = {set: "set", frozenset: "frozenset"}
CONTAINERS: dict[str, Callable[[Any], Any]] = {
    tag: kind for kind, tag in (*MAPPINGS.items(), *SEQUENCES.items(), *SETS.items())
}
FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)}
"""The factories of a `defaultdict` that can be stored."""
KEYS = (str, int, float, bool, type(None), bytes, tuple, frozenset)
"""The types of keys that can be stored."""
ADVICE = {
    "Generator": "store its `get_state()`, or its `bit_generator.state` if it is numpy's",
    "RandomState": "store its `get_state()`",
    "Random": "store its `getstate()`",
    "defaultdict": "its factory is a function: store `dict(...)` of it",
}
"""Name of a type -> advice for the error about a value of this type that cannot be stored."""


@dataclass(frozen=True)
class StateTree:
    """A state, taken apart."""

    document: Document
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Name -> a tensor that every rank has in whole."""
    sharded: dict[str, Tensor] = field(default_factory=dict)
    """Name -> a tensor of which a rank may have a shard, such as a DTensor."""

    @classmethod
    def of(cls, component: str, state: object) -> StateTree:
        """Raises `CheckpointError` with the path and the type of a value that cannot be stored."""
        found = cls(None)
        try:
            if not isinstance(state, Mapping):
                returned = _type_name(state)
                raise CheckpointError(f"`state_dict()` returned a {returned}; it must return a dict")
            document = _Encoder(found).part(state, ())
            found = cls(document, found.tensors, found.sharded)
            leaves_of(document)
        except CheckpointError as error:
            raise CheckpointError(f"the state of `{component}` cannot be stored: {error}") from None
        except RecursionError:
            raise CheckpointError(
                f"the state of `{component}` cannot be stored: it contains itself or is nested too deeply"
            ) from None
        return found

    @property
    def text(self) -> str:
        """The document as JSON."""
        return json.dumps(self.document, separators=(",", ":"))


def leaves_of(document: Document) -> dict[str, Document]:
    """Returns name -> the part of the document with that name. A container stands there without its items, as
    ["container", ...].

    Raises `CheckpointError` for two values with the same name.
    """
    found: dict[str, Document] = {}
    for path, part in _walk(document, ()):
        name = name_of(path)
        if name in found:
            raise CheckpointError(f"two values have the name `{name}`; rename one of their keys")
        found[name] = part
    return found


def name_of(path: Path) -> str:
    return ".".join(path) if path else "state_dict()"


def tensors_of(document: Document) -> Iterator[Document]:
    """Yields the part of the document for each tensor: ["tensor", name, type of its device unless cpu],
    ["sharded", name] or ["numpy", name, dtype, shape]."""
    return (part for _, part in _walk(document, ()) if is_tensor(part))


def is_tensor(part: Document) -> bool:
    return isinstance(part, list) and part[0] in ("tensor", "sharded", "numpy")


def values_of(document: Document) -> dict[str, Document]:
    """Returns name -> the part of the document with that name, without containers."""
    leaves = leaves_of(document).items()
    return {name: part for name, part in leaves if not isinstance(part, list) or part[0] != "container"}


def decode(document: Document, tensors: Mapping[str, Tensor]) -> Any:
    """Returns the state. `tensors` has the tensors of the document by their names."""
    if not isinstance(document, list):
        return document
    tag, *rest = document
    if tag in READERS:
        return READERS[tag](*rest)
    if tag == "int":
        return int(rest[0], 16)
    if tag in ("tensor", "sharded"):
        return tensors[rest[0]]
    if tag == "numpy":
        name, dtype, shape = rest
        return tensors[name].numpy().view(np.dtype(dtype)).reshape(shape)
    if tag == "numpy scalar":
        return np.frombuffer(base64.b64decode(rest[1]), np.dtype(rest[0]))[0]
    if tag == "deque":
        return deque((decode(item, tensors) for item in rest[1]), rest[0])
    if tag in MAPPINGS.values():
        found = CONTAINERS[tag]({decode(key, tensors): decode(value, tensors) for key, value in rest[0]})
        if len(rest) > 1:
            found._metadata = decode(rest[1], tensors)
        return found
    if tag == "defaultdict":
        pairs = {decode(key, tensors): decode(value, tensors) for key, value in rest[1]}
        return defaultdict(FACTORIES.get(rest[0]), pairs)
    return CONTAINERS[tag](decode(item, tensors) for item in rest[0])


def with_values(part: Document, by_name: Mapping[str, Document], path: Path = ()) -> Document:
    """Returns a document with the containers of another one, and the values in `by_name`."""
    if not _is_traversed(part):
        return by_name[name_of(path)]
    position = _ITEMS[part[0]]
    values = [with_values(value, by_name, (*path, key)) for key, value in _children(part)]
    if part[0] in _PAIRS:
        keys = [key for key, _ in part[position]]
        pairs = [[key, value] for key, value in zip(keys, values, strict=True)]
        return [*part[:position], pairs, *part[position + 1 :]]
    return [*part[:position], values]


class _Encoder:
    def __init__(self, tree: StateTree) -> None:
        self._tree = tree

    def part(self, value: Any, path: Path) -> Document:
        kind = type(value)
        if value is None or kind in (bool, float, str):
            return value
        if kind is int:
            return value if value.bit_length() <= MAX_DECIMAL_BITS else ["int", hex(value)]
        if kind in SIMPLE:
            tag, write, _ = SIMPLE[kind]
            return [tag, *write(value)]
        if isinstance(value, (Tensor, ShardedTensor)):
            return self._tensor(value, path)
        if isinstance(value, np.generic) and value.dtype.kind in NUMPY_KINDS:
            return ["numpy scalar", value.dtype.str, base64.b64encode(value.tobytes()).decode()]
        if kind is np.ndarray and value.dtype.kind in NUMPY_KINDS:
            return self._array(value, path)
        if kind in SEQUENCES:
            return [SEQUENCES[kind], self._items(value, path)]
        if kind is deque:
            return ["deque", value.maxlen, self._items(value, path)]
        if kind in SETS:
            return [SETS[kind], sorted((self._key(item, path) for item in value), key=json.dumps)]
        if kind is defaultdict and value.default_factory in (None, *FACTORIES.values()):
            factory = value.default_factory
            return ["defaultdict", factory.__name__ if factory else "", self._pairs(value, path)]
        if isinstance(value, Mapping) and kind is not defaultdict:
            # torch.nn.Module.state_dict() returns an OrderedDict with this attribute.
            metadata = getattr(value, "_metadata", None) if kind is OrderedDict else None
            versions = [] if metadata is None else [self.part(metadata, (*path, "_metadata"))]
            return [MAPPINGS.get(kind, "dict"), self._pairs(value, path), *versions]
        raise self._refused(value, path)

    def _items(self, values: Iterable[Any], path: Path) -> list[Document]:
        return [self.part(value, (*path, str(index))) for index, value in enumerate(values)]

    def _pairs(self, values: Mapping[Any, Any], path: Path) -> list[list[Document]]:
        return [[self._key(key, path), self.part(value, (*path, str(key)))] for key, value in values.items()]

    def _key(self, key: Any, path: Path) -> Document:
        is_tuple = isinstance(key, tuple)
        if not isinstance(key, (*KEYS, np.generic)) or (is_tuple and type(key) is not tuple):
            name, kind = name_of(path), _type_name(key)
            raise CheckpointError(f"a key of `{name}` is a {kind}; keys are text, numbers or tuples of these")
        if isinstance(key, (tuple, frozenset)):
            tag = "tuple" if is_tuple else "frozenset"
            return [tag, [self._key(item, path) for item in key]]
        return self.part(key, path)

    def _tensor(self, value: Any, path: Path) -> Document:
        name = name_of(path)
        # torch.distributed.checkpoint divides the first two among ranks, and knows subclasses
        if isinstance(value, (DTensor, ShardedTensor)) or is_traceable_wrapper_subclass(value):
            sharded: Any = value
            self._tree.sharded[name] = sharded
            return ["sharded", name]
        reason = ""
        if value.layout is not torch.strided or value.is_nested:
            layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
            reason = f"tensor of layout {layout}: store its dense form"
        elif value.is_quantized:
            reason = "quantized tensor: store its `int_repr()` with scale and zero point"
        elif value.is_meta:
            reason = "tensor on the `meta` device, which has no data"
        if reason:
            raise CheckpointError(f"`{name}` is a {reason}")
        self._tree.tensors[name] = value.detach()
        return ["tensor", name] if value.device.type == "cpu" else ["tensor", name, value.device.type]

    def _array(self, value: np.ndarray[Any, Any], path: Path) -> Document:
        name = name_of(path)
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        flat = flat if flat.flags.writeable else flat.copy()  # torch shares memory only if it may write
        self._tree.tensors[name] = torch.from_numpy(flat)
        return ["numpy", name, value.dtype.str, list(value.shape)]

    def _refused(self, value: object, path: Path) -> CheckpointError:
        reason = ADVICE.get(type(value).__name__, "state is plain data, tensors and numpy arrays")
        if hasattr(value, "state_dict"):
            reason = "store its `state_dict()`"
        return CheckpointError(f"`{name_of(path)}` is a {_type_name(value)}: {reason}")


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# Tag -> the position of the items in a container's list. Items of mappings are pairs of key and value; after
# them is torch's `_metadata` of an OrderedDict that has it.
_PAIRS = {**dict.fromkeys(MAPPINGS.values(), 1), "defaultdict": 2}
_ITEMS = {**_PAIRS, **dict.fromkeys(SEQUENCES.values(), 1), "deque": 2}


def _has_items(part: Document) -> bool:
    return isinstance(part, list) and part[0] in _ITEMS


def _is_traversed(part: Document) -> bool:
    """Returns whether the values in a part of a document have names of their own."""
    return _has_items(part) and (part[0] in _PAIRS or _has_tensors(part))


def _has_tensors(part: Document) -> bool:
    if is_tensor(part):
        return True
    return _has_items(part) and any(_has_tensors(value) for _, value in _children(part))


def _children(part: Document) -> Iterator[tuple[str, Document]]:
    """Yields the last part of the name, and the value, of each item of a container."""
    tag, items = part[0], part[_ITEMS[part[0]]]
    for index, item in enumerate(items):
        if tag in _PAIRS:
            yield str(decode(item[0], {})), item[1]
        else:
            yield str(index), item


def _walk(part: Document, path: Path) -> Iterator[tuple[Path, Document]]:
    """Yields path and part for each value that has a name. A container comes before its items, as
    ["container", its part without items]; a list has its length there, so that different lengths differ."""
    if not _is_traversed(part):
        yield path, part
        return
    position = _ITEMS[part[0]]
    length = None if part[0] in _PAIRS else len(part[position])
    yield path, ["container", *part[:position], length]
    for key, value in _children(part):
        yield from _walk(value, (*path, key))
