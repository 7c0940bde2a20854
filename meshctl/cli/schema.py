"""`meshctl schema`: the JSON Schema of recipes, printed or written, so that an editor knows keys, values and
what they mean.

Editors that speak to yaml-language-server find it by a recipe's first line, `MODELINE`: a file beside the
recipe, so that the line is right on every machine and in every checkout. `init` writes both; after an update
`meshctl schema --out recipe.schema.json` writes it anew.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from meshctl.cli.output import why, write
from meshctl.recipe.schema import schema
from meshctl.run.directory import write_whole

FILE = "recipe.schema.json"
"""Its usual name, beside a recipe."""
MODELINE = f"# yaml-language-server: $schema={FILE}\n"
USAGE = 2


def text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def tell(out: str) -> int:
    """Prints it, or writes the file; the exit code."""
    if not out or out == "-":
        return _print(text())
    path = Path(out)
    path = path / FILE if out.endswith(os.sep) or path.is_dir() else path
    try:
        write_whole(path, text())
    except (OSError, ValueError) as error:
        print(f"error: `{path}` cannot be written: {why(error)}", file=sys.stderr)
        return USAGE
    print(
        f"wrote {path}; a recipe beside it begins with\n{MODELINE.replace(FILE, path.name)}",
        end="",
        file=sys.stderr,
    )
    return 0


def _print(text: str) -> int:
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    write(text, sys.stdout)
    return 0
