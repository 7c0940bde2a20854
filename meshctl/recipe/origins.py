"""Finds the origin of each value of a composed recipe: its place, the values that it replaced, and defaults
that apply.

    for origin in origins(loaded, cwd):
        origin.path, origin.value          ("run", "steps"), 7
        origin.kind, origin.span           "override", Span("override 1", 1, 11)
        origin.replaced                    (Replaced(100, Span("recipe.yaml", 29, 15)),)

Origins contain no secrets and no values of environment variables: these are redacted here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Span
from meshctl.recipe.compose import yaml_scalars
from meshctl.recipe.compose.interpolation import references
from meshctl.recipe.compose.yaml_tree import BROKEN, KeyPath, Node, is_override, leaves, plain, replaced
from meshctl.recipe.field_types import Section
from meshctl.recipe.fields import BEST, BLOCK, CALL, CHECKPOINT, GROUP, POOL, RECIPE, REPEAT, RUN, STOP, SYNC
from meshctl.recipe.load import Loaded
from meshctl.recipe.model import Recipe, Stage, stage_path
from meshctl.recipe.rules import Facts
from meshctl.recipe.secrets import Secrets, shown
from meshctl.text.redaction import HIDDEN
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.sizes import DIMS

Kind = Literal["recipe", "file", "override", "decorator", "default", "inferred"]
UNREAD = "<unreadable>"
PLAIN = re.compile(r"(?:[\w./~$@+= -]|:(?! )|\$\{[^{}\"'#]*\}|<redacted>)+")
"""A text that needs no quotes in YAML."""


@dataclass(frozen=True)
class Replaced:
    """A value that was replaced."""

    value: Any
    span: Span


@dataclass(frozen=True)
class Reference:
    """One `${...}` in a value."""

    text: str
    """Its text in the file."""
    path: KeyPath | None
    """The key path to which it refers; None for the environment."""
    span: Span | None
    """The place of the value to which it refers."""


@dataclass(frozen=True)
class Origin:
    path: KeyPath
    value: Any
    """The value as plain data, with secrets redacted."""
    kind: Kind
    """`recipe` is the recipe's own file, `file` a config group or an included recipe."""
    span: Span | None = None
    """None for a value that is in no file."""
    note: str = ""
    """The reason for a value that is in no file."""
    resolved: tuple[Any, ...] = ()
    """The value after references and `auto` are resolved, as a tuple of one item; empty if it is the same."""
    references: tuple[Reference, ...] = ()
    replaced: tuple[Replaced, ...] = ()
    """The values that it replaced, the latest first."""


def origins(loaded: Loaded, cwd: Path) -> tuple[Origin, ...]:
    """Returns the origins of all scalars and of all empty lists and mappings, in the order of the recipe. In
    each mapping, defaults come last."""
    if loaded.tree is None:
        return ()
    written = {path: _written(loaded, path, leaf) for path, leaf in leaves(loaded.tree) if path}
    facts = loaded.facts
    unwritten = _in_force(facts, loaded.tree, cwd) if facts is not None and not loaded.report.errors else ()
    return _in_order([*written.values(), *(origin for origin in unwritten if origin.path not in written)])


