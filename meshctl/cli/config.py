"""`meshctl config RECIPE [OVERRIDES]`: prints the composed recipe; with `--origins`, the file and line of
each value.

Without `--origins`, the output is one recipe that contains all files and overrides. Secrets and values of
environment variables are redacted. If the recipe has errors, its readable part is printed, and the report on
stderr.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from meshctl.cli.load import Unreadable, load_recipe, resolve_source
from meshctl.cli.output import check_format, write
from meshctl.cli.validate import draw
from meshctl.diagnostics import Span
from meshctl.recipe import secrets
from meshctl.recipe.compose.yaml_scalars import dump
from meshctl.recipe.compose.yaml_tree import plain
from meshctl.recipe.load import Loaded
from meshctl.recipe.origins import Origin, Reference, line_of, origins
from meshctl.text.bounded import UNSEEN
from meshctl.view.reports.text import cells, shown

FORMAT = 1
"""Version of the JSON format."""
UNREADABLE = 3
WIDTH, GAP = 80, 2
"""Columns of the output without a terminal, and between its two columns."""


def config(recipe: str, overrides: list[str], with_origins: bool, format: str) -> int:
    """Prints a recipe and returns the exit code: 1 if the recipe has errors, 3 if it cannot be read."""
    check_format(format)
    try:
        name, standard_input = resolve_source(recipe)
        loaded, _ = load_recipe(name, overrides, standard_input)
    except Unreadable as unreadable:
        draw(unreadable.report, sys.stderr)
        return UNREADABLE
    if loaded.report.diagnostics:
        draw(loaded.report, sys.stderr)
    if loaded.tree is not None and (loaded.tree.value or format == "json"):
        write(printed(loaded, with_origins, format), sys.stdout)
    if not loaded.readable:
        return UNREADABLE
    return 1 if loaded.report.errors else 0


def printed(loaded: Loaded, with_origins: bool, format: str) -> str:
    """Returns the composed recipe, or the origins of its values, as text (YAML) or as JSON."""
    if not with_origins:
        data = plain(secrets.shown(loaded.tree, loaded.secrets)) if loaded.tree is not None else {}
        return dump(data) if format == "text" else in_json(data, indent=2) + "\n"
    found = origins(loaded)
    if format == "text":
        width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
        return in_columns(found, max(WIDTH, width)) + "\n"
    values = ",".join(f"\n    {in_json(origin_data(origin))}" for origin in found)
    values = f"[{values}\n  ]" if values else "[]"
    return f'{{\n  "format": {FORMAT},\n  "errors": {len(loaded.report.errors)},\n  "values": {values}\n}}\n'


def origin_data(origin: Origin) -> dict[str, Any]:
    values: dict[str, Any] = {
        "path": list(origin.path),
        "value": origin.value,
        "kind": origin.kind,
        "place": span_data(origin.span),
    }
    if origin.note:
        values["note"] = origin.note
    if origin.resolved:
        values["means"] = origin.resolved[0]
    if origin.references:
        values["refers"] = [
            {"text": one.text, "path": list(one.path) if one.path else None, "place": span_data(one.span)}
            for one in origin.references
        ]
    if origin.replaced:
        values["was"] = [{"value": was.value, "place": span_data(was.span)} for was in origin.replaced]
    return values


def span_data(span: Span | None) -> dict[str, Any] | None:
    return (
        {"file": span.file, "line": span.line, "column": span.column, "width": span.width} if span else None
    )


def in_json(value: Any, indent: int | None = None) -> str:
    """Returns a value as JSON. Infinity and NaN, which JSON lacks, become strings."""
    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False)
    return UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    is_missing_in_json = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_missing_in_json else value


# Origins as text: in each line a value and its place, and below the place the value that it replaced or to
# which it resolves. Nothing is cut, so that key paths can be copied into an override.
#
# run.steps = 7                           override 1:1:11
#                                         (was 100, recipe.yaml:29:15)
# components.actor.args.steps = ${run.steps}  recipe.yaml:19:96
#                                         (is 7, override 1:1:11)
# name = grpo                             inferred: the file's name


def in_columns(origins: Sequence[Origin], width: int = WIDTH) -> str:
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
    if origin.span is None:
        place = f"{origin.kind}: {origin.note}" if origin.note else origin.kind
    else:
        place = _place_of(origin.span)
    place, *notes = map(shown, (place, *_notes(origin)))
    if cells(left) > column - GAP and cells(left) + GAP + cells(place) > width:
        yield left
        left = ""
    yield f"{left}{' ' * max(GAP, column - cells(left))}{place}"
    yield from (" " * column + note for note in notes)


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
