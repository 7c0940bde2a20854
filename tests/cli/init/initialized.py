"""Reads what `meshctl init` wrote."""

from __future__ import annotations

import io
from pathlib import Path

from meshctl.cli.validate import checked


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {
        "recipe.schema.json"
    }


def validated(recipe: str) -> str:
    """Returns the output of `validate`, which is one line."""
    out = io.StringIO()
    assert checked(recipe, [], out) == 0, out.getvalue()
    assert out.getvalue().count("\n") == 1, out.getvalue()
    return out.getvalue()