def line_of(value: Any) -> str:
    """Returns a value as YAML on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {line_of(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(line_of, value))}]"
    if isinstance(value, str):
        is_bare = PLAIN.fullmatch(value) is not None and value == value.strip()
        is_plain = is_bare and isinstance(yaml_scalars.scalar(value), str)
        return value if is_plain or value in (HIDDEN, UNREAD) else json.dumps(value, ensure_ascii=False)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


# Values in files


def _written(loaded: Loaded, path: KeyPath, leaf: Node) -> Origin:
    assert loaded.tree is not None
    secrets = loaded.secrets
    if leaf.inferred_from:
        return Origin(path, _plain(leaf, path, secrets), "inferred", None, leaf.inferred_from)
    return Origin(
        path=path,
        value=_plain(leaf, path, secrets),
        kind=kind_of(leaf.span, loaded.tree),
        span=leaf.span,
        resolved=_resolved(loaded, path, leaf),
        references=tuple(_references(loaded.tree, path, leaf, secrets)),
        replaced=tuple(_replaced(loaded.tree, path, leaf, secrets)),
    )


def kind_of(span: Span, tree: Node) -> Kind:
    if is_override(span.file):
        return "override"
    return "recipe" if span.file == tree.span.file else "file"


def _plain(node: Node, path: KeyPath, secrets: Secrets) -> Any:
    return UNREAD if node.value is BROKEN else plain(shown(node, secrets, path))


def _references(tree: Node, path: KeyPath, leaf: Node, secrets: Secrets) -> Iterator[Reference]:
    if leaf.is_interpolated:
        for written, target in references(leaf.value, path):
            node = tree.at(target) if target is not None else None
            text = str(
                _plain(Node(written, leaf.span), path, secrets)
            )  # the default of `oc.env` may be secret
            yield Reference(text, target, node.span if node is not None and not node.inferred_from else None)


def _replaced(tree: Node, path: KeyPath, leaf: Node, secrets: Secrets) -> Iterator[Replaced]:
    last = leaf.span
    for node in replaced(tree, path):
        if node.span != last:
            yield Replaced(_plain(node, path, secrets), node.span)
        last = node.span


def _resolved(loaded: Loaded, path: KeyPath, leaf: Node) -> tuple[Any, ...]:
    """Returns the resolved value in a tuple; an empty tuple if it equals the value in the file or is
    unknown."""
    facts = loaded.facts
    if facts is None:
        return ()
    if (
        leaf.value == "auto"
        and len(path) == 4
        and path[2] == "parallel"
        and (mesh := facts.meshes.get(path[1]))
    ):
        return (mesh.size(path[3].removesuffix("_size")),)
    node = facts.node(*path)
    if node is None or node.value is BROKEN or not isinstance(leaf.value, str) or node.value == leaf.value:
        return ()
    if path in loaded.secrets.paths or _leads_to_secret(loaded, path, leaf):
        return (HIDDEN,)
    return (_plain(node, path, loaded.secrets),)


def _leads_to_secret(loaded: Loaded, path: KeyPath, leaf: Node) -> bool:
    """Returns whether a reference leads to a secret, directly or through other references."""
    open, seen = [(path, leaf)], set[KeyPath]()
    while open and loaded.tree is not None:
        here, node = open.pop()
        if here in seen:
            continue
        seen.add(here)
        for below, inner in leaves(node, here):
            if below in loaded.secrets.paths:
                return True
            for _, target in references(inner.value, below) if inner.is_interpolated else ():
                if target is not None and (found := loaded.tree.at(target)) is not None:
                    open.append((target, found))
    return False


def _in_order(found: list[Origin]) -> tuple[Origin, ...]:
    """Returns the origins sorted as in a tree, so that the keys of a mapping stay together."""
    tree: dict[Any, Any] = {}
    for origin in found:
        node = tree
        for key in origin.path:
            node = node.setdefault(key, {})
        node[None] = origin

    def flat(node: dict[Any, Any]) -> Iterator[Origin]:
        for key, item in node.items():
            if key is None:
                yield item
            else:
                yield from flat(item)

    return tuple(flat(tree))


# Defaults and inferred values


def _in_force(facts: Facts, tree: Node, cwd: Path) -> Iterator[Origin]:
    """Yields the defaults of the field table, the modes of decorators, and the inferred values that apply.
    Defaults that are off or empty are left out."""
    recipe = facts.recipe
    yield from _defaults((), RECIPE)
    yield from _of_cluster(facts, recipe, tree)
    for group in recipe.groups.values():
        if group.device_type != "cpu" and group.program is None:
            yield from _defaults(("groups", group.name), GROUP)
    for component in recipe.components.values():
        mesh = facts.meshes.get(component.name)
        if mesh is not None and not isinstance(component.parallel, str):
            yield from _of_mesh(component.name, mesh, dict(component.parallel.given))
    for stage in recipe.pipeline.values():
        yield from _of_stage(facts, stage, tree, cwd)
    for block in recipe.blocks.values():
        yield from _defaults(stage_path(block.name), BLOCK)
        if block.over:
            yield from _defaults((*stage_path(block.name), "repeat"), REPEAT)
    yield from _defaults(("run",), RUN)
    if recipe.run.checkpoint is not None:
        yield from _defaults(("run", "checkpoint"), CHECKPOINT)
        if recipe.run.checkpoint.best is not None:
            yield from _defaults(("run", "checkpoint", "best"), BEST)
    if recipe.run.stop is not None:
        yield from _defaults(("run", "stop"), STOP)


def _defaults(path: KeyPath, section: Section) -> Iterator[Origin]:
    for field in section.defaults():
        is_integral = isinstance(field.default, float) and field.default.is_integer()
        yield _default((*path, field.key), int(field.default) if is_integral else field.default)


def _default(path: KeyPath, value: Any) -> Origin:
    return Origin(path, value, "default")


def _inferred(path: KeyPath, value: Any, note: str) -> Origin:
    return Origin(path, value, "inferred", None, note)


def _of_cluster(facts: Facts, recipe: Recipe, tree: Node) -> Iterator[Origin]:
    """Yields the inferred size of the cluster, the smallest one that fits all groups."""
    if facts.allocation is None:
        return
    note, cluster = "the least that fits", facts.allocation.cluster
    for pool, _ in cluster.pools:
        yield from _defaults(("cluster", "nodes", pool), POOL)
    if cluster.pools:
        return
    yield _inferred(("cluster", "nodes"), cluster.nodes, note)
    if tree.at(("cluster", "devices_per_node")) is None:
        for kind, runs in cluster.devices_per_node.items():
            each = [devices for _, devices in runs]
            if len(each) == 1:
                yield _inferred(("cluster", "devices_per_node", kind), each[0], note)


def _of_mesh(component: str, mesh: DeviceMesh, given: dict[str, int | str]) -> Iterator[Origin]:
    """Yields the inferred sizes above 1; for a layout without sizes, the size of its only dim."""
    sizes = {f"{dim}_size": mesh.size(dim) for dim in DIMS}
    for key, size in sizes.items():
        if key not in given and (size > 1 or (key == "dp_size" and not given)):
            yield _inferred(("components", component, "parallel", key), size, "the rest of the group")


def _of_stage(facts: Facts, stage: Stage, tree: Node, cwd: Path) -> Iterator[Origin]:
    path = stage_path(stage.name)
    if stage.kind == "sync":
        yield from _defaults(path, SYNC)
        yield Origin((*path, "max_staleness"), stage.every - 1, "default", note="`every` - 1")
        return
    endpoint = facts.endpoint(stage)
    dispatch = tree.at((*path, "dispatch"))
    where = {
        "dispatch": (*path, "dispatch", "mode")
        if dispatch is not None and dispatch.is_mapping
        else (*path, "dispatch")
    }
    words = {"dispatch": endpoint.dispatch, "execute": endpoint.execute, "collect": endpoint.collect}
    for word, value in words.items():
        if word == "dispatch" and not stage.inputs:
            continue
        if word in endpoint.stated_parameters:
            file, line, column = endpoint.place
            yield Origin(
                where.get(word, (*path, word)), value, "decorator", Span(_near(file, cwd), line, column)
            )
        elif word != endpoint.unread_parameter:
            yield _default(where.get(word, (*path, word)), value)
    if not stage.block:
        yield from _defaults(path, CALL)


def _near(file: str, cwd: Path) -> str:
    """Returns a file's path as shown to the user."""
    return str(Path(file).relative_to(cwd)) if Path(file).is_relative_to(cwd) else file
