"""The folder in which this package is installed, and what the package ships and requires."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

PACKAGE_DIR = Path(__file__).parent
SHIPPED_TOKENIZERS = {"byte": PACKAGE_DIR / "data" / "byte_tokenizer"}
"""Name of a tokenizer in a recipe -> its folder."""


def required_ranges(lines: Sequence[str], extra: str = "") -> dict[str, str]:
    """Returns library -> required range from the `Requires-Dist` lines of the metadata: those of an extra, or
    without one those that every installation needs."""
    found = {}
    for line in lines:
        text, _, marker = line.partition(";")
        parts = re.fullmatch(r"\s*([\w.-]+)\s*(?:\[[^]]*])?\s*\(?([^)]*)\)?\s*", text)
        named = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", marker)
        if parts and (named[1] if named else "") == extra:
            found[parts[1]] = parts[2].strip()
    return found


def missing_libraries(extra: str) -> tuple[str, ...] | None:
    """Returns the libraries of an extra that are not installed; None if there is no such extra. Without an
    installation of the package itself, which lists them, the result is empty."""
    from importlib import metadata  # takes longer than everything else that most commands need

    try:
        required = required_ranges(metadata.requires("meshctl") or [], extra)
    except metadata.PackageNotFoundError:
        return ()
    return tuple(name for name in required if not _is_installed(name)) if required else None


def _is_installed(name: str) -> bool:
    from importlib import metadata

    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def install_command(extra: str) -> str:
    return f"pip install 'meshctl[{extra}]'"
