"""Nodes x devices: who stands where, a row for each kind of node.

                  cuda 0    1    2    3    4    5    6    7    cpu
                     ┌ rollout ──────────┬ train ────────────┐ ┌ judge ┐
    nodes 0-2, 5     │ AB   AB   AB   AB │ DE   DE   DE   DE │ │ C   C │
                     └───────────────────┴───────────────────┘ └───────┘

A device keeps its column in every row. Where a node has more devices than a line has room for, equal
neighbours are one cell: AB x 32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshctl.plan.views.topology import NodeKind, Topology
from meshctl.view.pictures.text.box import Block, Frame, boxed, starts_of
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.styled import Line, cut, ink, line, padded, styled, trimmed, width_of

INDENT = 2
LABEL = 22
"""Columns of a row's label at most."""
PROCESSES = 8
"""CPU processes of one group on one node that are drawn one by one."""
GAP = 1
"""Columns between the boxes of two device types."""
MANY = 10
"""Equal nodes that are counted."""
WRAPS = 3
"""Rows of frames that a node may take."""


@dataclass(frozen=True)
class Part:
    """Neighbouring devices, or processes on the CPU, of the same groups."""

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
    """A row: nodes that look alike."""

    label: str
    note: str
    """Behind the frames."""
    blocks: tuple[Parts, ...]
    """For each of the device types."""


@dataclass(frozen=True)
class Strip:
    """Kinds of nodes, as far as some device types go."""

    types: tuple[str, ...]
    rows: tuple[Nodes, ...]

    @property
    def parts(self) -> Iterator[Part]:
        return (part for row in self.rows for parts in row.blocks for part in parts)


def strips(topology: Topology, marks: Marks, together: bool) -> list[Strip]:
    """One for all device types, or one for each with its own equal nodes put together."""
    types = list(
        dict.fromkeys([*(cell.device_type for kind in topology.nodes for cell in kind.cells), "cpu"])
    )
    if not any(kind.processes for kind in topology.nodes):
        types.remove("cpu")
    sets = [tuple(types)] if together else [(each,) for each in types]
    return [strip for each in sets if (strip := _strip(topology, marks, each)).rows]


def _strip(topology: Topology, marks: Marks, types: tuple[str, ...]) -> Strip:
    found: dict[tuple[Parts, ...], list[tuple[int, int]]] = {}
    for kind in topology.nodes:
        parts = tuple(tuple(_parts(kind, marks, each)) for each in types)
        if any(parts):
            found.setdefault(parts, []).extend(kind.nodes)
    return Strip(types, tuple(Nodes(nodes_label(runs), _note(runs), parts) for parts, runs in found.items()))


def _note(runs: Sequence[tuple[int, int]]) -> str:
    count = sum(stop - start for start, stop in runs)
    return f"{count} nodes" if count >= MANY else ""


def nodes_label(runs: Sequence[tuple[int, int]]) -> str:
    """node 3; nodes 0-6, 9; nodes 0, 2, … 14."""
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
        if len(text) <= LABEL:
            return text
    return cut(f"{one} {words[0] if len(words) == 1 else f'{words[0]} … {words[-1]}'}", LABEL)


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
    """Device by device where there is room, else equal neighbours as one; device types side by side where
    there is room."""
    whole = strips(topology, marks, together=True)
    apart = strips(topology, marks, together=False) if whole and len(whole[0].types) > 1 else []
    for draw in (_full, _folded):
        for each in (whole, apart):
            drawn = [draw(strip, width, borders) for strip in each]
            if drawn and all(drawn):
                return [line for strip in drawn for line in strip]
    return [line for strip in apart or whole for line in _wrapped(strip, width, borders)]


def _room(strip: Strip, width: int) -> int:
    labels, notes = (max(len(row.label) for row in strip.rows), max(len(row.note) for row in strip.rows))
    return width - INDENT - max(labels, len(strip.types[0])) - 1 - (notes + 1 if notes else 0)


def _full(strip: Strip, width: int, borders: bool) -> list[Line]:
    """Every device in its column, as wide as titles ask for and the room allows."""
    room, gaps = _room(strip, width), _gaps(strip)
    letters = max(width_of(part.marks) for part in strip.parts)
    number = max(len(str(part.first + part.devices - 1)) for part in strip.parts)
    narrow, good = max(letters + 2, number + 2), max(letters + 3, number + 2)
    for pitch in [*range(max(good, _asked(strip, good)), good, -1), good, narrow]:
        rows = [
            tuple(
                _block(parts, pitch, each, borders)
                for parts, each in zip(row.blocks, strip.types, strict=True)
            )
            for row in strip.rows
        ]
        *starts, end = starts_of(rows, gaps)
        if end <= room:
            return _labelled(strip, boxed(rows, starts, borders), _numbers(strip, starts, pitch), borders)
    return []


def _gaps(strip: Strip) -> list[int]:
    """Before each type; the first one's name stands among the labels, that of the CPU above its processes,
    others before their numbers."""
    return [
        0 if place == 0 else GAP if each == "cpu" else GAP + len(each)
        for place, each in enumerate(strip.types)
    ]


