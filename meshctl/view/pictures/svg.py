"""The topology as a picture: one SVG that stands alone, for a README, a ticket or a slide.

Top to bottom: what it is, warnings, the placement (nodes that look alike once, as the first of them is), the
components with their process groups and the corner of their meshes, the pipeline. It follows the light or
dark of who looks at it, needs no font, and is bounded: beyond some number of anything it says how many more
there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from meshctl.plan.views.topology import NodeKind, PlacedComponent, PlacedGroup, ProcessGroups, Topology
from meshctl.topology.mesh import DeviceMesh
from meshctl.view.formatting import count
from meshctl.view.pictures.drawn.colours import HUES, marks_of, tokens
from meshctl.view.pictures.drawn.pipeline import pipeline
from meshctl.view.pictures.drawn.shapes import Picture, columns, escaped, style

WIDTH = 1140.0
MARGIN = 28.0
TILE = 44.0
TALL = 40.0
SPACE = 4.0
WARNINGS, GROUPS, KINDS, COMPONENTS, LEVELS, ROWS = 8, 16, 12, 16, 4, 8
"""What is drawn at most; ROWS of tiles on a node."""
ACROSS, DOWN, BLOCKS = 8, 4, 2
"""Of a mesh: ranks side by side, rows, and how often that for the dims outside."""
REACH = {"inside": "inside a node", "some": "some cross nodes", "all": "crosses nodes"}


def draw(topology: Topology) -> str:
    """The whole picture."""
    picture = Picture()
    y = _head(picture, topology)
    y = _warnings(picture, topology, y)
    y = _placement(picture, topology, _title(picture, "Placement", y))
    if topology.components:
        y = _components(picture, topology, _title(picture, "Components", y))
    if topology.stages:
        drawn = pipeline(topology, room=WIDTH - 2 * MARGIN)
        picture.add(drawn, MARGIN, _title(picture, "Pipeline", y))
    return _document(topology, picture)


def _document(topology: Topology, picture: Picture) -> str:
    width, height = max(WIDTH, picture.width + MARGIN), picture.height + MARGIN
    names = tokens()
    dark = "".join(f"  {rule}\n" for rule in style(lambda name: names[name].dark).splitlines() if "#" in rule)
    css = style(lambda name: names[name].light) + f"@media (prefers-color-scheme: dark) {{\n{dark}}}\n"
    size = f'width="{width:g}" height="{height:g}"'
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="t d">
<title id="t">{escaped(topology.name)}</title>
<desc id="d">{escaped(_said(topology))}</desc>
<style>
{css}</style>
<rect class="page" {size}/>
{picture.markup}
</svg>
"""


def _said(topology: Topology) -> str:
    """The picture in words."""
    groups = "; ".join(
        f"{group.name}: {count(group.workers, 'worker')} on {group.device_type}"
        for group in topology.groups[:GROUPS]
    )
    meshes = "; ".join(
        f"{each.name} on {each.group}: {each.layout}" for each in topology.components[:COMPONENTS]
    )
    routes = "; ".join(
        f"{flow.name}: {flow.speakers} to {flow.hearers}" for flow in topology.routes[:COMPONENTS]
    )
    return (
        f"{_facts(topology)}. Groups: {groups}. Components: {meshes or 'none'}. Routes: {routes or 'none'}."
    )


def _facts(topology: Topology) -> str:
    nodes = max((stop for kind in topology.nodes for _, stop in kind.nodes), default=1)
    said = [
        f"{topology.workers:,} {'worker' if topology.workers == 1 else 'workers'} in {count(len(topology.groups), 'group')}"
    ]
    said += [
        f"{nodes:,} {'node' if nodes == 1 else 'nodes'}",
        *([f"{topology.idle:,} idle"] if topology.idle else []),
    ]
    return " · ".join(said)


# The head


def _head(picture: Picture, topology: Topology) -> float:
    picture.text(MARGIN, 48, topology.name, "t b xl", WIDTH - 2 * MARGIN)
    picture.text(MARGIN, 70, f"{_facts(topology)} · plan {topology.digest}", "m")
    return 88


def _title(picture: Picture, text: str, y: float) -> float:
    picture.text(MARGIN, y + 28, text, "t b l")
    return y + 42


def _warnings(picture: Picture, topology: Topology, y: float) -> float:
    shown = topology.warnings[:WARNINGS]
    left = len(topology.warnings) - len(shown)
    if not shown:
        return y
    lines = len(shown) + bool(left)
    picture.rect(MARGIN, y, WIDTH - 2 * MARGIN, 18 * lines + 14, "warning", 8)
    for number, warning in enumerate(shown):
        picture.text(MARGIN + 12, y + 20 + 18 * number, warning.code, "w b")
        picture.text(
            MARGIN + 70, y + 20 + 18 * number, warning.message.replace("`", ""), "t", WIDTH - 2 * MARGIN - 90
        )
    if left:
        picture.text(MARGIN + 12, y + 20 + 18 * len(shown), f"and {left} more", "m")
    return y + 18 * lines + 14


