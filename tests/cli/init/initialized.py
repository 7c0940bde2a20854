"""Reads what `meshctl init` wrote."""

from __future__ import annotations

import io
from pathlib import Path

from meshctl.cli.validate import checked


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {
        "recipe.schema.json"
    }


def validated(recipe: str, *notes: str) -> str:
    """Returns the last line of the output of `validate`, which has no diagnostics but notes with these
    codes."""
    out = io.StringIO()
    assert checked(recipe, [], out) == 0, out.getvalue()
    *lines, last = out.getvalue().splitlines()
    found = [line for line in lines if line.startswith(("note", "warning", "error"))]
    assert [line.partition("]")[0] for line in found] == [f"note[{code}" for code in notes], out.getvalue()
    return last
