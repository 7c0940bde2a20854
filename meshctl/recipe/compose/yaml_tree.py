"""Trees of values with their places in files. A tree represents one YAML file or a composed recipe.

    Node("7", Span("recipe.yaml", 4, 10))            a scalar
    Node({"steps": Node(...)}, Span(...))            a mapping; each item also has the span of its key
    Node([Node(...), Node(...)], Span(...))          a list

Trees are immutable: `merge`, `put` and `without` return new trees that share the unchanged nodes. A node
refers to the node that it replaced, for messages such as "was 2, set at fsdp.yaml:2:10".
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Span

KeyPath = tuple[str, ...]
"""The keys from the root to a value: `("groups", "train", "ranks")`. The key of a list item is its index."""
MISSING = "???"
"""The text of a required value that is not set yet. It never replaces a value."""


class Broken:
    """The value of a node that could not be read. It has been reported, so rules ignore the node."""

    def __repr__(self) -> str:
        return "<broken>"


BROKEN = Broken()


@dataclass(frozen=True)
class Node:
    value: Any
    """A scalar, a dict of key -> Node, or a list of Node."""
    span: Span
    key: Span | None = None
    """The span of its key; None in a list and at the root."""
    written: str = ""
    """The text of a scalar in the file, e.g. `no` for False."""
    was: Node | None = None
    """The node that this one replaced."""
    from_environment: bool = False
    """True if a part of its text came from the environment, by `oc.env`."""
    target: Span | None = None
    """For an interpolation such as `${run.steps}`: the span of the value to which it refers."""
    lines: int = 1
    """Number of lines of a scalar's text."""
    inferred_from: str = ""
    """For a value that is in no file: its origin, such as "the file's name". Its span is the place at which
    it would be written."""

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    @property
    def is_interpolated(self) -> bool:
        """True if it is a text with an interpolation, `${...}`."""
        return isinstance(self.value, str) and "${" in self.value

    def items(self) -> Iterator[tuple[str, Node]]:
        if isinstance(self.value, dict):
            yield from self.value.items()

    def get(self, key: str) -> Node | None:
        """Returns an item of a mapping by its key, or of a list by its index; None if it does not exist."""
        if isinstance(self.value, dict):
            found = self.value.get(key)
            return found if isinstance(found, Node) else None
        if (
            isinstance(self.value, list)
            and re.fullmatch(r"-?\d+", key)
            and -len(self.value) <= int(key) < len(self.value)
        ):
            found = self.value[int(key)]
            return found if isinstance(found, Node) else None
        return None

    def at(self, path: KeyPath) -> Node | None:
        node: Node | None = self
        for key in path:
            node = node.get(key) if node else None
        return node

    def span_at(self, path: KeyPath) -> Span:
        """Returns the span of the value at a path; of the nearest existing key above it if there is none."""
        node = self.at(path)
        return node.span if node is not None else self.key_span_at(path[:-1])

    def key_span_at(self, path: KeyPath) -> Span:
        """Returns the span of the key at a path; of the nearest existing key above it if there is none."""
        node = self.at(path)
        if node is None:
            return self.key_span_at(path[:-1])
        return node.key or node.span


def plain(node: Node) -> Any:
    """Returns the tree as dicts, lists and scalars. Broken values are None."""
    if node.value is BROKEN:
        return None
    if isinstance(node.value, dict):
        return {key: plain(item) for key, item in node.value.items()}
    return [plain(item) for item in node.value] if isinstance(node.value, list) else node.value


def of_plain(value: Any, span: Span, key: Span | None = None) -> Node:
    """Returns plain data as a tree whose nodes all have the same span."""
    if isinstance(value, Mapping):
        return Node({str(name): of_plain(item, span, span) for name, item in value.items()}, span, key)
    if isinstance(value, (list, tuple)):
        return Node([of_plain(item, span) for item in value], span, key)
    return Node(value, span, key, written="" if value is None else str(value))


