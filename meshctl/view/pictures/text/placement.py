"""The placement: the components on each device, with a row for each kind of node.

                  cuda 0    1    2    3    4    5    6    7    cpu
                     ┌ rollout ──────────┬ train ────────────┐ ┌ judge ┐
    nodes 0-2, 5     │ AB   AB   AB   AB │ DE   DE   DE   DE │ │ C   C │
                     └───────────────────┴───────────────────┘ └───────┘

A device has the same column in every row. If the devices of a node do not fit into a line, equal neighbours
become one box: AB x 32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from meshctl.dataclass import dataclass
from meshctl.plan.views.topology import NodeKind, Topology
from meshctl.topology.cluster import Cluster
from meshctl.topology.device_ranges import device_count, merged
from meshctl.view.pictures.text.letters import IDLE, Marks
from meshctl.view.pictures.text.styled import Column, Line, columns, cut, joined, styled, width_of

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
JOINTS = " │││─┘┐┤─└┌├─┴┬┼"
"""Border characters, by the sum of the sides on which the border continues."""


@dataclass(frozen=True)
class Box:
    width: int
    """The width in columns, without the borders."""
    title: str
    inside: Line

    @classmethod
    def titled(cls, title: str, inside: Line) -> Box:
        """Returns a box that is just wide enough for its title and for its inside."""
        return cls(max(inside.width, width_of(title) + 2), title, inside)


@dataclass(frozen=True)
class Placed:
    """A box in a row. A box that starts at its `end` shares the border with it."""

    start: int
    """The column of its left border."""
    box: Box

    @property
    def end(self) -> int:
        """The column of its right border."""
        return self.start + self.box.width + 1


Row = Sequence[Placed]


def side_by_side(boxes: Sequence[Box], start: int = 0) -> list[Placed]:
    """Returns the boxes side by side with common borders, the first one at the column `start`."""
    placed: list[Placed] = []
    for box in boxes:
        placed.append(Placed(placed[-1].end if placed else start, box))
    return placed


def drawn(rows: Sequence[Row]) -> list[Line]:
    """Returns the lines of the rows: for each row the border above it and its inside, then the last
    border."""
    made: list[Line] = []
    for above, below in pairwise([(), *rows, ()]):
        line, bar = Line(), styled("│", "faint")
        for number, placed in enumerate(below):
            is_joined = number > 0 and below[number - 1].end == placed.start
            line = line if is_joined else Line(line.padded(placed.start), bar)
            line = Line(line, placed.box.inside.fit(placed.box.width).padded(placed.box.width), bar)
        made += [_border(above, below), line]
    return made[:-1]


def _border(above: Row, below: Row) -> Line:
    sides: dict[int, int] = {}
    for row, vertical in ((above, UP), (below, DOWN)):
        for placed in row:
            for post in (placed.start, placed.end):
                sides[post] = sides.get(post, 0) | vertical
            for column in range(placed.start, placed.end):
                sides[column] = sides.get(column, 0) | RIGHT
                sides[column + 1] = sides.get(column + 1, 0) | LEFT
    border = "".join(JOINTS[sides.get(column, 0)] for column in range(max(sides, default=-1) + 1))
    made, at = Line(), 0
    for placed in below:
        longest = placed.box.width - 2 if placed.box.width > 4 else placed.box.width
        text = cut(placed.box.title, longest) if longest > 2 or width_of(placed.box.title) <= longest else ""
        title = styled(f" {text} " if text and width_of(text) <= placed.box.width - 2 else text)
        made = Line(made, styled(border[at : placed.start + 1], "faint"), title)
        at = placed.start + 1 + width_of(title.text)
    return Line(made, styled(border[at:], "faint"))


INDENT = 2
MAX_LABEL = 22
"""Maximum width of the label of a row in columns."""
MAX_PROCESSES = 8
"""Maximum number of CPU processes of one group on one node that are drawn one by one."""
GAP = 1
"""Columns between the boxes of two device types."""
MIN_COUNTED = 10
"""Minimum number of equal nodes for which the number is shown after their row."""
MAX_ROWS = 3
"""Maximum number of rows of boxes for one node."""


@dataclass(frozen=True)
class Share:
    """The workers of one group on some neighbouring devices."""

    group: str
    each: int
    """Devices per worker."""
    before: int
    """The number of devices of its first worker that come before these devices."""

    def begins(self, device: int) -> bool:
        """Returns whether a worker begins at a device. Devices of the part are counted from 0."""
        return (self.before + device) % self.each == 0


@dataclass(frozen=True)
class Part:
    """Neighboring devices, or CPU processes, of the same groups."""

    device_type: str
    first: int
    """The number of the first device on its node."""
    count: int
    shares: tuple[Share, ...]
    """One for each group on the devices; several if groups are colocated, none for idle devices."""

    @property
    def title(self) -> str:
        return " + ".join(share.group for share in self.shares) or (
            "" if self.device_type == "cpu" else "idle"
        )

    @property
    def is_numbered(self) -> bool:
        return self.device_type != "cpu"

    def continues(self, device: int) -> bool:
        """Returns whether a device belongs to workers that begin at devices before it. Devices of this part
        are counted from 0."""
        return bool(self.shares) and not any(share.begins(device) for share in self.shares)


class Nodes(NamedTuple):
    """A row of equal nodes."""

    label: str
    note: str
    """The text after the boxes."""
    parts: tuple[tuple[Part, ...], ...]
    """For each device type of the table, the parts of one of the nodes."""


def types_of(topology: Topology) -> tuple[str, ...]:
    types = dict.fromkeys(cell.device_type for kind in topology.nodes for cell in kind.cells)
    return (*types, *["cpu"] * any(kind.processes for kind in topology.nodes))


def rows_of(topology: Topology, types: tuple[str, ...]) -> list[Nodes]:
    """Returns a row for each kind of nodes, with the devices of some types. A row stands for the nodes that
    are equal in these types."""
    found: dict[tuple[tuple[Part, ...], ...], list[tuple[int, int]]] = {}
    for kind in topology.nodes:
        parts = tuple(tuple(_parts(topology, kind, each)) for each in types)
        if any(parts):
            found.setdefault(parts, []).extend(kind.nodes)
    rows = []
    for parts, runs in found.items():
        count = sum(stop - start for start, stop in runs)
        note = f"{count} nodes" if count >= MIN_COUNTED else ""
        rows.append(Nodes(nodes_label(runs), note, parts))
    return rows


def _parts(topology: Topology, kind: NodeKind, device_type: str) -> Iterator[Part]:
    if device_type == "cpu":
        yield from (Part("cpu", 0, count, (Share(group, 1, 0),)) for group, count in kind.processes)
    each = {group.name: group.gpus_per_worker for group in topology.groups}
    begin: dict[str, int] = {}
    for cell in kind.cells:
        if cell.device_type == device_type:
            first, stop = cell.devices
            begin = {group: begin.get(group, first) for group in cell.groups}
            sizes = [(group, each.get(group, 1)) for group in cell.groups]
            shares = (Share(group, size, (first - begin[group]) % size) for group, size in sizes)
            yield Part(device_type, first, stop - first, tuple(shares))


def nodes_label(runs: Sequence[tuple[int, int]]) -> str:
    """Returns `node 3`, `nodes 0-6, 9`, or `nodes 0, 2, … 14`."""
    nodes = tuple(merged(sorted(runs)))
    words = [str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in nodes]
    one = "node" if device_count(nodes) == 1 else "nodes"
    texts = [f"{one} {', '.join(words)}"]
    texts += [f"{one} {', '.join(words[:shown])}, … {words[-1]}" for shown in range(len(words) - 2, 0, -1)]
    shortest = f"{one} {words[0]} … {words[-1]}" if len(words) > 1 else texts[0]
    return next((text for text in texts if len(text) <= MAX_LABEL), cut(shortest, MAX_LABEL))


# Drawing


def in_boxes(topology: Topology, marks: Marks, width: int) -> list[Line]:
    """Returns the placement as boxes.

    All device types are side by side, and each device has columns of its own, if that fits into the width.
    Otherwise the device types are one below the other; a type that is still too wide shows neighbouring
    devices of the same groups as one box with their number.
    """
    types, drawn = types_of(topology), list[Line]()
    if rows := rows_of(topology, types):
        drawn = Sheet(types, rows, marks, width).in_full()
    for each in types if not drawn else ():
        if rows := rows_of(topology, (each,)):
            sheet = Sheet((each,), rows, marks, width)
            drawn += sheet.in_full() or sheet.counted()
    return drawn


def in_lines(topology: Topology, marks: Marks, width: int) -> list[Line]:
    """Returns one line for each kind of node, with equal neighbours together."""
    types = types_of(topology)
    rows = [[Line(), *(Line(styled(name, "faint")) for name in types)]]
    for row in rows_of(topology, types):
        cells = (joined((counted(part, marks) for part in parts), " │ ") for parts in row.parts)
        rows.append([Line(" " * INDENT, row.label), *cells, Line(row.note)])
    shape = [Column(), *[Column(least=8, gap=3)] * len(types), Column(spare=1)]
    return columns(rows, shape, width)


@dataclass(frozen=True)
class Sheet:
    """A table, to be drawn in a width: a row for each kind of nodes, with the devices of some types."""

    types: tuple[str, ...]
    rows: Sequence[Nodes]
    marks: Marks
    width: int

    @property
    def space(self) -> int:
        """The columns for boxes."""
        label, note = (max(map(len, texts)) for texts in list(zip(*self.rows, strict=True))[:2])
        return self.width - INDENT - label - 1 - (note + 1 if note else 0)

    def in_full(self) -> list[Line]:
        """Returns the boxes with a column for every device. Columns are as wide as the titles need, or
        narrower if there is less space; the result is empty if not even narrow columns fit."""
        parts = [part for row in self.rows for of_type in row.parts for part in of_type]
        longest = max(letters(part, self.marks).width for part in parts)
        number = max(len(str(part.first + part.count - 1)) for part in parts)
        narrow, good = max(longest + 2, number + 2), max(longest + 3, number + 2)
        counts = (sum(one.count for of in row.parts for one in of if one.is_numbered) for row in self.rows)
        if max(counts, default=0) * narrow > self.space:
            return []
        titles = [-(-(width_of(part.title) + 3) // part.count) for part in parts if part.is_numbered]
        widest = max(good, min(max(titles, default=good), good + 8))
        for pitch in [*range(widest, good, -1), good, narrow]:
            rows, starts = self._aligned(pitch)
            if starts[-1] <= self.space:
                made = []
                for place, device_type in enumerate(self.types):
                    if device_type == "cpu":
                        made.append((starts[place] + 2, "cpu"))
                        continue
                    name = f"{device_type} " if place else ""
                    count = max(sum(part.count for part in row.parts[place]) for row in self.rows)
                    numbers = "".join(str(device).ljust(pitch) for device in range(count))
                    made.append((starts[place] + 2 - len(name), name + numbers))
                return self._labelled(rows, [row[:2] for row in self.rows], made)
        return []

    def counted(self) -> list[Line]:
        """Returns the boxes with one box for neighbouring devices of the same groups, `AB x 32`. Boxes that
        do not fit into a line continue in the next row."""
        rows: list[Row] = []
        texts: list[tuple[str, str]] = []
        for row in self.rows:
            boxes = [self._counted(part) for parts in row.parts for part in parts]
            lines = _broken([replace(box, width=min(box.width, self.space - 2)) for box in boxes], self.space)
            rows += lines
            texts += [(row.label, row.note), *[("", "")] * (len(lines) - 1)]
        return self._labelled(rows, texts, [(2, self.types[0])])

    def _aligned(self, pitch: int) -> tuple[Sequence[Row], list[int]]:
        """Returns (rows of boxes, columns). Boxes of one device type begin at the same column in all rows;
        `columns` has this column for each type, then the end. A device is `pitch` columns wide."""
        made = [[[self._whole(part, pitch) for part in parts] for parts in row.parts] for row in self.rows]
        starts, end = list[int](), 0
        for name, blocks in zip(self.types, zip(*made, strict=True), strict=True):
            gap = GAP + len(name) * (name != "cpu")
            starts.append(end + gap * bool(starts))
            end = starts[-1] + max(sum(box.width + 1 for box in boxes) + bool(boxes) for boxes in blocks)
        rows = [
            [
                placed
                for start, boxes in zip(starts, row, strict=True)
                for placed in side_by_side(boxes, start)
            ]
            for row in made
        ]
        return rows, [*starts, end]

    def _labelled(
        self, rows: Sequence[Row], texts: Sequence[tuple[str, str]], heading: Sequence[tuple[int, str]]
    ) -> list[Line]:
        """Returns the boxes with a heading, and with the label and note of each row in `texts`. The name of
        the first device type is above the labels, unless it is cpu."""
        wide = max(len(label) for label, _ in texts)
        first = self.types[0] if self.types[0] != "cpu" else ""
        above = Line()
        for column, text in heading:
            above = Line(above.padded(column), text if text != first else "")
        boxes = drawn(rows)
        right = INDENT + wide + 1 + max(each.width for each in boxes)
        made = [Line(" " * INDENT, Line(first).padded(wide, right=True), " ", above).with_style("faint")]
        for number, each in enumerate(boxes):
            label, note = texts[number // 2] if number % 2 else ("", "")
            line = Line(" " * INDENT, Line(label).padded(wide), " ", each)
            made.append(Line(line.padded(right), " ", note) if note else line)
        return made

    # Boxes

    def _whole(self, part: Part, pitch: int) -> Box:
        """Returns a box in which each device is `pitch` columns wide, or in which each CPU process is
        drawn."""
        if part.is_numbered:
            made = Line()
            for device in range(part.count):
                is_continued = device + 1 < part.count and part.continues(device + 1)
                if part.continues(device):
                    made = Line(made, styled("═" * (pitch if is_continued else pitch - 2), "faint"))
                else:
                    texts = (self.marks.of_group(share.group) for share in part.shares)
                    words = (
                        text if share.begins(device) else Line(styled("═" * text.width, "faint"))
                        for share, text in zip(part.shares, texts, strict=True)
                    )
                    made = Line(
                        made, " ", joined(words, "+") or letters(part, self.marks), " " * is_continued
                    )
                    rest = (device + 1) * pitch - made.width
                    made = Line(made, styled("═" * rest * is_continued, "faint"))
                made = made.padded((device + 1) * pitch)
            return Box(part.count * pitch - 1, part.title, made.trimmed())
        if part.count > MAX_PROCESSES:
            return Box.titled(part.title, Line(" ", counted(part, self.marks), " "))
        marks = letters(part, self.marks)
        each = Line(" ", marks.padded(marks.width + 2))
        return Box.titled(part.title, Line(Line(*[each] * part.count).trimmed(), " "))

    def _counted(self, part: Part) -> Box:
        """Returns a box with the number of workers, `AB x 32`, and the numbers of the devices in its
        title."""
        numbers = f" {part.first}" + f"-{part.first + part.count - 1}" * (part.count > 1)
        return Box.titled(part.title + numbers * part.is_numbered, Line(" ", counted(part, self.marks), " "))


def letters(part: Part, marks: Marks) -> Line:
    """Returns the letters of the groups, with a + between colocated ones."""
    return joined((marks.of_group(share.group) for share in part.shares), "+") or Line(styled(IDLE, "faint"))


def counted(part: Part, marks: Marks) -> Line:
    """Returns `AB x 4 of 2`: four workers, of two devices each."""
    if len({(share.each, share.before) for share in part.shares}) > 1:
        alone = (replace(part, shares=(share,)) for share in part.shares)
        return joined((counted(each, marks) for each in alone), " + ")
    share = part.shares[0] if part.shares else Share("", 1, 0)
    workers = sum(share.begins(device) for device in range(part.count))
    words = (f" x {workers}" if workers > 1 else "") + (f" of {share.each}" if share.each > 1 else "")
    return Line(letters(part, marks), words)


def _broken(boxes: Sequence[Box], space: int) -> list[Row]:
    """Returns the boxes in at most `MAX_ROWS` rows. If boxes are left out, the last one has their number."""
    made: list[list[Box]] = [[]]
    for box in boxes:
        if made[-1] and sum(each.width + 1 for each in made[-1]) + box.width + 2 > space:
            made.append([])
        made[-1].append(box)
    if len(made) > MAX_ROWS:
        left, made = sum(map(len, made[MAX_ROWS:])), made[:MAX_ROWS]
        longest = len(f" … {len(boxes)} more ")
        while sum(each.width + 1 for each in made[-1]) + longest + 2 > space:
            made[-1].pop()
            left += 1
        made[-1].append(Box(longest, "", Line(f" … {left} more")))
    return [side_by_side(row) for row in made]


def cluster_lines(cluster: Cluster, width: int) -> list[Line]:
    """Returns the line for the pools; none if there are none."""
    texts, start = list[str](), 0
    for name, nodes in cluster.pools:
        texts.append(f"{name}: {nodes_label([(start, start + nodes)])}")
        start += nodes
    return [Line("  ", styled("pools", "faint"), "  ", ", ".join(texts)).clip(width)] if texts else []
