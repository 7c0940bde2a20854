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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshctl.cli.load import Unreadable, load_recipe, resolve_source
from meshctl.cli.output import problem_of_format, refuse, write
from meshctl.cli.validate import draw
from meshctl.diagnostics import Span
from meshctl.text.bounded import UNSEEN

if TYPE_CHECKING:
    from meshctl.recipe.load import Loaded
    from meshctl.recipe.origins import Origin

FORMAT = 1
"""Version of the JSON format."""
UNREADABLE = 3
WIDTH = 80
"""Columns of the output without a terminal."""


def config(recipe: str, overrides: list[str], origins: bool, format: str) -> int:
    """Prints a recipe and returns the exit code: 1 if the recipe has errors, 3 if it cannot be read."""
    if problem := problem_of_format(format):
        return refuse(problem)
    try:
        name, standard_input = resolve_source(recipe)
        loaded, _ = load_recipe(name, overrides, standard_input)
    except Unreadable as unreadable:
        draw(unreadable.report, sys.stderr)
        return UNREADABLE
    if loaded.report.diagnostics:
        draw(loaded.report, sys.stderr)
    draws: Callable[[Loaded], str] = {
        (False, "text"): composed,
        (False, "json"): composed_json,
        (True, "text"): origins_text,
        (True, "json"): origins_json,
    }[origins, format]
    if loaded.tree is not None and (loaded.tree.value or format == "json"):
        write(draws(loaded), sys.stdout)
    if not loaded.readable:
        return UNREADABLE
    return 1 if loaded.report.errors else 0


def data(loaded: Loaded) -> Any:
    from meshctl.recipe.compose.yaml_tree import plain
    from meshctl.recipe.secrets import shown

    return plain(shown(loaded.tree, loaded.secrets)) if loaded.tree is not None else {}


def composed(loaded: Loaded) -> str:
    from meshctl.recipe.compose.yaml_scalars import dump

    return dump(data(loaded))


def composed_json(loaded: Loaded) -> str:
    return in_json(data(loaded), indent=2) + "\n"


def origins_text(loaded: Loaded) -> str:
    from meshctl.recipe.origins import origins
    from meshctl.view.reports.origins import text

    width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    return text(origins(loaded), max(WIDTH, width)) + "\n"


def origins_json(loaded: Loaded) -> str:
    from meshctl.recipe.origins import origins

    values = ",".join(f"\n    {in_json(origin_data(origin))}" for origin in origins(loaded))
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
