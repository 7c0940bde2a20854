"""The plan as a picture in text: for a terminal, a log, a pull request.

    grpo-arithmetic  10 workers in 3 groups, 1 node, nothing idle

    placement    cuda 0    1    2    3    4    5    6    7    cpu
    groups       the workers of each group, its components, their meshes and process groups
    pipeline     the stages in run order, and their routes
    warnings     of the checks

The number of lines is bounded for jobs of any size: each section has levels of detail, and the most detailed
levels that fit together are chosen. Nothing is wider than the width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

from meshctl.dataclass import dataclass
from meshctl.plan.views.topology import Topology, Warning
from meshctl.view.formatting import count
from meshctl.view.pictures.text import memory, pipeline, placement
from meshctl.view.pictures.text.groups import Groups
from meshctl.view.pictures.text.letters import IDLE, Marks
from meshctl.view.pictures.text.pipeline import Pipeline
from meshctl.view.pictures.text.placement import in_boxes, in_lines
from meshctl.view.pictures.text.styled import Line, printed, styled, words_of, wrapped

MIN_WIDTH = 40
"""Columns; narrower pictures are drawn at this width and clipped."""
GRID_ROWS_COST = {8: 0, 5: 6, 3: 10, 2: 14, 0: 34}
"""Maximum number of rows of a grid -> the cost of the level of detail that has such grids."""


def draw(topology: Topology, width: int = 80, color: bool = False, lines: int = 60) -> str:
    """Returns the picture, with a newline at its end."""
    return printed([each.clip(width) for each in pictured(topology, max(width, MIN_WIDTH), lines)], color)


def pictured(topology: Topology, width: int, lines: int) -> list[Line]:
    marks = Marks(topology)
    sections = list(_sections(topology, marks, width))
    return fitted(title(topology, width), sections, partial(legend, marks, width), lines)


def title(topology: Topology, width: int) -> Line:
    """Returns the name, the sizes, and the plan's digest if there is space."""
    groups = f" in {count(len(topology.groups), 'group')}" if len(topology.groups) > 1 else ""
    idle = f", {count(topology.idle, 'device')} idle" if topology.idle else ""
    workers, nodes = count(topology.workers, "worker"), count(topology.cluster.nodes, "node")
    full, short = (
        Line(styled(topology.name, "bold"), "  ", f"{workers}{also} on {nodes}{idle}")
        for also in (groups, "")
    )
    digest = Line(styled(f"plan {topology.digest}", "faint"))
    space = width - digest.width
    if topology.digest and full.width + 2 <= space:
        return Line(full.padded(space), digest)
    return full if full.width <= width else short.fit(width)


def _sections(topology: Topology, marks: Marks, width: int) -> Iterator[Section]:
    levels: tuple[Level, ...]
    if topology.nodes:
        pools, least = placement.cluster_lines(topology.cluster, width), 2 * len(topology.nodes)
        boxes, lines = (partial(each, topology, marks, width) for each in (in_boxes, in_lines))
        levels = (Level(0, lambda: [*pools, *boxes()], least), Level(50, lambda: [*pools, *lines()]))
        yield Section(
            "placement", levels, lambda left: f"... and {count(left, 'more line')} of other nodes: --node N"
        )
    groups, least = Groups(marks, width), len(topology.groups) + len(topology.components)
    grids = [Level(cost, partial(groups.with_meshes, rows), least) for rows, cost in GRID_ROWS_COST.items()]
    levels = (*grids, Level(80, groups.in_lines))
    yield Section("groups", levels, lambda left: f"... and {left} more: --component NAME")
    if (shown := topology.memory).components:
        full = Level(0, partial(memory.in_full, shown, marks, width), len(shown.components))
        levels = (full, Level(20, partial(memory.in_lines, shown, marks)))
        yield Section(
            memory.HEADING, levels, lambda left: f"... and {count(left, 'more line')}: --format json"
        )
    if topology.stages:
        flow, least = Pipeline(marks, topology.stages, topology.routes), len(topology.stages)
        full = Level(0, partial(pipeline.in_full, flow, width), least + len(topology.routes))
        levels = (full, Level(90, partial(pipeline.in_lines, flow, width)))
        yield Section(
            "pipeline", levels, lambda left: f"... and {count(left, 'more stage')}: --component NAME"
        )
    if warnings := topology.warnings:
        brief = [Line("  ", styled(one.code, "warning"), "  ", one.message) for one in warnings]
        full = Level(0, partial(_in_full, warnings, width), len(warnings))
        levels = (full, Level(28, lambda: brief, len(warnings)))
        yield Section("warnings", levels, lambda left: f"... and {left} more: meshctl validate")


