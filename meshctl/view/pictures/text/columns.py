"""The placement: the components on each device, with a row for each kind of node.

                  cuda 0    1    2    3    4    5    6    7    cpu
                     ┌ rollout ──────────┬ train ────────────┐ ┌ judge ┐
    nodes 0-2, 5     │ AB   AB   AB   AB │ DE   DE   DE   DE │ │ C   C │
                     └───────────────────┴───────────────────┘ └───────┘

A device has the same column in every row. If the devices of a node do not fit into a line, equal neighbors
become one cell: AB x 32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshctl.plan.views.topology import NodeKind, Topology
from meshctl.view.pictures.text.box import Block, Frame, boxed, starts_of
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.styled import Line, cut, ink, line, padded, styled, trimmed, width_of

INDENT = 2
MAX_LABEL = 22
"""Columns of the label of a row."""
MAX_PROCESSES = 8
"""CPU processes of one group on one node that are drawn one by one."""
GAP = 1
"""Columns between the boxes of two device types."""
MIN_COUNTED = 10
"""So many equal nodes are counted behind their row."""
MAX_ROWS = 3
"""Rows of frames of one node."""


@dataclass(frozen=True)
class Part:
    """Neighboring devices, or CPU processes, of the same groups."""

    title: str
    marks: Line
    devices: int
    each: int = 1
    """Devices of a worker."""
    first: int = 0
    """The number of the first device on its node."""

    @property
    def workers(self) -> int:
        return self.devices // self.each


Parts = tuple[Part, ...]


@dataclass(frozen=True)
class Nodes:
    """A row of equal nodes."""

    label: str
    note: str
    """Behind the frames."""
    blocks: tuple[Parts, ...]
    """For each of the device types."""


@dataclass(frozen=True)
class Table:
    """The kinds of nodes, with the devices of some types."""

    types: tuple[str, ...]
    rows: tuple[Nodes, ...]

    @property
    def parts(self) -> Iterator[Part]:
        return (part for row in self.rows for parts in row.blocks for part in parts)


def tables(topology: Topology, marks: Marks, together: bool) -> list[Table]:
    """Returns one table for all device types, or one for each type with its own kinds of nodes."""
    types = list(
        dict.fromkeys([*(cell.device_type for kind in topology.nodes for cell in kind.cells), "cpu"])
    )
    if not any(kind.processes for kind in topology.nodes):
        types.remove("cpu")
    sets = [tuple(types)] if together else [(each,) for each in types]
    return [table for each in sets if (table := _table(topology, marks, each)).rows]


def _table(topology: Topology, marks: Marks, types: tuple[str, ...]) -> Table:
    found: dict[tuple[Parts, ...], list[tuple[int, int]]] = {}
    for kind in topology.nodes:
        parts = tuple(tuple(_parts(kind, marks, each)) for each in types)
        if any(parts):
            found.setdefault(parts, []).extend(kind.nodes)
    return Table(types, tuple(Nodes(nodes_label(runs), _note(runs), parts) for parts, runs in found.items()))


def _note(runs: Sequence[tuple[int, int]]) -> str:
    count = sum(stop - start for start, stop in runs)
    return f"{count} nodes" if count >= MIN_COUNTED else ""


def nodes_label(runs: Sequence[tuple[int, int]]) -> str:
    """Returns `node 3`, `nodes 0-6, 9`, or `nodes 0, 2, … 14`."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(runs):
        if merged and merged[-1][1] >= start:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    words = [str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in merged]
    one = "node" if sum(stop - start for start, stop in merged) == 1 else "nodes"
    for shown in range(len(words), 1, -1):
        text = (
            f"{one} {', '.join(words)}"
            if shown == len(words)
            else f"{one} {', '.join(words[: shown - 1])}, … {words[-1]}"
        )
        if len(text) <= MAX_LABEL:
            return text
    return cut(f"{one} {words[0] if len(words) == 1 else f'{words[0]} … {words[-1]}'}", MAX_LABEL)