def leaves(node: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Node]]:
    """Yields the path and node of every scalar and of every empty mapping or list."""
    if isinstance(node.value, dict) and node.value:
        for key, item in node.value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(node.value, list) and node.value:
        for index, item in enumerate(node.value):
            yield from leaves(item, (*path, str(index)))
    else:
        yield path, node


def with_leaves(node: Node, path: KeyPath, change: Callable[[Node, KeyPath], Node]) -> Node:
    """Returns the tree with every leaf replaced by `change(leaf, path)`. Unchanged nodes are shared."""
    if isinstance(node.value, dict) and node.value:
        items = {key: with_leaves(item, (*path, key), change) for key, item in node.value.items()}
        is_same = all(map(operator.is_, items.values(), node.value.values()))
        return node if is_same else replace(node, value=items)
    if isinstance(node.value, list) and node.value:
        values = [with_leaves(item, (*path, str(index)), change) for index, item in enumerate(node.value)]
        return node if all(map(operator.is_, values, node.value)) else replace(node, value=values)
    return change(node, path)


def merge(old: Node, new: Node) -> Node:
    """Merges two trees by OmegaConf's rules: mappings are merged, other values are replaced, and `???`
    replaces nothing."""
    if isinstance(old.value, dict) and isinstance(new.value, dict):
        items = dict(old.value)
        for key, item in new.value.items():
            items[key] = merge(items[key], item) if key in items else item
        is_package = old.key == old.span  # `old` is in no file: it surrounds an included one
        return replace(new if is_package else old, value=items)
    if new.value == MISSING:
        return old
    return over(new, old)


def over(new: Node, old: Node) -> Node:
    """Returns the new node with the old one, and the nodes that the old one replaced, as its history."""
    return replace(new, was=over(new.was, old) if new.was else old)


def replaced(root: Node, path: KeyPath) -> Iterator[Node]:
    """Yields the nodes that the value at `path` has replaced, the latest first. If a layout or list was
    replaced as a whole, these are the nodes at the same path in the old one."""
    for length in range(len(path), -1, -1):
        node = root.at(path[:length])
        if node is not None and node.was is not None:
            if (older := node.was.at(path[length:])) is not None:
                yield older
            yield from replaced(node.was, path[length:])


def nested(path: KeyPath, node: Node) -> Node:
    """Returns a tree that contains only `node`, at `path`."""
    for key in reversed(path):
        node = Node({key: node}, node.span, node.key or node.span)
    return node


def can_hold(root: Node, path: KeyPath) -> bool:
    """Returns whether every existing value on the path is a mapping."""
    above = (root.at(path[:length]) for length in range(len(path)))
    return all(node is None or node.is_mapping for node in above)


def put(root: Node, path: KeyPath, node: Node) -> Node:
    """Returns the tree with `node` at `path`. The old value becomes the node's history, unless it has been
    merged into the node. Missing mappings on the path are created."""
    if not path:
        return replace(node if node.span == root.span else over(node, root), key=root.key or node.key)
    first, rest = path[0], path[1:]
    if isinstance(root.value, list):
        index = int(first)
        items = list(root.value)
        items[index] = put(items[index], rest, node)
        return replace(root, value=items)
    old = root.value.get(first) if isinstance(root.value, dict) else None
    mine = put(old, rest, node) if isinstance(old, Node) else nested(rest, node)
    if old is None and not rest:
        mine = node
    under = mine if mine.key else replace(mine, key=node.key or node.span)
    value = {**root.value, first: under} if isinstance(root.value, dict) else {first: under}
    return replace(root, value=value)


def without(root: Node, path: KeyPath) -> Node:
    """Returns the tree without the value at `path`, which must exist."""
    first, rest = path[0], path[1:]
    if isinstance(root.value, list):
        items = list(root.value)
        if rest:
            items[int(first)] = without(items[int(first)], rest)
        else:
            del items[int(first)]
        return replace(root, value=items)
    if rest:
        return replace(root, value={**root.value, first: without(root.value[first], rest)})
    return replace(root, value={key: item for key, item in root.value.items() if key != first})


def is_override(file: str) -> bool:
    """Returns whether the file of a span is an override of the command line."""
    return re.fullmatch(r"override \d+", file) is not None
