"""The origins of a recipe's values, as text: in each line a value and its place, and below the place the
value that it replaced or to which it resolves.

    run.steps = 7                           override 1:1:11
                                            (was 100, recipe.yaml:29:15)
    components.actor.args.steps = ${run.steps}  recipe.yaml:19:96
                                            (is 7, override 1:1:11)
    run.grace = 30                          default

Key paths are never cut, so that they can be copied into an override. Values and file names are cut if they
are too long for a line; `--format json` has them in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from meshctl.diagnostics import Span
from meshctl.recipe.origins import Origin, line_of
from meshctl.view.reports.text import cells, shown

MIN_CELLS = 12
"""Minimum width in cells to which a text is cut."""
GAP = 2
MORE = "..."


def text(origins: Sequence[Origin], width: int = 80) -> str:
    """Returns one line or a few for each origin, without a final line break."""
    lefts = [_left(origin) for origin in origins]
    column = min(max(map(cells, lefts), default=0) + GAP, width // 2)
    return "\n".join(
        line
        for left, origin in zip(lefts, origins, strict=True)
        for line in _lines(left, origin, column, width)
    )


def _left(origin: Origin) -> str:
    """Returns `run.steps = 7`."""
    return f"{shown('.'.join(origin.path))} = {shown(line_of(origin.value))}"


def _lines(left: str, origin: Origin, column: int, width: int) -> Iterator[str]:
    """Yields the lines of one origin. The value, on the left, or the place, on the right, may be too long for
    its half; then it uses space of the other half, or the value has a line of its own."""
    room = width - column
    place, *notes = [_place(origin, room), *_notes(origin, room)]
    if cells(left) > column - GAP and cells(left) + GAP + cells(place) > width:
        yield cut(left, max(width, cells(shown(".".join(origin.path))) + MIN_CELLS))
        left = ""
    if cells(left) <= column - GAP and notes and cells(place) + GAP + cells(notes[0]) <= room:
        place, notes = f"{place}{' ' * GAP}{notes[0]}", notes[1:]
    yield f"{left}{' ' * max(GAP, column - cells(left))}{place}"
    yield from (" " * column + line for line in notes)


def _place(origin: Origin, room: int) -> str:
    if origin.span is None:
        return cut(f"{origin.kind}: {origin.note}" if origin.note else origin.kind, room)
    return place_of(origin.span, room, "decorator " if origin.kind == "decorator" else "")


def place_of(span: Span, room: int, before: str = "") -> str:
    """Returns `recipe.yaml:29:15`; a long file name is cut at its front."""
    end = f":{span.line}:{span.column}"
    file = shown(span.file)
    left = room - cells(before) - cells(end)
    if cells(file) > left:
        file = MORE + file[-max(MIN_CELLS - len(MORE), left - len(MORE)) :]
    return f"{before}{file}{end}"


def _notes(origin: Origin, room: int) -> Iterator[str]:
    if origin.resolved:
        yield from _meaning(origin, room)
    elif origin.references and origin.references[0].path is None:
        yield cut("(the worker asks its environment)", room)
    for replaced in origin.replaced:
        yield _of_two("was ", line_of(replaced.value), partial(place_of, replaced.span), room)


def _meaning(origin: Origin, room: int) -> Iterator[str]:
    value, (first, *others) = line_of(origin.resolved[0]), origin.references or (None,)
    if first is None:
        yield _of_two("is ", value, lambda left: cut("inferred", left), room)
    elif first.path is None:
        yield _of_two("is ", value, lambda left: cut("from the environment", left), room)
    elif first.span is None:
        yield _of_two("is ", value, lambda left: cut(".".join(first.path or ()), left), room)
    else:
        yield _of_two("is ", value, partial(place_of, first.span), room)
    for other in others:
        if other is not None and other.path is not None and other.span is not None:
            yield _of_two("", ".".join(other.path), partial(place_of, other.span), room)


def _of_two(word: str, value: str, rest: Callable[[int], str], room: int) -> str:
    """Returns a value and a place: `(was 100, recipe.yaml:29:15)`. The value is cut to a third of `room`;
    `rest` returns the place in the room that is left."""
    half = max(MIN_CELLS, room // 3)
    value = cut(shown(value), half)
    return f"({word}{value}, {rest(room - cells(word) - cells(value) - 4)})"


def cut(text: str, room: int) -> str:
    """Returns as much of a text as fits into `room` cells."""
    if cells(text) <= room:
        return text
    kept = ""
    for character in text:
        if cells(kept) + cells(character) + len(MORE) > room:
            break
        kept += character
    return kept + MORE
