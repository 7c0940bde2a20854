"""Device groups, the components on them, and what their meshes are.

    train  4 workers on 4 cuda, node 0
      D actor   fsdp 2 x tp 2  2 data ranks  arithmetic.Actor
      E critic  fsdp 2 x tp 2  2 data ranks  arithmetic.Critic, frozen
          fsdp │ tp  0  1      dim   groups  stride  first  reach
             0 │     0  1      fsdp   2 x 2       2  0 2    inside a node
             1 │     2  3      tp     2 x 2       1  0 1    inside a node

Components with equal meshes share a grid. There are several levels of detail, for `fit_lines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

from meshctl.plan.views.topology import PlacedComponent, PlacedGroup, Topology
from meshctl.topology.mesh import DeviceMesh
from meshctl.view.formatting import count
from meshctl.view.pictures.text.columns import nodes_label
from meshctl.view.pictures.text.grid import NodeOf, grid, node_of, process_groups, reach
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.styled import (
    ELLIPSIS,
    Column,
    Line,
    clip,
    columns,
    fit,
    ink,
    line,
    padded,
    width_of,
    wrapped,
)

MANY_ROWS = 8
"""If so many rows are allowed, a complete grid below the table is preferred to a shortened one beside it."""
TABLE_GAP = 3
"""Columns between a grid and the table beside it."""
DETAIL_INDENT = " " * 6
TABLE = (Column(), Column(least=8, gap=1), Column(), Column(), Column(spare=1), Column(least=12, spare=2))
"""Letter, name, layout, frozen, data ranks, target."""
Detail = Callable[[PlacedGroup, Sequence[PlacedComponent]], list[Line]]
"""Draws the lines below the components that share a mesh."""


@dataclass(frozen=True)
class Groups:
    topology: Topology
    marks: Marks

    def facts(self, group: PlacedGroup) -> Line:
        """Returns `4 workers on 4 cuda, nodes 0-1, visible devices 8,9`."""
        words = [_workers(group), nodes_of(group)]
        if group.visible_devices:
            words.append(f"visible devices {','.join(group.visible_devices)}")
        if group.colocate:
            words.append(f"on the devices of {group.colocate}")
        if group.program:
            words.append(f"program {group.program}")
        return line(", ".join(filter(None, words)))

    def head(self, group: PlacedGroup, wide: int) -> Line:
        letter = line(self.marks.group_letter(group.name), " ") if not group.components else ()
        name = fit(line("  ", letter, ink(group.name, "bold")), wide)
        return line(padded(name, wide), "  ", self.facts(group))

    def cells(self, component: PlacedComponent) -> tuple[Line, ...]:
        return (
            line("    ", self.marks.letter(component.name)),
            line(self.marks.name(component.name)),
            line(component.layout),
            line("frozen") if component.frozen else (),
            line(ink(count(component.data_size, "data rank"), "faint")),
            line(ink(component.target, "faint")),
        )

    def meshes(self, group: PlacedGroup) -> list[list[PlacedComponent]]:
        """Returns the components, grouped by equal meshes."""
        found: dict[DeviceMesh, list[PlacedComponent]] = {}
        for name in group.components:
            component = self.marks.components[name]
            found.setdefault(component.mesh, []).append(component)
        return list(found.values())

    def nodes(self, group: PlacedGroup) -> NodeOf | None:
        return partial(node_of, group.node_runs) if self.topology.cluster.nodes > 1 else None


def _workers(group: PlacedGroup) -> str:
    if group.device_type == "cpu":
        return f"{count(group.workers, 'worker')} on cpu"
    if group.gpus_per_worker > 1:
        return f"{count(group.workers, 'worker')} of {group.gpus_per_worker} {group.device_type} each"
    return f"{count(group.workers, 'worker')} on {group.devices} {group.device_type}"


def nodes_of(group: PlacedGroup) -> str:
    return (
        nodes_label([(run.first_node, run.last_node + 1) for run in group.node_runs])
        if group.node_runs
        else ""
    )


# Levels of detail


def with_meshes(groups: Groups, width: int, rows: int) -> list[Line]:
    """Returns all details, with grids of at most `rows` rows."""
    return _under(
        groups,
        width,
        lambda group, members: _mesh(groups, group, members[0], width - len(DETAIL_INDENT), rows),
    )


def in_short(groups: Groups, width: int) -> list[Line]:
    """Returns the groups and components, with the process groups in a line or two."""
    return _under(
        groups, width, lambda _, members: wrapped(list(_briefly(members[0])), width - len(DETAIL_INDENT))
    )


def in_lines(groups: Groups, width: int) -> list[Line]:
    """Returns a line for each group and component."""
    return _under(groups, width, lambda _, members: [])


def components_alone(groups: Groups, width: int) -> list[Line]:
    """Returns a line for each component, and for each group without components."""
    rows = []
    for group in groups.topology.groups:
        for name in group.components:
            letter, own, *rest = groups.cells(groups.marks.components[name])
            rows.append((letter, own, line(group.name), *rest))
        if not group.components:
            facts = line(ink(f"program {group.program}" if group.program else "", "faint"))
            rows.append(
                (line("    ", groups.marks.group_letter(group.name)), (), line(group.name), (), (), (), facts)
            )
    return columns(rows, (*TABLE[:2], Column(least=8), *TABLE[2:]), width)


def _under(groups: Groups, width: int, detail: Detail) -> list[Line]:
    """Returns each group with its components below it, and the detail below those that share a mesh."""
    wide = max(
        (2 + width_of(group.name) + 2 * (not group.components) for group in groups.topology.groups), default=0
    )
    members = {group.name: groups.meshes(group) for group in groups.topology.groups}
    ordered = [component for meshes in members.values() for mesh in meshes for component in mesh]
    rows = dict(
        zip(
            (each.name for each in ordered),
            columns([groups.cells(each) for each in ordered], TABLE, width),
            strict=True,
        )
    )
    made: list[Line] = []
    for group in groups.topology.groups:
        made.append(clip(groups.head(group, min(wide, width // 3)), width))
        for mesh in members[group.name]:
            made += [rows[component.name] for component in mesh]
            made += [line(DETAIL_INDENT, each) for each in detail(group, mesh)]
    return made


def _mesh(
    groups: Groups, group: PlacedGroup, component: PlacedComponent, width: int, rows: int
) -> list[Line]:
    """Returns the grid and, beside or below it, the process groups. Meshes of one dim need no grid."""
    table = process_groups(component.process_groups, width)
    if sum(size > 1 for size in component.mesh.shape) < 2:
        return table
    room, nodes, most = (
        width - TABLE_GAP - max(map(width_of, table)),
        groups.nodes(group),
        max(rows, len(table) - 1),
    )
    below, narrow = (
        grid(component.mesh, nodes, width, rows) if rows else [],
        grid(component.mesh, nodes, room, most),
    )
    if narrow and not (rows >= MANY_ROWS and _is_shortened(narrow) and not _is_shortened(below)):
        return side_by_side(narrow, table)
    return below + table


def _is_shortened(drawn: Sequence[Line]) -> bool:
    """Whether columns of a grid are missing."""
    return any(ELLIPSIS in part.text for part in drawn[0])


def side_by_side(left: Sequence[Line], right: Sequence[Line]) -> list[Line]:
    wide = max(map(width_of, left)) + TABLE_GAP
    return [
        line(padded(each, wide), other) if other else each
        for each, other in zip_longest(left, right, fillvalue=())
    ]


def _briefly(component: PlacedComponent) -> Iterator[Line]:
    """fsdp 2 x 2, inside a node"""
    for groups in component.process_groups:
        yield line(ink(groups.dim, "bold"), f" {groups.count} x {groups.size} ", reach(groups))