def _parts(kind: NodeKind, marks: Marks, device_type: str) -> Iterator[Part]:
    if device_type == "cpu":
        for group, processes in kind.processes:
            yield Part(group, marks.of_cell((group,)), processes)
    for cell in kind.cells:
        if cell.device_type == device_type:
            start, stop = cell.devices
            yield Part(
                " + ".join(cell.groups), marks.of_cell(cell.groups), stop - start, max(1, cell.each), start
            )


# Drawing


def placement(topology: Topology, marks: Marks, width: int, borders: bool = True) -> list[Line]:
    """Returns the placement: device by device if it fits, otherwise with equal neighbors as one cell; the
    device types side by side if they fit."""
    whole = tables(topology, marks, together=True)
    separate = tables(topology, marks, together=False) if whole and len(whole[0].types) > 1 else []
    for draw in (_full, _folded):
        for each in (whole, separate):
            drawn = [draw(table, width, borders) for table in each]
            if drawn and all(drawn):
                return [line for table in drawn for line in table]
    return [line for table in separate or whole for line in _wrapped(table, width, borders)]


def _room(table: Table, width: int) -> int:
    labels, notes = (max(len(row.label) for row in table.rows), max(len(row.note) for row in table.rows))
    return width - INDENT - max(labels, len(table.types[0])) - 1 - (notes + 1 if notes else 0)


def _full(table: Table, width: int, borders: bool) -> list[Line]:
    """Returns every device in its column, as wide as the titles need and the room allows."""
    room, gaps = _room(table, width), _gaps(table)
    letters = max(width_of(part.marks) for part in table.parts)
    number = max(len(str(part.first + part.devices - 1)) for part in table.parts)
    narrow, good = max(letters + 2, number + 2), max(letters + 3, number + 2)
    for pitch in [*range(max(good, _title_pitch(table, good)), good, -1), good, narrow]:
        rows = [
            tuple(
                _block(parts, pitch, each, borders)
                for parts, each in zip(row.blocks, table.types, strict=True)
            )
            for row in table.rows
        ]
        *starts, end = starts_of(rows, gaps)
        if end <= room:
            return _labelled(table, boxed(rows, starts, borders), _numbers(table, starts, pitch), borders)
    return []


def _gaps(table: Table) -> list[int]:
    """Returns the columns before each type. The name of the first type is above the labels, that of the CPU
    above its processes, and others are before their numbers."""
    return [
        0 if place == 0 else GAP if each == "cpu" else GAP + len(each)
        for place, each in enumerate(table.types)
    ]