def _asked(strip: Strip, good: int) -> int:
    """The distance of devices that shows every title whole."""
    asked = [
        -(-(width_of(part.title) + 3) // part.devices)
        for row in strip.rows
        for parts, each in zip(row.blocks, strip.types, strict=True)
        for part in parts
        if each != "cpu"
    ]
    return min(max(asked, default=good), good + 8)


def _block(parts: Parts, pitch: int, device_type: str, titled: bool) -> Block:
    if device_type != "cpu":
        return tuple(
            Frame(part.devices * pitch - 1, part.title or "idle", _cells(part, pitch)) for part in parts
        )
    made = []
    for part in parts:
        close = width_of(part.marks) + 3
        inside = (
            _cells(part, close) if part.devices <= PROCESSES else line(" ", part.marks, f" x {part.devices}")
        )
        made.append(Frame(max(width_of(inside) + 1, (width_of(part.title) + 2) * titled), part.title, inside))
    return tuple(made)


def _cells(part: Part, pitch: int) -> Line:
    """The letters of each worker; one of several devices is a wide cell."""
    made = Line()
    for _ in range(part.workers):
        room = part.each * pitch
        rest = "═" * (room - width_of(part.marks) - 4) if part.each > 1 else ""
        made = line(made, padded(line(" ", part.marks, " " * bool(rest), ink(rest, "faint")), room))
    return trimmed(made)


def _numbers(strip: Strip, starts: Sequence[int], pitch: int) -> Line:
    """The heading: device types, and the numbers of devices above their columns."""
    made = Line()
    for place, device_type in enumerate(strip.types):
        if device_type == "cpu":
            made = line(padded(made, starts[place] + 2), "cpu")
            continue
        name = f"{device_type} " if place else ""
        most = max(sum(part.devices for part in row.blocks[place]) for row in strip.rows)
        made = line(
            padded(made, starts[place] + 2 - len(name)),
            name,
            *(padded(line(str(device)), pitch) for device in range(most)),
        )
    return made


def _labelled(strip: Strip, box: Sequence[Line], heading: Line, borders: bool) -> list[Line]:
    """The box with its heading and the names of the rows."""
    first = strip.types[0] if strip.types[0] != "cpu" else ""
    wide = max(len(first), *(len(row.label) for row in strip.rows))
    right = max(map(width_of, box))
    made = [
        line(" " * INDENT, padded(line(ink(first, "faint")), wide, right=True), " ", styled(heading, "faint"))
    ]
    for number, each in enumerate(box):
        row = strip.rows[number // 2 if borders else number] if not borders or number % 2 else None
        label, note = (row.label, row.note) if row else ("", "")
        drawn = line(" " * INDENT, padded(line(label), wide), " ", each)
        made.append(line(padded(drawn, INDENT + wide + 1 + right), " ", note) if note else drawn)
    return made


def _folded(strip: Strip, width: int, borders: bool) -> list[Line]:
    rows = [
        tuple(_frames(parts, each, borders) for parts, each in zip(row.blocks, strip.types, strict=True))
        for row in strip.rows
    ]
    *starts, end = starts_of(rows, [GAP * bool(place) for place in range(len(strip.types))])
    return (
        _labelled(strip, boxed(rows, starts, borders), _types(strip, starts), borders)
        if end <= _room(strip, width)
        else []
    )


def _frames(parts: Parts, device_type: str, titled: bool) -> Block:
    return tuple(_frame(part, device_type, titled) for part in parts)


def _frame(part: Part, device_type: str, titled: bool) -> Frame:
    """Equal neighbours as one: AB x 32, with the numbers of the devices above."""
    numbers = (
        f" {part.first}" + f"-{part.first + part.devices - 1}" * (part.devices > 1)
        if device_type != "cpu"
        else ""
    )
    workers = f" x {part.workers}" if part.workers > 1 else ""
    inside = line(" ", part.marks, workers, f" of {part.each}" if part.each > 1 else "", " ")
    title = (part.title or "idle") + numbers
    return Frame(max(width_of(inside), (width_of(title) + 2) * titled), title, inside)


def _types(strip: Strip, starts: Sequence[int]) -> Line:
    made = Line()
    for place, device_type in enumerate(strip.types):
        made = padded(made, starts[place] + 2) if place or device_type == "cpu" else made
        made = line(made, device_type if place or device_type == "cpu" else "")
    return made


def _wrapped(strip: Strip, width: int, borders: bool) -> list[Line]:
    """Nodes with more different cells than a line holds: their frames go on below."""
    room, rows, names = _room(strip, width), list[tuple[Block]](), list[Nodes]()
    for row in strip.rows:
        frames = [
            _narrowed(frame, room)
            for parts, each in zip(row.blocks, strip.types, strict=True)
            for frame in _frames(parts, each, borders)
        ]
        for number, block in enumerate(_broken(frames, room)):
            rows.append((block,))
            names.append(Nodes("", "", ()) if number else row)
    alone = Strip(strip.types[:1], tuple(names))
    return _labelled(alone, boxed(rows, [0], borders), _types(alone, [0]), borders)


def _narrowed(frame: Frame, room: int) -> Frame:
    return Frame(min(frame.width, room - 2), frame.title, frame.inside)


def _broken(frames: Sequence[Frame], room: int) -> list[Block]:
    made: list[list[Frame]] = [[]]
    for frame in frames:
        if made[-1] and sum(each.width + 1 for each in made[-1]) + frame.width + 2 > room:
            made.append([])
        made[-1].append(frame)
    if len(made) > WRAPS:
        left, made = sum(map(len, made[WRAPS:])), made[:WRAPS]
        most = len(f" … {len(frames)} more ")
        while sum(each.width + 1 for each in made[-1]) + most + 2 > room:
            made[-1].pop()
            left += 1
        made[-1].append(Frame(most, "", line(f" … {left} more")))
    return [tuple(block) for block in made]
