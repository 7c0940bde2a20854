"""The origins of a recipe's values, as text: in each line a value and its place, and below the place the
value that it replaced or to which it resolves.

    run.steps = 7                           override 1:1:11
                                            (was 100, recipe.yaml:29:15)
    components.actor.args.steps = ${run.steps}  recipe.yaml:19:96
                                            (is 7, override 1:1:11)
    name = grpo                             inferred: the file's name

Nothing is cut, so that key paths can be copied into an override.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshctl.diagnostics import Span
from meshctl.recipe.origins import Origin, Reference, line_of
from meshctl.view.reports.text import cells, shown

GAP = 2


def text(origins: Sequence[Origin], width: int = 80) -> str:
    """Returns one line or a few for each origin, without a final line break."""
    lefts = [shown(f"{'.'.join(origin.path)} = {line_of(origin.value)}") for origin in origins]
    column = min(max(map(cells, lefts), default=0) + GAP, width // 2)
    return "\n".join(
        line
        for left, origin in zip(lefts, origins, strict=True)
        for line in _lines(left, origin, column, width)
    )


def _lines(left: str, origin: Origin, column: int, width: int) -> Iterator[str]:
    """Yields the lines of one origin. A value that leaves no room for its place has a line of its own."""
    place, *notes = map(shown, (_place(origin), *_notes(origin)))
    if cells(left) > column - GAP and cells(left) + GAP + cells(place) > width:
        yield left
        left = ""
    yield f"{left}{' ' * max(GAP, column - cells(left))}{place}"
    yield from (" " * column + note for note in notes)


def _place(origin: Origin) -> str:
    if origin.span is None:
        return f"{origin.kind}: {origin.note}" if origin.note else origin.kind
    return _place_of(origin.span)


def _place_of(span: Span) -> str:
    return f"{span.file}:{span.line}:{span.column}"


def _notes(origin: Origin) -> Iterator[str]:
    references = origin.references
    if origin.resolved:
        yield f"(is {line_of(origin.resolved[0])}, {_target(references[0])})"
        others = [one for one in references[1:] if one.path is not None and one.span is not None]
        yield from (f"({'.'.join(one.path or ())}, {_target(one)})" for one in others)
    elif references and references[0].path is None:
        yield "(the worker asks its environment)"
    yield from (f"(was {line_of(was.value)}, {_place_of(was.span)})" for was in origin.replaced)


def _target(reference: Reference) -> str:
    if reference.path is None:
        return "from the environment"
    return _place_of(reference.span) if reference.span else ".".join(reference.path)
