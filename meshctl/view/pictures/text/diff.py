"""The difference of two plans as text: + is added, - is removed, ~ is changed.

two-nodes  2 changed, 1 new                                   plan 1f2e... -> 9c0d...

groups
  ~ train   workers 4 -> 8, devices 4 -> 8, nodes 1 -> 2
components
  ~ actor   layout fsdp 4 -> fsdp 4 x tp 2, tp groups cross nodes
  + critic  in train, fsdp 8, arithmetic.Critic
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meshctl.plan.views.difference import Change, Difference, Fact, Subject, Value
from meshctl.topology.mesh import DIMS
from meshctl.view.formatting import count, size
from meshctl.view.pictures import OVER
from meshctl.view.pictures.text.fit_lines import Level, Section, fitted
from meshctl.view.pictures.text.grid import REACHES
from meshctl.view.pictures.text.picture import MIN_WIDTH
from meshctl.view.pictures.text.styled import (
    Ink,
    Line,
    clip,
    fit,
    ink,
    joined,
    line,
    padded,
    printed,
    width_of,
    wrapped,
)

MARKS = {"added": "+", "removed": "-", "changed": "~"}
HEADINGS: dict[Subject, str] = {
    "job": "job",
    "groups": "groups",
    "components": "components",
    "stages": "pipeline",
    "routes": "routes",
    "weights": "weights",
    "warnings": "warnings",
}
NAME = 28
"""Columns of a name, at most."""
WITHOUT_NAME = ("call", "message", "layout", "device type", "place", "target", "program")
"""Facts whose values need no name."""


def draw(difference: Difference, width: int = 80, color: bool = False, lines: int = 60) -> str:
    """Returns the text, with a newline at its end."""
    return printed([clip(each, width) for each in pictured(difference, max(width, MIN_WIDTH), lines)], color)


def pictured(difference: Difference, width: int, lines: int) -> list[Line]:
    sections = [
        _section(heading, found, width)
        for subject, heading in HEADINGS.items()
        if (found := difference.of(subject))
    ]
    if not sections:
        same = difference.digests[0] == difference.digests[1]
        return [
            line(
                "no difference"
                if same
                else "no difference in the topology; arguments, seed or run settings differ"
            )
        ]
    return fitted(title(difference, width), sections, (), lines)


def title(difference: Difference, width: int) -> Line:
    """Returns the names of the plans and the numbers of changes."""
    names = (
        difference.before
        if difference.before == difference.after
        else f"{difference.before} -> {difference.after}"
    )
    counts = {"changed": 0, "added": 0, "removed": 0}
    for change in difference.changes:
        counts[change.mark] += 1
    words = {"changed": "changed", "added": "new", "removed": "gone"}
    has_layout = line(
        ink(names, "bold"),
        "  ",
        joined([line(f"{amount} {words[mark]}") for mark, amount in counts.items() if amount]),
    )
    digests = line(ink(f"plan {difference.digests[0][:8]} -> {difference.digests[1][:8]}", "faint"))
    room = width - width_of(digests)
    return (
        line(padded(has_layout, room), digests)
        if width_of(has_layout) + 2 <= room
        else fit(has_layout, width)
    )


def _section(heading: str, changes: Sequence[Change], width: int) -> Section:
    levels = (
        Level(0, partial(_in_full, changes, width), len(changes)),
        Level(50, partial(_in_lines, changes, width)),
    )
    return Section(heading, levels, lambda left: f"... and {count(left, 'more change')}: --format json")


def _in_full(changes: Sequence[Change], width: int) -> list[Line]:
    """Returns each change with all of its facts."""
    width_of_names = _name_width(changes)
    made: list[Line] = []
    for change in changes:
        head = _head(change, width_of_names)
        room = width - width_of(head)
        facts = wrapped(_ended(_facts(change), room), room, " ")
        made.append(line(head, *facts[:1]))
        made += [line(" " * width_of(head), each) for each in facts[1:]]
    return made


def _in_lines(changes: Sequence[Change], width: int) -> list[Line]:
    width_of_names = _name_width(changes)
    return [clip(line(_head(change, width_of_names), joined(_facts(change))), width) for change in changes]


def _name_width(changes: Sequence[Change]) -> int:
    return min(NAME, max(width_of(change.name) for change in changes))


def _head(change: Change, width_of_names: int) -> Line:
    style = "warning" if change.subject == "warnings" else "bold" if change.mark == "changed" else change.mark
    name = line(ink(change.name, style))
    return line(
        "  ",
        ink(MARKS[change.mark], change.mark),
        " ",
        padded(fit(name, width_of_names), width_of_names),
        "  " if width_of_names else "",
    )


def _ended(facts: Sequence[Line], room: int) -> list[Line]:
    """Returns the facts with commas at their ends; a long fact, or a single one, is split at any word."""
    ended = [*((*fact[:-1], Ink(f"{fact[-1].text},", fact[-1].style)) for fact in facts[:-1]), *facts[-1:]]
    return [
        word
        for fact in ended
        for word in ([fact] if width_of(fact) <= room and len(facts) > 1 else _words(fact))
    ]


def _words(text: Line) -> list[Line]:
    return [line(ink(word, part.style)) for part in text for word in part.text.split()]


# Facts


def _facts(change: Change) -> list[Line]:
    if change.mark == "changed":
        has_layout = _has(change, "layout")
        return [_changed(fact) for fact in change.facts if not (has_layout and _in_layout(fact))]
    values = [fact.before if change.mark == "removed" else fact.after for fact in change.facts]
    return [line(_fact(fact.what, value)) for fact, value in zip(change.facts, values, strict=True)]


def _in_layout(fact: Fact) -> bool:
    return fact.what == "order of dims" or (fact.what == "size" and fact.dim in DIMS)


def _has(change: Change, what: str) -> bool:
    return any(fact.what == what for fact in change.facts)


def _fact(what: str, value: Value) -> str:
    """Returns a fact of something added or removed."""
    text = shown(what, value)
    if what in WITHOUT_NAME:
        return text
    return f"in {text}" if what == "group" else f"{text} ranks" if what == "ranks" else f"{what} {text}"


def _changed(fact: Fact) -> Line:
    before, after = shown(fact.what, fact.before), shown(fact.what, fact.after)
    if fact.what == "reach":
        return line(
            f"{fact.dim} groups ",
            *([before, " -> "] if fact.before else []),
            ink(after, "" if fact.after == "inside" else "warning"),
        )
    if fact.what == "ranks":
        return line(f"{before} ranks become {after}")
    label = "" if fact.what == "over" else f"{fact.dim or fact.what} "
    return line(f"{label}{before} -> {after}")


def shown(what: str, value: Value) -> str:
    if isinstance(value, tuple):
        return (" -> " if what == "ranks" else ", ").join(map(str, value))
    if what == "reach":
        return {**REACHES, "inside": "inside a node"}.get(str(value), "") + (
            "" if value == "inside" else " nodes"
        )
    if what == "over":
        return OVER.get(str(value), str(value))
    if what in ("bytes a step", "bytes of a sample"):
        return size(value) if isinstance(value, int) and value else "?"
    return "none" if value in (None, "") else str(value)