# The placement


def _placement(picture: Picture, topology: Topology, y: float) -> float:
    y = _legend(picture, topology, y)
    x, tallest = MARGIN, 0.0
    for kind in topology.nodes[:KINDS]:
        node = _node(topology, kind)
        if x > MARGIN and x + node.width > WIDTH - MARGIN:
            x, y, tallest = MARGIN, y + tallest + 12, 0.0
        picture.add(node, x, y)
        x, tallest = x + node.width + 12, max(tallest, node.height)
    y += tallest
    if (left := len(topology.nodes) - KINDS) > 0:
        picture.text(MARGIN, y + 22, f"and {count(left, 'more kind')} of nodes", "m")
        y += 30
    return y


def _legend(picture: Picture, topology: Topology, y: float) -> float:
    """A line for each group: who is in it, how large it is, where."""
    room = min(240.0, max((7.7 * len(group.name) for group in topology.groups[:GROUPS]), default=0) + 20)
    for group in topology.groups[:GROUPS]:
        picture.text(MARGIN, y + 14, group.name, "t b mono", room - 10)
        x = _members(picture, topology, group, MARGIN + room, y)
        where = f"{group.workers:,} on {group.device_type}, {group.nodes:,} {'node' if group.nodes == 1 else 'nodes'}"
        each = f", {group.gpus_per_worker} devices each" if group.gpus_per_worker > 1 else ""
        shared = f", on the devices of {group.colocate}" if group.colocate else ""
        picture.text(x + 6, y + 14, where + each + shared, "m", max(160.0, WIDTH - MARGIN - x))
        y += 25
    if (left := len(topology.groups) - GROUPS) > 0:
        picture.text(MARGIN, y + 14, f"and {count(left, 'more group')}", "m")
        y += 25
    return y + 8


def _members(picture: Picture, topology: Topology, group: PlacedGroup, x: float, y: float) -> float:
    """Its components with their letters, or its program, as far as there is room; returns where they end."""
    most = WIDTH - 380
    members = marks_of(topology, group)
    for number, (hue, letter, name) in enumerate(members):
        if number and x + 7.7 * len(name) + 40 > most:
            picture.text(x, y + 14, f"+{len(members) - number}", "m")
            return x + 40
        x += picture.chip(x, y, letter, hue) + 6
        picture.text(x, y + 14, name, "t" if group.components else "t mono", most - x)
        x += min(most - x, 7.7 * len(name)) + 10
    return x


@dataclass(frozen=True)
class Tile:
    """A worker on a node."""

    group: PlacedGroup
    rank: int
    device: int
    """The first, on the node; -1 on cpu."""


def workers_on(group: PlacedGroup, node: int) -> Iterator[Tile]:
    """The workers of a group on a node, by rank."""
    for stretch in group.stretches:
        if 0 <= (along := node - stretch.first_node) < stretch.ranks // stretch.each:
            for local in range(stretch.each):
                device = (
                    -1 if stretch.first_device < 0 else stretch.first_device + local * group.gpus_per_worker
                )
                yield Tile(group, stretch.first_rank + along * stretch.each + local, device)


def _node(topology: Topology, kind: NodeKind) -> Picture:
    """One node for all that look like it."""
    nodes = sum(stop - start for start, stop in kind.nodes)
    first = kind.nodes[0][0]
    names = {name for cell in kind.cells for name in cell.groups} | {name for name, _ in kind.processes}
    tiles = [tile for group in topology.groups if group.name in names for tile in workers_on(group, first)]
    inside, y = Picture(), 48.0 if nodes > 1 else 30.0
    for device_type in dict.fromkeys(cell.device_type for cell in kind.cells):
        y = _devices(inside, topology, kind, device_type, tiles, y)
    if cpu := [tile for tile in tiles if tile.device < 0]:
        y = _processes(inside, topology, cpu, y)
    node = Picture()
    title = f"node {first:,}" if nodes == 1 else f"nodes {_runs(kind.nodes)}"
    width = max(inside.width + 12, 12 + 7.7 * len(title) + 12, 170)
    node.rect(0, 0, width, max(y, 40) + 6, "box", 8)
    node.text(12, 20, title, "t b")
    if nodes > 1:
        node.text(12, 37, f"{nodes:,} alike, this is {first:,}", "m s")
    node.raw(inside.markup)
    return node


