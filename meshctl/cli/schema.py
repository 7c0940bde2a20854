"""`meshctl schema`: prints or writes the JSON Schema of recipes, from which editors show keys, values and
their documentation.

Editors that use yaml-language-server read the schema's path from a recipe's first line, `MODELINE`. It is
relative to the recipe's folder, so that it is valid on every machine. `init` writes both; after an update of
meshctl, `meshctl schema --out recipe.schema.json` writes the schema again.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from meshctl.cli.output import refuse, why, write
from meshctl.recipe.fields import schema
from meshctl.run.directory import write_whole

FILE = "recipe.schema.json"
"""Default name of the schema in a recipe's folder."""
MODELINE = f"# yaml-language-server: $schema={FILE}\n"


def text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema_command(out: str) -> int:
    """Prints the schema, or writes it to a file or into a folder. Returns the exit code."""
    if not out or out == "-":
        return _print(text())
    path = Path(out)
    path = path / FILE if out.endswith(os.sep) or path.is_dir() else path
    try:
        write_whole(path, text())
    except (OSError, ValueError) as error:
        return refuse(f"`{path}` cannot be written: {why(error)}")
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
