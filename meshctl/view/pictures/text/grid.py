"""A mesh as a grid of ranks with its dims named, and its process groups as a table.

    pp  dp │ tp   0   1   2   3          dim  groups  stride  first    nodes
     0   0 │      0   1   2   3  node 0  pp    8 x 2       8  0 8      cross
         1 │      4   5   6   7  node 0  dp    8 x 2       4  0 4      inside
     1   0 │      8   9  10  11  node 1  tp    4 x 4       1  0 1 2 3  inside
         1 │     12  13  14  15  node 1

The innermost dim runs to the right, the others downwards; first and last are kept where there is no room for
all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from meshctl.plan.views.topology import ProcessGroups
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.placement import NodeRun
from meshctl.view.formatting import count
from meshctl.view.pictures.text.styled import ELLIPSIS, Column, Line, columns, ink, line, width_of

REACHES = {"inside": "inside", "some": "some cross", "all": "cross"}
"""Of process groups, to nodes: one is inside of one, or crosses from one to another."""
NEAR = ("tp", "cp", "ep", "etp", "ulysses")
"""Dims that talk in every layer: leaving a node is worth a color."""
FEW = 3
"""So few rows have numbers that say enough: no row is lost on a gap."""
GAP = 3
"""Columns of a gap."""
NodeOf = Callable[[int], int]


def node_of(stretches: Sequence[NodeRun], rank: int) -> int:
    """The node of a rank."""
    for run in stretches:
        if run.first_rank <= rank < run.first_rank + run.ranks:
            return run.first_node + (rank - run.first_rank) // run.each
    return 0


def spread(total: int, most: int) -> list[int | None]:
    """0 .. total - 1 where there is room for all, else the first ones, None for a gap, and the last. Few go
    without a gap."""
    if total <= most:
        return list(range(total))
    return [*range(most - 1), total - 1] if most <= FEW else [*range(most - 2), None, total - 1]


# The grid


def grid(mesh: DeviceMesh, nodes: NodeOf | None, width: int, most: int) -> list[Line]:
    """At most `most` rows and a heading; empty where not even the first and the last column have room.
    `nodes` where there are several."""
    dims = [dim for dim in mesh.mesh_dim_names if mesh.size(dim) > 1]
    if not dims:
        return []
    down = [(dim, mesh.size(dim)) for dim in dims[:-1]]
    rows = _rows(mesh, down, dims[-1], most)
    index = _indices(down, rows)
    last = mesh.size(dims[-1]) - 1
    cell = len(str(max(last, *(row.rank(place) for row in rows if row for place in (0, last)))))
    places = _places(last + 1, width - width_of(index[0]) - len(dims[-1]), cell + 2)
    if not places:
        return []
    heading = line(index[0], ink(dims[-1], "faint"), _cells(places, str, cell, "faint"))
    said = [(lambda _: ELLIPSIS) if row is None else row.text for row in rows]
    drawn = [
        line(label, " " * len(dims[-1]), _cells(places, each, cell))
        for label, each in zip(index[1:], said, strict=True)
    ]
    noted = (
        [line(text, row.where(nodes, last)) if row else text for text, row in zip(drawn, rows, strict=True)]
        if nodes
        else drawn
    )
    return [heading, *(noted if max(map(width_of, noted)) <= width else drawn)]


@dataclass(frozen=True)
class Row:
    number: int
    indices: tuple[int, ...]
    """Of the dims that run downwards."""
    rank: Callable[[int], int]
    """Of a column."""

    def text(self, place: int) -> str:
        return str(self.rank(place))

    def where(self, nodes: NodeOf, last: int) -> Line:
        ends = sorted({nodes(self.rank(place)) for place in (0, last)})
        return line(ink(f"  node{'s' * (len(ends) > 1)} {'-'.join(map(str, ends))}", "faint"))


def _places(total: int, room: int, wide: int) -> list[int | None]:
    """The columns: all, or the first ones, a gap and the last; none where there is no room for the first and
    the last."""
    if total * wide <= room:
        return list(range(total))
    shown = (room - GAP) // wide
    return [*range(shown - 1), None, total - 1] if shown > 1 else []


def _rows(mesh: DeviceMesh, down: Sequence[tuple[str, int]], across: str, most: int) -> list[Row | None]:
    return [
        None if number is None else _row(mesh, down, across, number)
        for number in spread(prod(size for _, size in down), most)
    ]


def _row(mesh: DeviceMesh, down: Sequence[tuple[str, int]], across: str, number: int) -> Row:
    found, left = list[int](), number
    for _, size in reversed(down):
        left, index = divmod(left, size)
        found.insert(0, index)
    at = {dim: index for (dim, _), index in zip(down, found, strict=True)}
    first, stride = mesh.rank({**at, across: 0}), mesh.stride(across)
    if stride is None:
        return Row(number, tuple(found), lambda place: mesh.rank({**at, across: place}))
    return Row(number, tuple(found), lambda place: first + place * stride)


def _indices(down: Sequence[tuple[str, int]], rows: Sequence[Row | None]) -> list[Line]:
    """The heading and the labels of the rows: an index is said where it changes, and a broken bar where rows
    are left out."""
    wide = [max(len(dim), len(str(size - 1))) for dim, size in down]
    made, bars = [[dim for dim, _ in down]], [" │ "]
    number, before = 0, tuple[int, ...]()
    for row in rows:
        at = row.indices if row else ()
        first = next((place for place in range(len(at)) if at[: place + 1] != before[: place + 1]), 0)
        made.append(
            ["" if place < first else str(index) for place, index in enumerate(at)]
            if row
            else [ELLIPSIS] * len(down)
        )
        bars.append(" ┆ " if row and before and row.number > number + 1 else " │ ")
        number, before = row.number if row else 0, at
    labels = ["  ".join(text.rjust(each) for text, each in zip(texts, wide, strict=True)) for texts in made]
    return [line(ink(label + bar, "faint") if down else "") for label, bar in zip(labels, bars, strict=True)]


def _cells(places: Sequence[int | None], said: Callable[[int], str], wide: int, style: str = "") -> Line:
    """A gap between columns is as narrow as its sign."""
    return line(
        ink(
            "".join("  " + (ELLIPSIS if place is None else said(place).rjust(wide)) for place in places),
            style,
        )
    )


# Process groups


def process_groups(found: Sequence[ProcessGroups], width: int) -> list[Line]:
    """A row for each dim, with a heading; a single one is a sentence."""
    if len(found) < 2:
        return [full if width_of(full := sentence(each)) <= width else in_short(each) for each in found]
    shape = (Column(), Column(right=True), Column(right=True), Column(least=5, words=True), Column())
    heading = tuple(line(ink(word, "faint")) for word in ("dim", "groups", "stride", "first", "nodes"))
    return columns([heading, *map(_facts, found)], shape, width)


def _facts(groups: ProcessGroups) -> tuple[Line, ...]:
    stride = "-" if groups.stride is None else str(groups.stride)
    return (
        line(ink(groups.dim, "bold")),
        line(f"{groups.count} x {groups.size}"),
        line(stride),
        line(example(groups)),
        reach(groups),
    )


def sentence(groups: ProcessGroups) -> Line:
    """tp  2 groups of 4, stride 1, first 0 1 2 3, inside a node"""
    words = [f"{count(groups.count, 'group')} of {groups.size}"]
    words += [] if groups.stride is None else [f"stride {groups.stride}"]
    words.append(("first " if groups.count > 1 else "") + example(groups))
    return line(
        ink(groups.dim, "bold"),
        "  ",
        ", ".join(words),
        ", ",
        reach(groups),
        " a node" if groups.reach == "inside" else " nodes",
    )


def in_short(groups: ProcessGroups) -> Line:
    """tp  2 x 4, stride 1, 0 1 2 3, inside"""
    words = [
        f"{groups.count} x {groups.size}",
        *([] if groups.stride is None else [f"stride {groups.stride}"]),
        example(groups),
    ]
    return line(ink(groups.dim, "bold"), "  ", ", ".join(words), ", ", reach(groups))


def example(groups: ProcessGroups) -> str:
    """0 1 2 3; 0 8 … 504."""
    if groups.size <= 4:
        return " ".join(map(str, groups.example))
    if groups.stride is not None:
        return f"{groups.example[0]} {groups.example[1]} {ELLIPSIS} {groups.example[0] + (groups.size - 1) * groups.stride}"
    return " ".join(map(str, groups.example[:3])) + f" {ELLIPSIS}"


def reach(groups: ProcessGroups) -> Line:
    return line(
        ink(REACHES[groups.reach], "warning" if groups.reach != "inside" and groups.dim in NEAR else "")
    )