def _runs(runs: Sequence[tuple[int, int]]) -> str:
    shown = [f"{start:,}" if stop - start == 1 else f"{start:,}–{stop - 1:,}" for start, stop in runs[:3]]
    return ", ".join(shown) + (", …" if len(runs) > 3 else "")


def _devices(
    picture: Picture, topology: Topology, kind: NodeKind, device_type: str, tiles: Sequence[Tile], y: float
) -> float:
    """The devices of one type, eight in a row, colocated groups one under the other; returns where they end."""
    cells = [cell for cell in kind.cells if cell.device_type == device_type]
    total = max(cell.devices[1] for cell in cells)
    mine = [tile for tile in tiles if tile.device >= 0 and tile.group.device_type == device_type]
    torn = any(
        tile.device // ACROSS != (tile.device + tile.group.gpus_per_worker - 1) // ACROSS for tile in mine
    )
    wide = total if torn else ACROSS
    picture.text(12, y + 10, device_type, "m s")
    y += 16
    for start in range(0, min(total, wide * ROWS), wide):
        row = range(start, min(total, start + wide))
        levels = _levels([cell.groups for cell in cells])
        high = 0
        for tile in (tile for tile in mine if tile.device in row and levels[tile.group.name] < LEVELS):
            level = levels[tile.group.name]
            _tile(
                picture,
                topology,
                tile,
                12 + (tile.device - start) * (TILE + SPACE),
                y + level * (TALL + SPACE),
            )
            high = max(high, level)
        for cell in cells:
            low, stop = max(cell.devices[0], start), min(cell.devices[1], row.stop)
            if not cell.groups and low < stop:
                x, width = 12 + (low - start) * (TILE + SPACE), (stop - low) * (TILE + SPACE) - SPACE
                picture.rect(x + 0.5, y + 0.5, width - 1, TALL - 1, "free", 6)
                picture.text(x + width / 2, y + TALL / 2 + 4, "idle", "m s mid")
        y += (high + 1) * (TALL + SPACE)
    return _more(picture, total - wide * ROWS, device_type, y)


def _levels(cells: Sequence[tuple[str, ...]]) -> dict[str, int]:
    levels: dict[str, int] = {}
    for groups in cells:
        for level, name in enumerate(groups):
            levels[name] = max(level, levels.get(name, 0))
    return levels


