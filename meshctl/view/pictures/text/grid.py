"""A mesh as a grid of ranks with its dims named, and its process groups as a table.

    pp  dp │ tp   0   1   2   3          dim  groups  stride  first    nodes
     0   0 │      0   1   2   3  node 0  pp    8 x 2       8  0 8      cross
         1 │      4   5   6   7  node 0  dp    8 x 2       4  0 4      inside
     1   0 │      8   9  10  11  node 1  tp    4 x 4       1  0 1 2 3  inside
         1 │     12  13  14  15  node 1

The innermost dim runs to the right, the others downwards. Where there is not enough space, the first and last
ranks are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from meshctl.dataclass import dataclass
from meshctl.plan.views.topology import ProcessGroups
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.placement import NodeRun
from meshctl.view.formatting import count
from meshctl.view.pictures.text.styled import ELLIPSIS, Column, Line, Segment, columns, styled

REACHES = {"inside": "inside", "some": "some cross", "all": "cross"}
"""The words for `Reach`: process groups are inside nodes, or some or all cross their borders."""
DIMS_IN_EVERY_LAYER = ("tp", "cp", "ep", "etp", "ulysses")
"""Dims with communication in every layer, for which crossing nodes is highlighted."""
MAX_ROWS_WITHOUT_GAP = 3
"""Maximum number of rows among which no row marks a gap, because the indices show it."""
GAP_COLUMNS = 3
NodeOf = Callable[[int], int]


def node_of(node_runs: Sequence[NodeRun], rank: int) -> int:
    """Returns the node of a rank."""
    for run in node_runs:
        if run.first_rank <= rank < run.first_rank + run.ranks:
            return run.first_node + (rank - run.first_rank) // run.each
    return 0


def spread(total: int, most: int) -> list[int | None]:
    """Returns at most `most` of the numbers 0 .. total - 1: all, or the first ones, None for a gap, and the
    last."""
    if total <= most:
        return list(range(total))
    if most <= MAX_ROWS_WITHOUT_GAP:
        return [*range(most - 1), total - 1]
    return [*range(most - 2), None, total - 1]


# The grid


def grid(mesh: DeviceMesh, nodes: NodeOf | None, width: int, most: int) -> list[Line]:
    """Returns a heading and at most `most` rows; empty if not even the first and the last column fit. `nodes`
    returns the node of a rank; with it, each row shows its nodes if there is space."""
    dims = [dim for dim in mesh.mesh_dim_names if mesh.size(dim) > 1]
    if not dims:
        return []
    down = [(dim, mesh.size(dim)) for dim in dims[:-1]]
    rows = [
        None if number is None else _row(mesh, down, dims[-1], number)
        for number in spread(prod(size for _, size in down), most)
    ]
    index = _indices(down, rows)
    last = mesh.size(dims[-1]) - 1
    cell = len(str(max(last, *(row.rank(column) for row in rows if row for column in (0, last)))))
    shown = _columns(last + 1, width - index[0].width - len(dims[-1]), cell + 2)
    if not shown:
        return []
    drawn, noted = list[Line](), list[Line]()
    for label, row in zip(index[1:], rows, strict=True):
        drawn.append(Line(label, " " * len(dims[-1]), _cells(shown, row.text if row else None, cell)))
        noted.append(Line(drawn[-1], row.where(nodes, last) if row and nodes else ""))
    heading = Line(index[0], dims[-1], _cells(shown, str, cell)).with_style("faint")
    return [heading, *(noted if max(row.width for row in noted) <= width else drawn)]


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
        return Line(styled(f"  node{'s' * (len(ends) > 1)} {'-'.join(map(str, ends))}", "faint"))


def _columns(total: int, space: int, wide: int) -> list[int | None]:
    """Returns the columns to show, each `wide` characters: all, or the first ones, None for a gap, and the
    last. Empty if the first and the last do not fit into `space`."""
    if total * wide <= space:
        return list(range(total))
    shown = (space - GAP_COLUMNS) // wide
    return [*range(shown - 1), None, total - 1] if shown > 1 else []


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
        if row:
            made.append(["" if column < first else str(index) for column, index in enumerate(at)])
        else:
            made.append([ELLIPSIS] * len(down))
        bars.append(" ┆ " if row and before and row.number > number + 1 else " │ ")
        number, before = row.number if row else 0, at
    labels = ["  ".join(text.rjust(each) for text, each in zip(texts, wide, strict=True)) for texts in made]
    texts = [label + bar if down else "" for label, bar in zip(labels, bars, strict=True)]
    return [Line(styled(text, "faint")) for text in texts]


def _cells(shown: Sequence[int | None], text: Callable[[int], str] | None, wide: int) -> str:
    """Returns the text of each shown column, with an ellipsis for a gap. Without `text`, all columns have an
    ellipsis."""
    cells = [ELLIPSIS if column is None or text is None else text(column) for column in shown]
    widths = [1 if column is None else wide for column in shown]
    return "".join("  " + cell.rjust(each) for cell, each in zip(cells, widths, strict=True))


# Process groups


def process_groups(found: Sequence[ProcessGroups], width: int) -> list[Line]:
    """Returns a table with a row for each dim, or a sentence for a single one."""
    if len(found) < 2:
        return [sentence(groups, width) for groups in found]
    shape = (Column(), Column(right=True), Column(right=True), Column(5, shorten=Line.by_words), Column())
    heading = [Line(styled(word, "faint")) for word in ("dim", "groups", "stride", "first", "nodes")]
    return columns([heading, *map(_facts, found)], shape, width)


def _facts(groups: ProcessGroups) -> list[Line]:
    counts = Line(f"{groups.count} x {groups.size}")
    stride = Line("-" if groups.stride is None else str(groups.stride))
    return [Line(styled(groups.dim, "bold")), counts, stride, Line(example(groups)), Line(reach(groups))]


def sentence(groups: ProcessGroups, width: int) -> Line:
    """Returns a line such as `tp  2 groups of 4, stride 1, first 0 1 2 3, inside a node`, or where that does
    not fit `tp  2 x 4, stride 1, 0 1 2 3, inside`."""
    stride = "" if groups.stride is None else f", stride {groups.stride}"
    first = "first " * (groups.count > 1) + example(groups)
    nodes = " a node" if groups.reach == "inside" else " nodes"
    counts = f"  {count(groups.count, 'group')} of {groups.size}{stride}, "
    words = f"{REACHES[groups.reach]}{nodes}"
    full = Line(styled(groups.dim, "bold"), counts, first, ", ", styled(words, reach(groups).style))
    counts = f"  {groups.count} x {groups.size}{stride}, "
    short = Line(styled(groups.dim, "bold"), counts, example(groups), ", ", reach(groups))
    return full if full.width <= width else short


def example(groups: ProcessGroups) -> str:
    """Returns the ranks of one process group as an example: `0 1 2 3`, or `0 8 … 504` where there are more
    than four."""
    if groups.size <= 4:
        return " ".join(map(str, groups.example))
    if groups.stride is None:
        return " ".join(map(str, groups.example[:3])) + f" {ELLIPSIS}"
    first, second = groups.example[:2]
    return f"{first} {second} {ELLIPSIS} {first + (groups.size - 1) * groups.stride}"


def reach(groups: ProcessGroups) -> Segment:
    is_slow = groups.reach != "inside" and groups.dim in DIMS_IN_EVERY_LAYER
    return styled(REACHES[groups.reach], "warning" if is_slow else "")
