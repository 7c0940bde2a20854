"""Device groups, the components on them, and what their meshes are.

    train  4 workers on 4 cuda, node 0
      D actor   fsdp 2 x tp 2  2 data ranks  arithmetic.Actor
      E critic  fsdp 2 x tp 2  2 data ranks  arithmetic.Critic, frozen
          fsdp │ tp  0  1      dim   groups  stride  first  reach
             0 │     0  1      fsdp   2 x 2       2  0 2    inside a node
             1 │     2  3      tp     2 x 2       1  0 1    inside a node

Components with equal meshes share a grid. There are several levels of detail, for `picture.fitted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest

from meshctl.dataclass import dataclass
from meshctl.plan.views.topology import PlacedComponent, PlacedGroup
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.stage_split import bubble
from meshctl.view.formatting import count
from meshctl.view.pictures.text.grid import NodeOf, grid, node_of, process_groups
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.placement import nodes_label
from meshctl.view.pictures.text.styled import ELLIPSIS, Column, Line, columns, styled

MANY_ROWS = 8
"""From this limit of rows on, a complete grid above the table is preferred to a shortened grid beside it."""
TABLE_GAP = 3
"""Columns between a grid and the table beside it."""
DETAIL_INDENT = " " * 6
TABLE = (Column(), Column(least=8, gap=1), Column(), Column(), Column(spare=1), Column(least=12, spare=2))
"""The columns for components: letter, name, layout, frozen, data ranks, target."""


@dataclass(frozen=True)
class Groups:
    marks: Marks
    width: int

    # Levels of detail

    def in_lines(self) -> list[Line]:
        """Returns a line for each group and component."""
        return self.with_meshes(None)

    def with_meshes(self, most: int | None) -> list[Line]:
        """Returns each group with its components below it, and the mesh below those that share it, with a
        grid of at most `most` rows; no meshes for None."""
        meshes = {group.name: self._meshes(group) for group in self.marks.topology.groups}
        ordered = [component for found in meshes.values() for same in found for component in same]
        lines = columns([self._cells(each) for each in ordered], TABLE, self.width)
        rows = {component.name: row for component, row in zip(ordered, lines, strict=True)}
        heads = {}
        for group in self.marks.topology.groups:
            letter = Line(self.marks.group_letter(group.name), " ") if not group.components else ""
            heads[group.name] = Line("  ", letter, styled(group.name, "bold"))
        wide = min(max((head.width for head in heads.values()), default=0), self.width // 3)
        made: list[Line] = []
        for group in self.marks.topology.groups:
            head = heads[group.name].fit(wide).padded(wide)
            made.append(Line(head, "  ", facts(group)).clip(self.width))
            for same in meshes[group.name]:
                made += [rows[component.name] for component in same]
                if most is not None:
                    made += [Line(DETAIL_INDENT, each) for each in self._mesh(most, group, same[0])]
        return made

    # Details

    def _cells(self, component: PlacedComponent) -> list[Line]:
        return [
            Line("    ", self.marks.letter(component.name)),
            Line(self.marks.name(component.name)),
            Line(component.layout),
            Line("frozen" * component.frozen),
            Line(styled(count(component.data_size, "data rank"), "faint")),
            Line(styled(component.target, "faint")),
        ]

    def _meshes(self, group: PlacedGroup) -> list[list[PlacedComponent]]:
        found: dict[DeviceMesh, list[PlacedComponent]] = {}
        for name in group.components:
            component = self.marks.components[name]
            found.setdefault(component.mesh, []).append(component)
        return list(found.values())

    def nodes(self, group: PlacedGroup) -> NodeOf | None:
        """Returns the function from a rank to its node; None if there is one node."""
        return partial(node_of, group.node_runs) if self.marks.topology.cluster.nodes > 1 else None

    def _mesh(self, rows: int, group: PlacedGroup, component: PlacedComponent) -> list[Line]:
        """Returns the grid and, beside or below it, the process groups. Meshes of one dim need no grid."""
        width = self.width - len(DETAIL_INDENT)
        table, mesh = process_groups(component.process_groups, width), component.mesh
        table += bubble_of(mesh)
        if sum(size > 1 for size in mesh.shape) < 2:
            return table
        draw = partial(grid, mesh, self.nodes(group))
        below = draw(width, rows) if rows else []
        adjacent = draw(width - TABLE_GAP - max(row.width for row in table), max(rows, len(table) - 1))

        def is_shortened(drawn: Sequence[Line]) -> bool:  # it leaves out columns
            return any(ELLIPSIS in part.text for part in drawn[0]) if drawn else False

        if not adjacent or (rows >= MANY_ROWS and is_shortened(adjacent) and not is_shortened(below)):
            return below + table
        wide = max(each.width for each in adjacent) + TABLE_GAP
        pairs = zip_longest(adjacent, table, fillvalue=Line())
        return [Line(each.padded(wide), other) if other else each for each, other in pairs]


def bubble_of(mesh: DeviceMesh) -> list[Line]:
    """Returns a line with the part of an update in which a pp rank waits, for as few micro-batches as there
    are pipeline stages, and for four times as many. Empty without pp."""
    if mesh.size("pp") == 1:
        return []
    counts = mesh.pp_stages, 4 * mesh.pp_stages
    parts = [
        f"{bubble(mesh.size('pp'), mesh.vpp_size, count):.0%} at {count}".replace("%", " %")
        for count in counts
    ]
    return [Line(styled(f"bubble {', '.join(parts)} micro-batches", "faint"))]


def facts(group: PlacedGroup) -> Line:
    """Returns `4 workers on 4 cuda, nodes 0-1, visible devices 8,9`."""
    kind, each = group.device_type, group.gpus_per_worker
    on = f"of {each} {kind} each" if each > 1 else f"on {group.devices} {kind}"
    words = [f"{count(group.workers, 'worker')} {'on cpu' if kind == 'cpu' else on}"]
    if group.node_runs:
        of = f" of {', '.join(group.pools)}" if group.pools else ""
        words.append(nodes_label([(run.first_node, run.last_node + 1) for run in group.node_runs]) + of)
    if group.visible_devices:
        words.append(f"visible devices {','.join(group.visible_devices)}")
    if group.colocate:
        words.append(f"on the devices of {group.colocate}")
    if group.program:
        words.append(f"program {group.program}")
    if group.python:
        words.append(f"python {group.python}")
    return Line(", ".join(words))
