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
from typing import get_args

from meshctl.plan.views.difference import BYTES, Change, Difference, Fact, Subject, Value
from meshctl.view.formatting import count, size
from meshctl.view.pictures import OVER
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
    """Returns at most `lines` lines: the changes by subject, each with all of its facts."""
    if not difference.changes:
        is_same = difference.digests[0] == difference.digests[1]
        more = "" if is_same else " in the topology; arguments, seed or run settings differ"
        return [Line(f"no difference{more}")]
    made, left = [title(difference, width)], 0
    for subject in get_args(Subject):
        heads = [Line(), Line(styled(HEADINGS.get(subject, subject), "bold"))]
        for block in _blocks(difference.of(subject), width):
            if left or len(made) + len(heads) + len(block) >= lines:
                left += 1
            else:
                made += [*heads, *block]
                heads = []
    more = f"... and {count(left, 'more change')}: --format json"
    return [*made, Line(styled(more, "faint"))] if left else made


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


def _blocks(changes: Sequence[Change], width: int) -> Iterator[list[Line]]:
    wide = min(MAX_NAME, max((Line(change.name).width for change in changes), default=0))
    for change in changes:
        style = "bold" if change.mark == "changed" else change.mark
        name = Line(styled(change.name, "warning" if change.subject == "warnings" else style))
        sign = styled(SIGNS[change.mark], change.mark)
        head = Line("  ", sign, " ", name.fit(wide).padded(wide), "  " if wide else "")
        space = width - head.width
        first, *rest = wrapped(list(_pieces(_facts(change), space)), space, " ") or [Line()]
        yield [Line(head, first), *(Line(" " * head.width, each) for each in rest)]


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
        return [_changed(fact) for fact in change.facts]
    lines = []
    for fact in change.facts:
        text = shown(fact.what, fact.before if change.mark == "removed" else fact.after)
        named = {"group": f"in {text}", "ranks": f"{text} ranks", **dict.fromkeys(WITHOUT_NAME, text)}
        lines.append(Line(named.get(fact.what, f"{fact.what} {text}")))
    return lines


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