def _in_full(warnings: Sequence[Warning], width: int) -> list[Line]:
    made: list[Line] = []
    for warning in warnings:
        indent = len(warning.code) + 4
        words = words_of(warning.message) + words_of(warning.where, "faint")
        texts = wrapped(words, width - indent, " ")
        if warning.help:
            texts += wrapped(words_of(f"help: {warning.help}", "faint"), width - indent, " ")
        made.append(Line("  ", styled(warning.code, "warning"), "  ", *texts[:1]))
        made += [Line(" " * indent, each) for each in texts[1:]]
    return made


def legend(marks: Marks, width: int, bodies: Sequence[Sequence[Line]]) -> list[Line]:
    """Returns one line that explains the signs that occur in `bodies`, the lines of the sections."""
    text = "\n".join(line.text for body in bodies for line in body)
    together = [
        marks.of_group(group.name).text for group in marks.topology.groups if len(group.components) > 1
    ]
    signs = {
        f"{IDLE} idle": marks.topology.idle > 0 and f" {IDLE}" in text,
        f"{''.join(together[:1])} in one process": any(f" {letters}" in text for letters in together[:1]),
        "A ═══ one worker": "═" in text,
        "4 -> 2 producers -> consumers": re.search(r" \S+ -> \d", text) is not None,
        "2 shares of each batch": re.search(r" \d+ shares?\b", text) is not None,
    }
    words = [Line(sign) for sign, occurs in signs.items() if occurs]
    return [Line("  ", each).with_style("faint") for each in wrapped(words, width - 2, "   ")[:1]]


GAPS_COST = 30
"""The value of the empty lines between sections."""


@dataclass(frozen=True)
class Level:
    """One level of detail of a section."""

    cost: int
    """The value of the details that this level leaves out, beside those of the level before it."""
    draw: Callable[[], list[Line]]
    least: int = 0
    """A lower bound of the number of its lines. A level whose lower bound does not fit is not drawn."""

    @cached_property
    def lines(self) -> list[Line]:
        return self.draw()


@dataclass(frozen=True)
class Section:
    heading: str
    levels: tuple[Level, ...]
    """From the most detailed to the shortest."""
    more: Callable[[int], str]
    """Returns the text of the last line, given the number of lines that are left out."""


Foot = Callable[[Sequence[Sequence[Line]]], Sequence[Line]]
"""Returns the last lines of a picture, given the lines of its sections."""


def fitted(head: Line, sections: Sequence[Section], foot: Foot, lines: int) -> list[Line]:
    """Returns head, sections and foot in at most `lines` lines.

    As long as they do not fit, the section whose next level leaves out the least gets that level, or the
    empty lines between sections are left out. If not even the shortest levels fit, each section has an even
    share of the lines; lines that a short section does not need go to the others.
    """
    left = [[each for each in one.levels if each.least <= lines] or [one.levels[-1]] for one in sections]
    gap = [Line()]
    while True:
        bodies = [levels[0].lines for levels in left]
        last = foot(bodies)
        whole = [*_joined(head, sections, bodies, gap), *(gap if last else ()), *last]
        if len(whole) <= lines:
            return whole
        further = min((levels for levels in left if len(levels) > 1), key=_next_cost, default=None)
        if gap and (further is None or _next_cost(further) > GAPS_COST):
            gap = []
        elif further is not None:
            del further[0]
        else:
            break
    spaces = shares(list(map(len, bodies)), lines - 1 - len(sections))
    for number, (section, body, space) in enumerate(zip(sections, bodies, spaces, strict=True)):
        if len(body) > space:
            kept = max(0, space - 1)
            more = Line("  ", styled(section.more(len(body) - kept), "faint"))
            bodies[number] = [*body[:kept], more][:space]
    return _joined(head, sections, bodies)[:lines]


def _next_cost(levels: Sequence[Level]) -> int:
    return levels[1].cost


def _joined(
    head: Line, sections: Sequence[Section], bodies: Sequence[Sequence[Line]], gap: Sequence[Line] = ()
) -> list[Line]:
    made = [head]
    for section, body in zip(sections, bodies, strict=True):
        made += [*gap, Line(styled(section.heading, "bold")), *body]
    return made


def shares(wanted: Sequence[int], space: int) -> list[int]:
    """Returns the number of lines for each section, with the sum `space`. A section receives the lines that
    it wants, or else an even share of the lines that shorter sections leave."""
    spaces, left = [0] * len(wanted), max(0, space)
    for place, index in enumerate(sorted(range(len(wanted)), key=lambda index: wanted[index])):
        spaces[index] = min(wanted[index], left // (len(wanted) - place))
        left -= spaces[index]
    return spaces
