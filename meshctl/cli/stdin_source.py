"""Reads a recipe from standard input. `-` is treated like a file in the working directory."""

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
"""Real path -> bytes that are used in place of the file."""
NOTHING: Held = MappingProxyType({})


def resolve_source(recipe: str) -> tuple[str, Held]:
    """Returns a recipe's path, and its text if it comes from standard input. Raises `Unreadable`."""
    return (STDIN, {real(Path.cwd() / STDIN): _read()}) if recipe == "-" else (recipe, NOTHING)


def _read() -> bytes:
    """Reads standard input, up to one byte more than the maximum size of a recipe."""
    try:
        return sys.stdin.buffer.read(MAX_BYTES + 1) or b""
    except (AttributeError, ValueError):
        why = "standard input is closed"
    except OSError as error:
        why = f"cannot read standard input: {(error.strerror or 'it failed').lower()}"
    raise Unreadable(Report((Diagnostic("MC001", why),)))
