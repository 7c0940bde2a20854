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

from collections.abc import Iterator, Sequence
from functools import partial

from meshctl.plan.views.topology import Topology, Warning
from meshctl.view.formatting import count
from meshctl.view.pictures.text import flow
from meshctl.view.pictures.text.columns import placement
from meshctl.view.pictures.text.fit_lines import Level, Section, fitted
from meshctl.view.pictures.text.flow import Pipeline
from meshctl.view.pictures.text.groups import Groups, components_alone, in_lines, in_short, with_meshes
from meshctl.view.pictures.text.letters import IDLE, Marks
from meshctl.view.pictures.text.styled import (
    Line,
    clip,
    fit,
    ink,
    line,
    padded,
    printed,
    styled,
    width_of,
    words_of,
    wrapped,
)

MIN_WIDTH = 40
"""Columns; narrower pictures are drawn at this width and clipped."""


GRID_ROWS_COST = {8: 0, 5: 6, 3: 10, 2: 14, 0: 34}
"""The maximum number of rows of a grid -> the cost of the level."""


def draw(topology: Topology, width: int = 80, color: bool = False, lines: int = 60) -> str:
    """Returns the picture, with a newline at its end."""
    return printed([clip(each, width) for each in pictured(topology, max(width, MIN_WIDTH), lines)], color)


def pictured(topology: Topology, width: int, lines: int) -> list[Line]:
    marks = Marks(topology)
    return fitted(
        title(topology, width), list(_sections(topology, marks, width)), legend(topology, marks, width), lines
    )


def title(topology: Topology, width: int) -> Line:
    """Returns the name, the sizes, and the plan's digest if there is room."""
    groups = f" in {count(len(topology.groups), 'group')}" if len(topology.groups) > 1 else ""
    idle = f", {count(topology.idle, 'device')} idle" if topology.idle else ""
    workers, nodes = count(topology.workers, "worker"), count(topology.cluster.nodes, "node")
    full, short = (
        line(ink(topology.name, "bold"), "  ", f"{workers}{also} on {nodes}{idle}") for also in (groups, "")
    )
    digest = line(ink(f"plan {topology.digest}", "faint"))
    room = width - width_of(digest)
    if topology.digest and width_of(full) + 2 <= room:
        return line(padded(full, room), digest)
    return full if width_of(full) <= width else fit(short, width)


def _sections(topology: Topology, marks: Marks, width: int) -> Iterator[Section]:
    if topology.nodes:
        yield _placement(topology, marks, width)
    yield _groups(topology, marks, width)
    if topology.stages:
        yield _pipeline(topology, marks, width)
    if topology.warnings:
        yield _warnings(topology.warnings, width)


def _placement(topology: Topology, marks: Marks, width: int) -> Section:
    levels = (
        Level(0, partial(placement, topology, marks, width), 2 * len(topology.nodes)),
        Level(30, partial(placement, topology, marks, width, borders=False)),
    )
    return Section(
        "placement", levels, lambda left: f"... and {count(left, 'more line')} of other nodes: --node N"
    )


def _groups(topology: Topology, marks: Marks, width: int) -> Section:
    groups, least = Groups(topology, marks), len(topology.groups) + len(topology.components)
    levels = (
        *(
            Level(cost, partial(with_meshes, groups, width, rows), least)
            for rows, cost in GRID_ROWS_COST.items()
        ),
        Level(60, partial(in_short, groups, width), least),
        Level(80, partial(in_lines, groups, width), least),
        Level(100, partial(components_alone, groups, width)),
    )
    return Section("groups", levels, lambda left: f"... and {left} more: --component NAME")


def _pipeline(topology: Topology, marks: Marks, width: int) -> Section:
    pipeline, least = Pipeline(topology, marks), len(topology.stages) + len(topology.routes)
    levels = (
        Level(0, partial(flow.in_full, pipeline, width), least),
        Level(26, partial(flow.in_full, pipeline, width, wraps=False), least),
        Level(64, partial(flow.in_lines, pipeline, width)),
    )
    return Section("pipeline", levels, lambda left: f"... and {count(left, 'more stage')}: --component NAME")


def _warnings(warnings: Sequence[Warning], width: int) -> Section:
    levels = (
        Level(0, partial(_in_full, warnings, width), len(warnings)),
        Level(10, partial(_in_full, warnings, width, helps=False), len(warnings)),
        Level(20, partial(_briefly, warnings), len(warnings)),
        Level(45, partial(_by_code, warnings)),
    )
    return Section("warnings", levels, lambda left: f"... and {left} more: meshctl validate")


def _in_full(warnings: Sequence[Warning], width: int, helps: bool = True) -> list[Line]:
    """Returns the complete messages, with their places and help if `helps`."""
    made: list[Line] = []
    for warning in warnings:
        indent = len(warning.code) + 4
        words = wrapped(
            [*words_of(warning.message), *words_of(warning.where if helps else "", "faint")],
            width - indent,
            " ",
        )
        if warning.help and helps:
            words += wrapped(words_of(f"help: {warning.help}", "faint"), width - indent, " ")
        made.append(line("  ", ink(warning.code, "warning"), "  ", *words[:1]))
        made += [line(" " * indent, each) for each in words[1:]]
    return made


def _briefly(warnings: Sequence[Warning]) -> list[Line]:
    return [line("  ", ink(warning.code, "warning"), "  ", warning.message) for warning in warnings]


def _by_code(warnings: Sequence[Warning]) -> list[Line]:
    """Returns the first warning of each code, and the number of others."""
    found: dict[str, list[Warning]] = {}
    for warning in warnings:
        found.setdefault(warning.code, []).append(warning)
    return [
        line(each, f", and {len(same) - 1} more" if len(same) > 1 else "")
        for same in found.values()
        for each in _briefly(same[:1])
    ]


def legend(topology: Topology, marks: Marks, width: int) -> list[Line]:
    """Returns one line that explains the signs in use."""
    words = []
    if topology.idle:
        words.append(f"{IDLE} idle")
    if shared := next((group for group in topology.groups if len(group.components) > 1), None):
        words.append(f"{''.join(part.text for part in marks.of_group(shared.name))} in one process")
    if any(group.gpus_per_worker > 1 for group in topology.groups):
        words.append("A ═══ one worker")
    if topology.routes:
        words.append("4 -> 2 producers -> consumers")
    if any(route.kind == "data" and route.shares != route.consumers for route in topology.routes):
        words.append("2 shares of each batch")
    return [
        line("  ", styled(each, "faint"))
        for each in wrapped([line(word) for word in words], width - 2, "   ")[:1]
    ]
