"""Lanes beside a list of stages in run order, which connect producers with their consumers.

    ╭────  batch          produces a value
    ├─┬──  rollouts       consumes it, as a later stage does, and produces a value
    │ ╰──  judged         is its last consumer
    ╰────  metrics

A lane has the color of its producer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshctl.dataclass import dataclass
from meshctl.view.pictures.text.styled import Line, styled

MAX_LANES = 6
"""Maximum number of lanes side by side. A picture that needs more has no lanes: only the names of inputs show
where values come from."""


@dataclass(frozen=True)
class Lanes:
    stages: Mapping[str, Line]
    """Stage -> the lanes before its name."""
    below: Mapping[str, Line]
    """Stage -> the lanes before the lines below it."""
    width: int


def lanes_of(
    order: Sequence[str], pairs: Sequence[tuple[str, str]], styles: Mapping[str, str]
) -> Lanes | None:
    """Returns the lanes for pairs (producer, consumer); None without pairs, or beyond `MAX_LANES`."""
    index = {name: number for number, name in enumerate(order)}
    edges = {(index[source], index[target]) for source, target in pairs if index[source] < index[target]}
    last_consumer: dict[int, int] = {}
    for source, target in edges:
        last_consumer[source] = max(target, last_consumer.get(source, 0))
    lanes: list[int | None] = []  # lane -> index of its producer, None for an unused lane
    stages, below = list[Line](), list[Line]()
    for stage in range(len(order)):
        inputs = [
            lane for lane, producer in enumerate(lanes) if producer is not None and (producer, stage) in edges
        ]
        new = _free(lanes, max(inputs, default=-1) + 1) if stage in last_consumer else None
        if new is not None:
            lanes[new:] = [stage, *lanes[new + 1 :]]
        if len(lanes) > MAX_LANES:
            return None
        colors = ["" if producer is None else styles[order[producer]] for producer in lanes]
        ends = [producer is not None and last_consumer[producer] <= stage for producer in lanes]
        joints = zip(_joints(lanes, inputs, new, ends), colors, strict=True)
        stages.append(
            Line(*(Line(styled(joint[0], color), styled(joint[1], "faint")) for joint, color in joints))
        )
        lanes = [None if end else producer for producer, end in zip(lanes, ends, strict=True)]
        signs = ("  " if producer is None else "│ " for producer in lanes)
        below.append(Line(*(styled(sign, color) for sign, color in zip(signs, colors, strict=True))))
        while lanes and lanes[-1] is None:
            lanes.pop()
    width = max((line.width for line in below), default=0)
    if not width:
        return None
    to_names = (Line(line, styled(_filler(line) * (width - line.width), "faint")) for line in stages)
    padded = (line.padded(width) for line in below)
    return Lanes(dict(zip(order, to_names, strict=True)), dict(zip(order, padded, strict=True)), width)


def _filler(row: Line) -> str:
    """Returns the character that fills the space between the lanes of a row and the name of its stage."""
    return "─" if row.text.endswith("─") else " "


def _free(lanes: Sequence[int | None], start: int) -> int:
    """Returns the first unused lane from `start` on."""
    return next((lane for lane in range(start, len(lanes)) if lanes[lane] is None), max(start, len(lanes)))


def _joints(
    lanes: Sequence[int | None], inputs: Sequence[int], new: int | None, ends: Sequence[bool]
) -> list[str]:
    """Returns two characters for each lane in the row of a stage: the joint of the lane, and the line that
    leads to the name of the stage.

    `inputs` are the lanes that the stage consumes, `new` is the lane that begins with it, and `ends` has for
    each lane whether the stage is its last consumer.
    """
    first = min([*inputs, *([] if new is None else [new])], default=len(lanes))
    made = list[str]()
    for lane, producer in enumerate(lanes):
        lead = "─" if lane >= first else " "
        if lane in inputs and lane == first:
            joint = "╰" if ends[lane] else "├"
        elif lane in inputs:
            joint = "┴" if ends[lane] else "┼"
        elif lane == new:
            joint = "┬" if inputs else "╭"
        else:
            joint = lead if producer is None else "│"
        made.append(joint + lead)
    return made
