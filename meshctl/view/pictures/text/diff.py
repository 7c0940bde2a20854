"""The difference of two plans as text: + is added, - is removed, ~ is changed.

two-nodes  2 changed, 1 new                                   plan 1f2e... -> 9c0d...

groups
  ~ train   workers 4 -> 8, devices 4 -> 8, nodes 1 -> 2
components
  ~ actor   layout fsdp 4 -> fsdp 4 x tp 2, tp groups cross nodes
  + critic  in train, fsdp 8, arithmetic.Critic
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import get_args

from meshctl.plan.views.difference import BYTES, Change, Difference, Fact, Subject, Value
from meshctl.topology.mesh import DIMS
from meshctl.view.formatting import count, size
from meshctl.view.pictures import OVER
from meshctl.view.pictures.text.fit_lines import Level, Section, fitted
from meshctl.view.pictures.text.grid import REACHES
from meshctl.view.pictures.text.picture import MIN_WIDTH
from meshctl.view.pictures.text.styled import Line, joined, printed, styled, wrapped

SIGNS = {"added": "+", "removed": "-", "changed": "~"}
WORDS = {"changed": "changed", "added": "new", "removed": "gone"}
MAX_NAME = 28
"""Maximum width of a name in columns."""
HEADINGS: Mapping[Subject, str] = {
    "stages": "pipeline",
    "memory": "memory on each rank",
    "device memory": "memory on each device",
}
"""The headings of subjects, for those that differ from the subject."""
WITHOUT_NAME = ("call", "message", "layout", "device type", "place", "target", "program", "bytes")
"""Facts whose values are shown without the name of the fact."""


def draw(difference: Difference, width: int = 80, color: bool = False, lines: int = 60) -> str:
    """Returns the text, with a newline at its end."""
    return printed([each.clip(width) for each in pictured(difference, max(width, MIN_WIDTH), lines)], color)


def pictured(difference: Difference, width: int, lines: int) -> list[Line]:
    sections = [
        _section(HEADINGS.get(subject, subject), found, width)
        for subject in get_args(Subject)
        if (found := difference.of(subject))
    ]
    if sections:
        return fitted(title(difference, width), sections, lambda bodies: (), lines)
    if difference.digests[0] == difference.digests[1]:
        return [Line("no difference")]
    return [Line("no difference in the topology; arguments, seed or run settings differ")]


def title(difference: Difference, width: int) -> Line:
    """Returns the names of the plans and the numbers of changes."""
    names = " -> ".join(dict.fromkeys((difference.before, difference.after)))
    marks = [change.mark for change in difference.changes]
    counts = [Line(f"{marks.count(mark)} {word}") for mark, word in WORDS.items() if mark in marks]
    text = Line(styled(names, "bold"), "  ", joined(counts))
    before, after = difference.digests
    digests = Line(styled(f"plan {before[:8]} -> {after[:8]}", "faint"))
    space = width - digests.width
    return Line(text.padded(space), digests) if text.width + 2 <= space else text.fit(width)


def _section(heading: str, changes: Sequence[Change], width: int) -> Section:
    levels = (
        Level(0, partial(_in_full, changes, width), len(changes)),
        Level(50, partial(_in_lines, changes, width)),
    )
    return Section(heading, levels, lambda left: f"... and {count(left, 'more change')}: --format json")


def _in_full(changes: Sequence[Change], width: int) -> list[Line]:
    """Returns each change with all of its facts."""
    made: list[Line] = []
    for change, head in zip(changes, _heads(changes), strict=True):
        space = width - head.width
        first, *rest = wrapped(list(_pieces(_facts(change), space)), space, " ") or [Line()]
        made += [Line(head, first), *(Line(" " * head.width, each) for each in rest)]
    return made


def _in_lines(changes: Sequence[Change], width: int) -> list[Line]:
    heads = zip(changes, _heads(changes), strict=True)
    return [Line(head, joined(_facts(change))).clip(width) for change, head in heads]


def _heads(changes: Sequence[Change]) -> Iterator[Line]:
    """Yields the sign and the name of each change."""
    wide = min(MAX_NAME, max(Line(change.name).width for change in changes))
    for change in changes:
        style = "bold" if change.mark == "changed" else change.mark
        name = Line(styled(change.name, "warning" if change.subject == "warnings" else style))
        gap = "  " if wide else ""
        yield Line("  ", styled(SIGNS[change.mark], change.mark), " ", name.fit(wide).padded(wide), gap)


def _pieces(facts: Sequence[Line], space: int) -> Iterator[Line]:
    """Yields the facts with commas, as pieces between which lines may break. A fact that is wider than
    `space`, or the only one, has a piece for each word."""
    for number, fact in enumerate(facts, 1):
        comma = "," if number < len(facts) else ""
        if len(facts) > 1 and fact.width + len(comma) <= space:
            yield Line(fact, comma)
        else:
            *words, last = fact.words()
            yield from (*words, Line(last, comma))


# Facts


def _facts(change: Change) -> list[Line]:
    if change.mark == "changed":
        has_layout = any(fact.what == "layout" for fact in change.facts)
        return [_changed(fact) for fact in change.facts if not (has_layout and _is_in_layout(fact))]
    values = [fact.before if change.mark == "removed" else fact.after for fact in change.facts]
    return [Line(_fact(fact.what, value)) for fact, value in zip(change.facts, values, strict=True)]


def _is_in_layout(fact: Fact) -> bool:
    return fact.what == "order of dims" or (fact.what == "size" and fact.dim in DIMS)


def _fact(what: str, value: Value) -> str:
    """Returns a fact of something added or removed."""
    text = shown(what, value)
    if what in WITHOUT_NAME:
        return text
    return {"group": f"in {text}", "ranks": f"{text} ranks"}.get(what, f"{what} {text}")


def _changed(fact: Fact) -> Line:
    before, after = shown(fact.what, fact.before), shown(fact.what, fact.after)
    match fact.what:
        case "reach":
            reach = styled(after, "" if fact.after == "inside" else "warning")
            return Line(f"{fact.dim} groups ", f"{before} -> " if fact.before else "", reach)
        case "ranks":
            return Line(f"{before} ranks become {after}")
        case "over" | "bytes":
            return Line(f"{before} -> {after}")
    return Line(f"{fact.dim or fact.what} {before} -> {after}")


def shown(what: str, value: Value) -> str:
    if isinstance(value, tuple):
        return (" -> " if what == "ranks" else ", ").join(map(str, value))
    match what:
        case "reach":
            nodes = " a node" if value == "inside" else " nodes"
            return REACHES[str(value)] + nodes if value else ""
        case "over":
            return ", ".join(OVER.get(way, way) for way in str(value or "").split())
        case "bytes a step" | "bytes of a sample":
            return size(value) if isinstance(value, int) and value else "?"
    if what in BYTES and value and isinstance(value, int):
        return size(value)
    return "none" if value in (None, "") or (what in BYTES and value == 0) else str(value)
