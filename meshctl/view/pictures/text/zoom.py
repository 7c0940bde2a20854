"""One part of a plan more closely, as text: a component, a dim, a node or a rank.

What the picture of the whole folds is listed here, as far as the zoom lists it; it may be longer than a
screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from meshctl.plan.views.selection import ComponentZoom, DimOfComponent, DimZoom, NodeZoom, Process, Zoom
from meshctl.plan.views.topology import Topology
from meshctl.view.formatting import count
from meshctl.view.pictures.text.columns import nodes_label, placement
from meshctl.view.pictures.text.flow import Pipeline, in_full
from meshctl.view.pictures.text.grid import grid, sentence
from meshctl.view.pictures.text.groups import Groups
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.rank import of_rank
from meshctl.view.pictures.text.styled import ELLIPSIS, Column, Line, clip, columns, ink, line, printed
from meshctl.view.pictures.text.zoom_base import Sheet, folded, headed, ranks_of, run_of

NARROW = 40
"""Columns below which nothing is drawn narrower; it is clipped."""
ROWS = 32
"""Of a grid, at most."""


def draw(zoom: Zoom, topology: Topology, width: int = 80, colour: bool = False) -> str:
    """The text, with a newline at its end."""
    room = max(width, NARROW)
    sheet = Sheet(topology, Marks(topology), room)
    if isinstance(zoom, ComponentZoom):
        drawn = _component(sheet, zoom)
    elif isinstance(zoom, DimZoom):
        drawn = _dim(sheet, zoom)
    elif isinstance(zoom, NodeZoom):
        drawn = _node(sheet, zoom)
    else:
        drawn = of_rank(sheet, zoom)
    return printed([clip(each, width) for each in drawn], colour)


# A component


def _component(sheet: Sheet, zoom: ComponentZoom) -> list[Line]:
    component, groups = zoom.component, Groups(sheet.topology, sheet.marks)
    made = [
        line(
            sheet.name(component.name),
            "  in group ",
            ink(component.group, "bold"),
            ", ",
            groups.facts(zoom.group),
        ),
        *folded(", ".join(_facts(zoom)), sheet.width),
    ]
    drawn = grid(component.mesh, groups.nodes(zoom.group), sheet.width - 2, ROWS)
    made += headed("mesh", [*(line("  ", each) for each in drawn), *_views(zoom)])
    for along in zoom.process_groups:
        made += headed(
            f"process groups along {along.facts.dim}",
            [line("  ", sentence(along.facts)), *_one_by_one(along, sheet.width)],
        )
    pipeline = Pipeline(sheet.topology, sheet.marks, zoom.routes, zoom.stages)
    return made + (headed("in the pipeline", in_full(pipeline, sheet.width)) if pipeline.shown else [])


def _facts(zoom: ComponentZoom) -> Iterator[str]:
    component = zoom.component
    yield component.target
    yield component.layout
    yield count(component.data_size, "data rank")
    if component.frozen:
        yield "frozen"
    if component.mesh.sequence_parallel:
        yield "sequence parallel"
    if component.mesh.vpp_size > 1:
        yield f"{component.mesh.vpp_size} pipeline stages per pp rank"
    if zoom.beside:
        yield f"in the same processes as {', '.join(zoom.beside)}"


def _views(zoom: ComponentZoom) -> Iterator[Line]:
    """Which dims have size 1, and how the views factor the same ranks."""
    ones = [dim.name for dim in zoom.dims if dim.size == 1 and not dim.view]
    if ones:
        yield line(ink(f"  of size 1: {', '.join(ones)}", "faint"))
    views: dict[str, list[str]] = {}
    for dim in zoom.dims:
        if dim.view:
            views.setdefault(dim.view, []).append(f"{dim.name} {dim.size}")
    for view, words in views.items():
        yield line(f"  view {view}: {' x '.join(words)}")


# Process groups one by one


def _one_by_one(along: DimOfComponent, width: int) -> list[Line]:
    """A row a group: its number, what its ranks have in common, and the ranks."""
    if len(along.groups) < 2:
        return []  # the sentence above says it all
    dims = list(along.groups[0].at)
    heading = [line(ink(word, "faint")) for word in ("  #", *dims, "ranks", "")]
    rows, before = [heading], -1
    for group in along.groups:
        if group.number > before + 1:
            rows.append([line(f"  {ELLIPSIS}")])
        crosses = line(ink("cross", "faint")) if group.crosses and along.facts.reach == "some" else line()
        rows.append(
            [
                line(f"  {group.number}"),
                *(line(str(index)) for index in group.at.values()),
                line(ranks_of(group.ranks)),
                crosses,
            ]
        )
        before = group.number
    shape = [
        Column(right=True),
        *(Column(right=True) for _ in dims),
        Column(least=12, gap=3, words=True),
        Column(spare=1),
    ]
    return columns(rows, shape, width)


def _dim(sheet: Sheet, zoom: DimZoom) -> list[Line]:
    made = [line(ink(zoom.dim, "bold"), f"  in {count(len(zoom.components), 'component')}")]
    for along in zoom.components:
        made += [
            line(),
            line(sheet.name(along.component), "  in group ", ink(along.group, "bold")),
            line("  ", sentence(along.facts)),
            *_one_by_one(along, sheet.width),
        ]
    return made


# A node


def _node(sheet: Sheet, zoom: NodeZoom) -> list[Line]:
    alike = sum(stop - start for start, stop in zoom.alike)
    made = [
        line(
            ink(f"node {zoom.node}", "bold"),
            f"  of {zoom.nodes}",
            f", like {nodes_label(zoom.alike)}" if alike > 1 else "",
        )
    ]
    kind = next(
        kind for kind in sheet.topology.nodes if any(start <= zoom.node < stop for start, stop in kind.nodes)
    )
    alone = replace(sheet.topology, nodes=(replace(kind, nodes=((zoom.node, zoom.node + 1),)),))
    made += headed("placement", placement(alone, sheet.marks, sheet.width))
    for group, processes in zoom.counts.items():
        shown = [process for process in zoom.processes if process.group == group]
        left = processes - len(shown)
        more = [line(ink(f"  ... and {left} more", "faint"))] if left else []
        made += headed(f"{group}: {count(processes, 'worker')}", [*_workers(sheet, zoom, shown), *more])
    return made


def _workers(sheet: Sheet, zoom: NodeZoom, shown: Sequence[Process]) -> list[Line]:
    group = sheet.marks.groups[shown[0].group]
    first = zoom.first_devices.get(group.device_type, 0)
    devices = [group.device_type] * bool(group.devices) + ["of all"] * (zoom.nodes > 1 and group.devices > 0)
    words = ["rank", "place", "local rank", *devices]
    heading = [line(ink(word, "faint")) for word in words] + [sheet.name(name) for name in group.components]
    rows = [[line("  "), *heading]]
    for process in shown:
        said = run_of(process.devices), run_of([first + device for device in process.devices])
        numbers = [str(process.rank), str(process.place), str(process.local_rank), *said[: len(devices)]]
        rows.append(
            [
                line("  "),
                *map(line, numbers),
                *(line(_indices(process.coordinates[name])) for name in group.components),
            ]
        )
    numbered = [Column(right=True, gap=2 * bool(number)) for number in range(len(words))]
    shape = [
        Column(),
        *numbered,
        *(Column(gap=3, spare=number) for number in range(1, len(group.components) + 1)),
    ]
    return columns(rows, shape, sheet.width)


def _indices(coordinate: Mapping[str, int]) -> str:
    return " ".join(f"{dim} {index}" for dim, index in coordinate.items()) or "alone"