def _processes(picture: Picture, topology: Topology, tiles: Sequence[Tile], y: float) -> float:
    picture.text(12, y + 10, "cpu processes", "m s")
    y += 16
    shown = tiles[: ACROSS * ROWS]
    for number, tile in enumerate(shown):
        row, column = divmod(number, ACROSS)
        _tile(picture, topology, tile, 12 + column * (TILE + SPACE), y + row * (TALL + SPACE))
    return _more(picture, len(tiles) - len(shown), "process", y + -(-len(shown) // ACROSS) * (TALL + SPACE))


def _more(picture: Picture, left: int, what: str, y: float) -> float:
    if left <= 0:
        return y + 4
    picture.text(12, y + 12, f"and {left:,} more ({what})", "m s")
    return y + 22


def _tile(picture: Picture, topology: Topology, tile: Tile, x: float, y: float) -> None:
    """A worker: its rank over the letters of its components, each on its colour."""
    width = tile.group.gpus_per_worker * (TILE + SPACE) - SPACE if tile.device >= 0 else TILE
    picture.rect(x, y, width, TALL, "box", 6)
    picture.text(x + width / 2, y + 15, str(tile.rank), "t b mid s" if tile.rank > 9999 else "t b mid")
    members = marks_of(topology, tile.group)
    fits = max(1, int(width // 14))
    shown = members if len(members) <= fits else members[: fits - 1]
    labels = [(f"f{hue % len(HUES)}", f"i{hue % len(HUES)}", letter) for hue, letter, _ in shown]
    if len(shown) < len(members):
        labels.append(("cell", "m", f"+{len(members) - len(shown)}"))
    each = (width - 2) / len(labels)
    for number, (fill, ink, text) in enumerate(labels):
        picture.rect(x + 1 + number * each, y + 21, each, TALL - 22, fill)
        picture.text(x + 1 + (number + 0.5) * each, y + 34, text, f"{ink} s b mid")


# The components


def _components(picture: Picture, topology: Topology, y: float) -> float:
    """Two cards side by side."""
    shown = topology.components[:COMPONENTS]
    wide = (WIDTH - 2 * MARGIN - 12) / 2
    for left in range(0, len(shown), 2):
        cards = [_card(component, left + at, wide) for at, component in enumerate(shown[left : left + 2])]
        height = max(card.height for card in cards)
        for at, card in enumerate(cards):
            x = MARGIN + at * (wide + 12)
            picture.rect(x, y, wide, height + 8, "box", 8)
            picture.add(card, x, y)
        y += height + 20
    if (rest := len(topology.components) - len(shown)) > 0:
        picture.text(MARGIN, y + 10, f"and {count(rest, 'more component')}", "m")
        y += 22
    return y - 8


def _card(component: PlacedComponent, number: int, wide: float) -> Picture:
    card = Picture()
    x = 14 + card.chip(14, 11, component.letter, number) + 8
    group = f"on {component.group}" + (", frozen" if component.frozen else "")
    card.text(x, 25, component.name, "t b", wide / 2 - x)
    card.text(wide - 14, 25, group, "m s end", wide / 2 - 20)
    card.text(14, 46, component.layout, "t", wide - 28)
    y = 64.0
    for groups in component.process_groups:
        _process_groups(card, groups, y, wide)
        y += 17
    return _mesh(card, component.mesh, y, wide)


def _process_groups(card: Picture, groups: ProcessGroups, y: float, wide: float) -> None:
    stride = "uneven" if groups.stride is None else f"stride {groups.stride:,}"
    card.text(14, y, groups.dim, "t b s", 56)
    card.text(72, y, f"{groups.count:,} × {groups.size:,}", "t s", 100)
    card.text(176, y, stride, "m s", 96)
    card.text(276, y, _example(groups, columns(wide - 276 - 124, "s")), "m s mono")
    card.text(wide - 14, y, REACH[groups.reach], "m s end", 110)


def _example(groups: ProcessGroups, letters: int) -> str:
    """As many of its ranks as there is room for."""
    text = ""
    for number, rank in enumerate(groups.example):
        end = "" if number == groups.size - 1 else " …"
        if len(f"{text} {rank}{end}") > letters:
            break
        text = f"{text} {rank}".strip()
    return text if text.count(" ") == groups.size - 1 else f"{text} …"


def _mesh(card: Picture, mesh: DeviceMesh, y: float, wide: float) -> Picture:
    """The corner of the mesh: rows and columns are its two last dims, and that again for the dims outside of
    them."""
    dims = [dim for dim in mesh.mesh_dim_names if mesh.size(dim) > 1]
    if len(dims) < 2:
        return card
    *outer, rows, columns = dims
    across, down, blocks = mesh.size(columns), mesh.size(rows), prod(map(mesh.size, outer))
    cell = 12 + 6.8 * len(str(mesh.world_size - 1))
    width = 50 + min(across, ACROSS) * cell + (30 if across > ACROSS else 16)
    fits = max(1, min(BLOCKS, int((wide - 14) / width)))
    y += 14 * bool(outer)
    for block in range(min(blocks, fits)):
        left, indices = block, list[int]()
        for dim in reversed(outer):
            left, index = divmod(left, mesh.size(dim))
            indices.insert(0, index)
        at = dict(zip(outer, indices, strict=True))
        x = 14 + block * width
        words = ", ".join(f"{dim} {index}" for dim, index in at.items())
        if block == fits - 1 and blocks > fits:
            words += f", and {blocks - fits:,} more"
        card.text(x, y, words, "m s", wide - 14 - x)
        _block(card, mesh, at, (rows, columns), (x, y + 16), cell)
    card.reach(0, y + 20 + min(down, DOWN) * 18 + (18 if down > DOWN else 0))
    return card


def _block(
    card: Picture,
    mesh: DeviceMesh,
    at: dict[str, int],
    dims: tuple[str, str],
    corner: tuple[float, float],
    cell: float,
) -> None:
    (rows, columns), (x, y) = dims, corner
    across, down = min(mesh.size(columns), ACROSS), min(mesh.size(rows), DOWN)
    for column in range(across):
        card.text(
            x + 50 + (column + 0.5) * cell, y, f"{columns} {column}" if not column else str(column), "m s mid"
        )
    for row in range(down):
        card.text(x, y + 18 * (row + 1), f"{rows} {row}", "m s", 48)
        for column in range(across):
            left, top = x + 50 + column * cell, y + 18 * (row + 1)
            card.rect(left + 1, top - 13, cell - 2, 16, "cell", 3)
            card.text(left + cell / 2, top - 1, str(mesh.rank({**at, rows: row, columns: column})), "t s mid")
    if across < mesh.size(columns):
        card.text(x + 54 + across * cell, y + 18, f"… {mesh.size(columns) - 1:,}", "m s")
    if down < mesh.size(rows):
        card.text(x, y + 18 * (down + 1), f"… {rows} {mesh.size(rows) - 1:,}", "m s")
