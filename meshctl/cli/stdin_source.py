"""`-` in place of a recipe is standard input, as if it were a file in the working directory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from meshctl.cli.load import Unreadable
from meshctl.diagnostics import Diagnostic, Report
from meshctl.recipe.compose.folders import real
from meshctl.recipe.compose.yaml_reader import MAX_BYTES
from meshctl.view.reports import STDIN

Held = Mapping[str, bytes]
"""What is read in place of files, by their real paths."""
NOTHING: Held = MappingProxyType({})


def given(recipe: str) -> tuple[str, Held]:
    """A recipe's name, and its text where no file has it. Raises `Unreadable`."""
    return (STDIN, {real(Path.cwd() / STDIN): _read()}) if recipe == "-" else (recipe, NOTHING)


def _read() -> bytes:
    """As much as a recipe may be long, and one byte, which is too much."""
    try:
        return sys.stdin.buffer.read(MAX_BYTES + 1) or b""
    except (AttributeError, ValueError):
        why = "there is no standard input, it is closed"
    except OSError as error:
        why = f"cannot read standard input: {(error.strerror or 'it failed').lower()}"
    raise Unreadable(Report((Diagnostic("MC001", why),)))