def _title_pitch(table: Table, good: int) -> int:
    """Returns the distance between devices at which every title is complete."""
    pitches = [
        -(-(width_of(part.title) + 3) // part.devices)
        for row in table.rows
        for parts, each in zip(row.blocks, table.types, strict=True)
        for part in parts
        if each != "cpu"
    ]
    return min(max(pitches, default=good), good + 8)


def _block(parts: Parts, pitch: int, device_type: str, titled: bool) -> Block:
    if device_type != "cpu":
        return tuple(
            Frame(part.devices * pitch - 1, part.title or "idle", _cells(part, pitch)) for part in parts
        )
    made = []
    for part in parts:
        close = width_of(part.marks) + 3
        inside = (
            _cells(part, close)
            if part.devices <= MAX_PROCESSES
            else line(" ", part.marks, f" x {part.devices}")
        )
        made.append(Frame(max(width_of(inside) + 1, (width_of(part.title) + 2) * titled), part.title, inside))
    return tuple(made)


def _cells(part: Part, pitch: int) -> Line:
    """Returns the letters of each worker; a worker with several devices is a wide cell."""
    made = Line()
    for _ in range(part.workers):
        room = part.each * pitch
        rest = "═" * (room - width_of(part.marks) - 4) if part.each > 1 else ""
        made = line(made, padded(line(" ", part.marks, " " * bool(rest), ink(rest, "faint")), room))
    return trimmed(made)


def _numbers(table: Table, starts: Sequence[int], pitch: int) -> Line:
    """Returns the heading: device types, and the numbers of devices above their columns."""
    made = Line()
    for place, device_type in enumerate(table.types):
        if device_type == "cpu":
            made = line(padded(made, starts[place] + 2), "cpu")
            continue
        name = f"{device_type} " if place else ""
        most = max(sum(part.devices for part in row.blocks[place]) for row in table.rows)
        made = line(
            padded(made, starts[place] + 2 - len(name)),
            name,
            *(padded(line(str(device)), pitch) for device in range(most)),
        )
    return made


def _labelled(table: Table, box: Sequence[Line], heading: Line, borders: bool) -> list[Line]:
    """Returns the box with its heading and the labels of the rows."""
    first = table.types[0] if table.types[0] != "cpu" else ""
    wide = max(len(first), *(len(row.label) for row in table.rows))
    right = max(map(width_of, box))
    made = [
        line(" " * INDENT, padded(line(ink(first, "faint")), wide, right=True), " ", styled(heading, "faint"))
    ]
    for number, each in enumerate(box):
        row = table.rows[number // 2 if borders else number] if not borders or number % 2 else None
        label, note = (row.label, row.note) if row else ("", "")
        drawn = line(" " * INDENT, padded(line(label), wide), " ", each)
        made.append(line(padded(drawn, INDENT + wide + 1 + right), " ", note) if note else drawn)
    return made


def _folded(table: Table, width: int, borders: bool) -> list[Line]:
    rows = [
        tuple(_frames(parts, each, borders) for parts, each in zip(row.blocks, table.types, strict=True))
        for row in table.rows
    ]
    *starts, end = starts_of(rows, [GAP * bool(place) for place in range(len(table.types))])
    return (
        _labelled(table, boxed(rows, starts, borders), _types(table, starts), borders)
        if end <= _room(table, width)
        else []
    )


def _frames(parts: Parts, device_type: str, titled: bool) -> Block:
    return tuple(_frame(part, device_type, titled) for part in parts)


def _frame(part: Part, device_type: str, titled: bool) -> Frame:
    """Returns equal neighbors as one cell, `AB x 32`, with the numbers of the devices above."""
    numbers = (
        f" {part.first}" + f"-{part.first + part.devices - 1}" * (part.devices > 1)
        if device_type != "cpu"
        else ""
    )
    workers = f" x {part.workers}" if part.workers > 1 else ""
    inside = line(" ", part.marks, workers, f" of {part.each}" if part.each > 1 else "", " ")
    title = (part.title or "idle") + numbers
    return Frame(max(width_of(inside), (width_of(title) + 2) * titled), title, inside)


def _types(table: Table, starts: Sequence[int]) -> Line:
    made = Line()
    for place, device_type in enumerate(table.types):
        made = padded(made, starts[place] + 2) if place or device_type == "cpu" else made
        made = line(made, device_type if place or device_type == "cpu" else "")
    return made


def _wrapped(table: Table, width: int, borders: bool) -> list[Line]:
    """Returns nodes with more different cells than fit into a line: their frames continue below."""
    room, rows, names = _room(table, width), list[tuple[Block]](), list[Nodes]()
    for row in table.rows:
        frames = [
            _narrowed(frame, room)
            for parts, each in zip(row.blocks, table.types, strict=True)
            for frame in _frames(parts, each, borders)
        ]
        for number, block in enumerate(_broken(frames, room)):
            rows.append((block,))
            names.append(Nodes("", "", ()) if number else row)
    alone = Table(table.types[:1], tuple(names))
    return _labelled(alone, boxed(rows, [0], borders), _types(alone, [0]), borders)


def _narrowed(frame: Frame, room: int) -> Frame:
    return Frame(min(frame.width, room - 2), frame.title, frame.inside)


def _broken(frames: Sequence[Frame], room: int) -> list[Block]:
    made: list[list[Frame]] = [[]]
    for frame in frames:
        if made[-1] and sum(each.width + 1 for each in made[-1]) + frame.width + 2 > room:
            made.append([])
        made[-1].append(frame)
    if len(made) > MAX_ROWS:
        left, made = sum(map(len, made[MAX_ROWS:])), made[:MAX_ROWS]
        most = len(f" … {len(frames)} more ")
        while sum(each.width + 1 for each in made[-1]) + most + 2 > room:
            made[-1].pop()
            left += 1
        made[-1].append(Frame(most, "", line(f" … {left} more")))
    return [tuple(block) for block in made]
