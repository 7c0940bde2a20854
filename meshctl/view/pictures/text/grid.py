"""A mesh as a grid of ranks with its dims named, and its process groups as a table.

    pp  dp │ tp   0   1   2   3          dim  groups  stride  first    nodes
     0   0 │      0   1   2   3  node 0  pp    8 x 2       8  0 8      cross
         1 │      4   5   6   7  node 0  dp    8 x 2       4  0 4      inside
     1   0 │      8   9  10  11  node 1  tp    4 x 4       1  0 1 2 3  inside
         1 │     12  13  14  15  node 1

The innermost dim runs to the right, the others downwards. Where there is not enough room, the first and last
ranks are kept.
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
"""Whether the process groups of a dim are inside nodes or cross them."""
DIMS_IN_EVERY_LAYER = ("tp", "cp", "ep", "etp", "ulysses")
"""Dims with communication in every layer, for which crossing nodes is highlighted."""
MAX_ROWS_WITHOUT_GAP = 3
"""With so few rows, their numbers show that some are missing."""
GAP_COLUMNS = 3
NodeOf = Callable[[int], int]


def node_of(node_runs: Sequence[NodeRun], rank: int) -> int:
    """Returns the node of a rank."""
    for run in node_runs:
        if run.first_rank <= rank < run.first_rank + run.ranks:
            return run.first_node + (rank - run.first_rank) // run.each
    return 0


def spread(total: int, most: int) -> list[int | None]:
    """Returns 0 .. total - 1 if they fit, otherwise the first ones, None for a gap, and the last."""
    if total <= most:
        return list(range(total))
    return (
        [*range(most - 1), total - 1] if most <= MAX_ROWS_WITHOUT_GAP else [*range(most - 2), None, total - 1]
    )


# The grid


def grid(mesh: DeviceMesh, nodes: NodeOf | None, width: int, most: int) -> list[Line]:
    """Returns a heading and at most `most` rows; empty if not even the first and the last column fit. `nodes`
    adds the nodes of each row."""
    dims = [dim for dim in mesh.mesh_dim_names if mesh.size(dim) > 1]
    if not dims:
        return []
    down = [(dim, mesh.size(dim)) for dim in dims[:-1]]
    rows = _rows(mesh, down, dims[-1], most)
    index = _indices(down, rows)
    last = mesh.size(dims[-1]) - 1
    cell = len(str(max(last, *(row.rank(column) for row in rows if row for column in (0, last)))))
    shown = _columns(last + 1, width - width_of(index[0]) - len(dims[-1]), cell + 2)
    if not shown:
        return []
    heading = line(index[0], ink(dims[-1], "faint"), _cells(shown, str, cell, "faint"))
    texts = [(lambda _: ELLIPSIS) if row is None else row.text for row in rows]
    drawn = [
        line(label, " " * len(dims[-1]), _cells(shown, each, cell))
        for label, each in zip(index[1:], texts, strict=True)
    ]
    if nodes:
        noted = [
            line(text, row.where(nodes, last)) if row else text for text, row in zip(drawn, rows, strict=True)
        ]
        drawn = noted if max(map(width_of, noted)) <= width else drawn
    return [heading, *drawn]


@dataclass(frozen=True)
class Row:
    number: int
    indices: tuple[int, ...]
    """In the dims that run downwards."""
    rank: Callable[[int], int]
    """Column -> rank."""

    def text(self, column: int) -> str:
        return str(self.rank(column))

    def where(self, nodes: NodeOf, last: int) -> Line:
        ends = sorted({nodes(self.rank(column)) for column in (0, last)})
        return line(ink(f"  node{'s' * (len(ends) > 1)} {'-'.join(map(str, ends))}", "faint"))


def _columns(total: int, room: int, wide: int) -> list[int | None]:
    """Returns all columns, or the first ones, a gap and the last; empty if the first and the last do not
    fit."""
    if total * wide <= room:
        return list(range(total))
    shown = (room - GAP_COLUMNS) // wide
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
        return Row(number, tuple(found), lambda column: mesh.rank({**at, across: column}))
    return Row(number, tuple(found), lambda column: first + column * stride)


def _indices(down: Sequence[tuple[str, int]], rows: Sequence[Row | None]) -> list[Line]:
    """Returns the heading and the labels of the rows: an index where it changes, and a broken bar where rows
    are missing."""
    wide = [max(len(dim), len(str(size - 1))) for dim, size in down]
    made, bars = [[dim for dim, _ in down]], [" │ "]
    number, before = 0, tuple[int, ...]()
    for row in rows:
        at = row.indices if row else ()
        first = next((column for column in range(len(at)) if at[: column + 1] != before[: column + 1]), 0)
        made.append(
            ["" if column < first else str(index) for column, index in enumerate(at)]
            if row
            else [ELLIPSIS] * len(down)
        )
        bars.append(" ┆ " if row and before and row.number > number + 1 else " │ ")
        number, before = row.number if row else 0, at
    labels = ["  ".join(text.rjust(each) for text, each in zip(texts, wide, strict=True)) for texts in made]
    return [line(ink(label + bar, "faint") if down else "") for label, bar in zip(labels, bars, strict=True)]


def _cells(shown: Sequence[int | None], texts: Callable[[int], str], wide: int, style: str = "") -> Line:
    cells = ["  " + (ELLIPSIS if column is None else texts(column).rjust(wide)) for column in shown]
    return line(ink("".join(cells), style))


# Process groups


def process_groups(found: Sequence[ProcessGroups], width: int) -> list[Line]:
    """Returns a table with a row for each dim, or a sentence for a single one."""
    if len(found) < 2:
        sentences = [(sentence(groups), in_short(groups)) for groups in found]
        return [full if width_of(full) <= width else short for full, short in sentences]
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
        first, second = groups.example[:2]
        return f"{first} {second} {ELLIPSIS} {first + (groups.size - 1) * groups.stride}"
    return " ".join(map(str, groups.example[:3])) + f" {ELLIPSIS}"


def reach(groups: ProcessGroups) -> Line:
    is_slow = groups.reach != "inside" and groups.dim in DIMS_IN_EVERY_LAYER
    return line(ink(REACHES[groups.reach], "warning" if is_slow else ""))
