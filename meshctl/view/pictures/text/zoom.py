"""One part of a plan as text: a component, a dim, a node or a rank, which may be longer than a screen.

train:3  rank 3 of 6, job rank 11 of 18
  node 1, local rank 3, cuda 3 of its node (11 of all)

E actor  fsdp 1 of 3, tp 1 of 2
  data rank 1 of 3, led by rank 2
  dim   index  ranks  nodes
  fsdp      1  1 3 5  inside
  tp        1  2 3    inside

receives
  scored -> metrics  from judge 0 1 2  samples 171-341 (171)  shared memory
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from meshctl.dataclass import dataclass
from meshctl.plan.views.rank import Peers, RankInMesh, RankRoute, RankStage, RankZoom
from meshctl.plan.views.selection import ComponentZoom, DimOfComponent, DimZoom, NodeZoom, Process, Zoom
from meshctl.plan.views.topology import Topology
from meshctl.topology.flows import Ranks
from meshctl.topology.memory import Memory
from meshctl.view.formatting import count
from meshctl.view.pictures import OVER, transports_of
from meshctl.view.pictures.text import memory
from meshctl.view.pictures.text.grid import grid, sentence
from meshctl.view.pictures.text.groups import Groups, bubble_of, facts
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.picture import MIN_WIDTH
from meshctl.view.pictures.text.pipeline import SHORT, Pipeline, in_full
from meshctl.view.pictures.text.placement import in_boxes, nodes_label
from meshctl.view.pictures.text.styled import (
    ELLIPSIS,
    Column,
    Line,
    columns,
    cut,
    printed,
    styled,
    wants,
    words_of,
    wrapped,
)

MAX_GRID_ROWS = 32
MAX_RANKS_IN_A_ROW = 4
"""Longer runs of ranks are written as the first and the last: 0-5."""
GROUP_NAME = 24
"""Maximum width of the name of a group in columns."""
UNCOUNTED = (
    "some of: the recipe does not give the number of samples; --samples N shows who takes part in a batch "
    "of N"
)
PEERS = (Column(), Column(right=True), Column(least=12, shorten=Line.by_words), Column(spare=1))
STAGES = (Column(least=8), Column(), Column(), Column(least=10))
ROUTES = (Column(least=12), Column(least=12, shorten=Line.by_words), Column(least=8), Column())


def draw(zoom: Zoom, topology: Topology, width: int = 80, color: bool = False) -> str:
    """Returns the picture of one component, dim, node or rank as text. It ends with a newline."""
    sheet = Sheet(Marks(topology), max(width, MIN_WIDTH))
    match zoom:
        case ComponentZoom():
            drawn = _component(sheet, zoom)
        case DimZoom():
            drawn = [Line(styled(zoom.dim, "bold"), f"  in {count(len(zoom.components), 'component')}")]
            for along in zoom.components:
                heading = Line(sheet.name(along.component), "  in group ", styled(along.group, "bold"))
                drawn += [Line(), heading, *_one_by_one(along, sheet.width)]
        case NodeZoom():
            drawn = _node(sheet, zoom)
        case RankZoom():
            name = styled(f"{zoom.group}:{zoom.rank}", "bold")
            place = f"rank {zoom.rank} of {zoom.workers}, job rank {zoom.job_rank} of {zoom.job_size}"
            made = [Line(name, "  ", place), *sheet.folded(", ".join(_location(zoom)))]
            for mesh in zoom.components:
                made += [Line(), *_in_mesh(sheet, zoom.rank, mesh)]
            made += headed("stages", _stages(sheet, zoom.stages))
            made += headed(
                "receives", _routes(sheet, [route for route in zoom.routes if not route.is_producer])
            )
            made += headed("sends", _routes(sheet, [route for route in zoom.routes if route.is_producer]))
            if any(route.some and not route.total for route in zoom.routes):
                made += [Line(), *sheet.folded(UNCOUNTED, style="faint")]
            drawn = made
    return printed([each.clip(width) for each in drawn], color)


@dataclass(frozen=True)
class Sheet:
    """The names and letters of the whole topology, which every zoom shows, and the width of the picture."""

    marks: Marks
    width: int

    def name(self, component: str) -> Line:
        return Line(self.marks.letter(component), " ", self.marks.name(component))

    def folded(self, text: str, indent: int = 2, style: str = "") -> list[Line]:
        """Returns the text, indented, on as many lines as it needs."""
        return [Line(" " * indent, each) for each in wrapped(words_of(text, style), self.width - indent, " ")]


def headed(heading: str, body: Sequence[Line]) -> list[Line]:
    """Returns a section with its heading, or nothing if `body` has no lines."""
    return [Line(), Line(styled(heading, "bold")), *body] if body else []


def titles(*words: str) -> list[Line]:
    return [Line(styled(word, "faint")) for word in words]


def ranks_of(ranks: Ranks) -> str:
    """Returns ranks as text: `0 8 16`, `0-5`, or `0 8 16 24 … 504`."""
    if ranks.count > MAX_RANKS_IN_A_ROW and ranks.stride == 1:
        return f"{ranks.first[0]}-{ranks.last}"
    named = " ".join(map(str, ranks.first))
    return named if ranks.is_whole else f"{named} {ELLIPSIS} {ranks.last}"


def run_of(numbers: Sequence[int]) -> str:
    """Returns numbers as text: `3`, `0-3` if they are consecutive, otherwise `0,2`."""
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))


# A component


def _component(sheet: Sheet, zoom: ComponentZoom) -> list[Line]:
    component, nodes = zoom.component, Groups(sheet.marks, sheet.width).nodes(zoom.group)
    group = Line(styled(component.group, "bold"), ", ", facts(zoom.group))
    made = [
        Line(sheet.name(component.name), "  in group ", group),
        *sheet.folded(", ".join(_facts(zoom))),
    ]
    whole = sheet.marks.topology.memory
    own = Memory(tuple(one for one in whole.components if one.component == component.name))
    if own.components:
        made += headed(memory.HEADING, memory.in_full(own, sheet.marks, sheet.width))
    drawn = grid(component.mesh, nodes, sheet.width - 2, MAX_GRID_ROWS)
    made += headed("mesh", [*(Line("  ", each) for each in drawn), *_views(zoom)])
    for along in zoom.process_groups:
        made += headed(f"process groups along {along.facts.dim}", _one_by_one(along, sheet.width))
    names = {stage.name for stage in zoom.stages}
    names |= {name for route in zoom.routes for name in (route.source, route.target)}
    stages = [stage for stage in sheet.marks.topology.stages if stage.name in names]
    return made + headed("in the pipeline", in_full(Pipeline(sheet.marks, stages, zoom.routes), sheet.width))


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
        yield f"vpp {component.mesh.vpp_size}: {component.mesh.vpp_size} pipeline stages per pp rank"
    yield from (line.text for line in bubble_of(component.mesh))
    if zoom.same_processes:
        yield f"in the same processes as {', '.join(zoom.same_processes)}"


def _views(zoom: ComponentZoom) -> Iterator[Line]:
    """Yields a line with the dims of size 1, and for each view a line with its dims and their sizes."""
    ones = [dim.name for dim in zoom.dims if dim.size == 1 and not dim.view]
    if ones:
        yield Line(styled(f"  of size 1: {', '.join(ones)}", "faint"))
    for view in dict.fromkeys(dim.view for dim in zoom.dims if dim.view):
        factors = [f"{dim.name} {dim.size}" for dim in zoom.dims if dim.view == view]
        yield Line(f"  view {view}: {' x '.join(factors)}")


# A dim


def _one_by_one(along: DimOfComponent, width: int) -> list[Line]:
    """Returns a sentence about the process groups along a dim. If there are several, a row for each of them
    follows: its number, the common indices of its ranks in the other dims, and the ranks."""
    made = [Line("  ", sentence(along.facts, width * 2))]
    if len(along.groups) < 2:
        return made
    dims = list(along.groups[0].at)
    rows, before = [titles("  #", *dims, "ranks", "")], -1
    for group in along.groups:
        if group.number > before + 1:
            rows.append([Line(f"  {ELLIPSIS}")])
        crosses = "cross" if group.crosses and along.facts.reach == "some" else ""
        cells = (f"  {group.number}", *map(str, group.at.values()), ranks_of(group.ranks))
        rows.append([*map(Line, cells), Line(styled(crosses, "faint"))])
        before = group.number
    numbers = [Column(right=True)] * (len(dims) + 1)
    shape = (*numbers, Column(least=12, gap=3, shorten=Line.by_words), Column(spare=1))
    return made + columns(rows, shape, width)


# A node


def _node(sheet: Sheet, zoom: NodeZoom) -> list[Line]:
    alike = sum(stop - start for start, stop in zoom.alike)
    like = f", like {nodes_label(zoom.alike)}" if alike > 1 else ""
    whole = sheet.marks.topology
    pool = "".join(f", pool {name}" for name in whole.cluster.pools_on(((zoom.node, zoom.node + 1),)))
    made = [Line(styled(f"node {zoom.node}", "bold"), f"  of {zoom.nodes}{pool}", like)]
    kind = next(kind for kind in whole.nodes if kind.nodes == zoom.alike)
    alone = replace(whole, nodes=(replace(kind, nodes=((zoom.node, zoom.node + 1),)),))
    made += headed("placement", in_boxes(alone, sheet.marks, sheet.width))
    for group, processes in zoom.counts.items():
        listed = [process for process in zoom.processes if process.group == group]
        left = processes - len(listed)
        more = [Line(styled(f"  ... and {left} more", "faint"))] if left else []
        made += headed(f"{group}: {count(processes, 'worker')}", [*_workers(sheet, zoom, listed), *more])
    return made


def _workers(sheet: Sheet, zoom: NodeZoom, processes: Sequence[Process]) -> list[Line]:
    group = sheet.marks.groups[processes[0].group]
    first = zoom.first_devices.get(group.device_type, 0)
    words = ["rank", "job rank", "local rank"]
    words += [group.device_type] * bool(group.devices) + ["of all"] * (zoom.nodes > 1 and group.devices > 0)
    names = [sheet.name(name) for name in group.components]
    rows = [(Line("  "), *titles(*words), *names)]
    for process in processes:
        in_cluster = [first + device for device in process.devices]
        numbers = [str(process.rank), str(process.job_rank), str(process.local_rank)]
        numbers += [run_of(process.devices), run_of(in_cluster)][: len(words) - 3]
        indices = [
            " ".join(f"{dim} {index}" for dim, index in process.coordinates[name].items()) or "alone"
            for name in group.components
        ]
        rows.append((Line("  "), *map(Line, numbers), *map(Line, indices)))
    numbered = [Column(right=True, gap=2 * bool(number)) for number in range(len(words))]
    coordinates = [Column(gap=3, spare=number) for number in range(1, len(names) + 1)]
    return columns(rows, (Column(), *numbered, *coordinates), sheet.width)


# A rank


def _location(zoom: RankZoom) -> Iterator[str]:
    yield f"node {zoom.node}, local rank {zoom.local_rank}"
    if zoom.numbers:
        of_all = f" ({run_of(zoom.devices)} of all)" if zoom.devices != zoom.numbers else ""
        yield f"{zoom.device_type} {run_of(zoom.numbers)} of its node{of_all}"
    else:
        yield f"on {zoom.device_type}"
    if zoom.visible_devices:
        yield f"visible devices {','.join(zoom.visible_devices)}"
    if zoom.program:
        yield f"program {zoom.program}"
    if zoom.python:
        yield f"python {zoom.python}"


def _in_mesh(sheet: Sheet, rank: int, seen: RankInMesh) -> list[Line]:
    mesh = sheet.marks.components[seen.component].mesh
    at = {**seen.coordinate, **seen.views}
    words = [
        f"{dim} {index} of {mesh.size(dim)}"
        for dim, index in at.items()
        if mesh.size(dim) > 1 and dim != "data"
    ]
    name = sheet.name(seen.component)
    indent = name.width + 2
    cells = [Line(word, ",") for word in words[:-1]] + [Line(word) for word in words[-1:] or ["alone"]]
    first, *rest = wrapped(cells, sheet.width - indent, " ")
    made = [Line(name, "  ", first), *(Line(" " * indent, each) for each in rest)]
    if mesh.world_size > 1:
        leader = "the leader" if seen.is_leader else f"led by rank {mesh.representative(seen.data_rank)}"
        made += sheet.folded(f"data rank {seen.data_rank} of {seen.data_size}, {leader}")
    if seen.peers:
        rows = [titles("  dim", "index", "ranks", "nodes"), *(_peers(rank, peers) for peers in seen.peers)]
        made += columns(rows, PEERS, sheet.width)
    for dim in seen.neighbours:
        ends = ((dim.before, "before"), (dim.after, "after"))
        words = [f"rank {rank} {word}" if rank is not None else f"none {word}" for rank, word in ends]
        made.append(Line("  ", styled(dim.dim, "bold"), " ring" * dim.ring, f": {', '.join(words)}"))
    if seen.of_pp_stages > 1:
        held, plural = ", ".join(map(str, seen.pp_stages)), "s" * (len(seen.pp_stages) > 1)
        made += sheet.folded(f"pipeline stage{plural} {held} of {seen.of_pp_stages}")
    return made


def _peers(rank: int, peers: Peers) -> tuple[Line, ...]:
    named = [
        styled(f" {each}" if number else each, "bold" if each == str(rank) else "")
        for number, each in enumerate(ranks_of(peers.ranks).split(" "))
    ]
    reach = Line("cross" if peers.crosses else "inside")
    return Line("  ", styled(peers.dim, "bold")), Line(str(peers.index)), Line(*named), reach


def _stages(sheet: Sheet, stages: Sequence[RankStage]) -> list[Line]:
    rows = []
    for stage in stages:
        share = f"share {stage.share} of {stage.shares}" if stage.share is not None else ""
        words = share or ("" if stage.called else "not called")
        samples = _samples(stage.samples, stage.count, stage.total)
        name, letter = Line("  ", styled(stage.stage, "bold")), sheet.marks.letter(stage.component)
        rows.append((name, Line(letter), Line(words), Line(samples)))
    return _noted(sheet, columns(rows, STAGES, sheet.width), [stage.note for stage in stages])


def _samples(span: tuple[int, int] | None, amount: int | None, total: int) -> str:
    """Returns `samples 171-341 (171 of 512)`. If `span` is None, returns `171 of 512 samples`; if `amount` is
    also None, returns `some of 512 samples`."""
    of = f" of {total}" if total else ""
    if span is not None:
        numbers = range(*span)
        plural = "s" * (len(numbers) > 1)
        return f"sample{plural} {run_of(numbers)} ({len(numbers)}{of})" if numbers else f"none{of} samples"
    if amount is not None:
        return f"{amount}{of} samples"
    return f"some{of} samples" if total else ""


def _noted(sheet: Sheet, drawn: Sequence[Line], notes: Sequence[str]) -> list[Line]:
    return [
        each
        for row, note in zip(drawn, notes, strict=True)
        for each in (row, *sheet.folded(note, indent=6, style="faint"))
    ]


def _routes(sheet: Sheet, routes: Sequence[RankRoute]) -> list[Line]:
    """Returns the exchanges, with their distances in a column, or in the notes where the column does not
    fit."""
    for words in (OVER, SHORT):
        blocks = [list(_exchanges(route, words)) for route in routes]
        rows = [row for block in blocks for row in block]
        fits = wants(rows, ROUTES) <= sheet.width
        if fits:
            break
    notes = list[str]()
    for route, block in zip(routes, blocks, strict=True):
        notes += [""] * (len(block) - 1) + ["; ".join(_remarks(route, distances=not fits))]
    return _noted(sheet, columns(rows, ROUTES if fits else ROUTES[:-1], sheet.width), notes)


def _exchanges(route: RankRoute, words: Mapping[str, str]) -> Iterator[tuple[Line, ...]]:
    direction = ("to" if route.is_producer else "from") + " some of" * route.some
    name = Line("  ", styled(route.route, "bold"))
    left = route.partners - len(route.exchanges)
    for number, exchange in enumerate(route.exchanges):
        if left and number == len(route.exchanges) - 1:
            yield Line(), Line(f"{ELLIPSIS} {left} more"), Line(), Line()
        ranks = Line(f"{direction} {cut(route.other_group, GROUP_NAME)} {ranks_of(exchange.ranks)}")
        distance = Line(styled(transports_of(exchange, words), "faint"))
        yield Line() if number else name, ranks, Line(_samples(exchange.samples, None, 0)), distance
    if not route.exchanges:
        yield name, Line(f"{direction} no rank"), Line(), Line()


def _remarks(route: RankRoute, distances: bool) -> Iterator[str]:
    if route.count is not None:
        yield f"{route.count} of {route.total} samples"
    if route.leader is not None:
        yield f"{route.other_group} {route.leader} sends the table of samples"
    if route.note:
        yield route.note
    if distances and route.exchanges:
        yield " and ".join(dict.fromkeys(map(transports_of, route.exchanges)))
