"""What the contract pins, and the comparison with what was found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent
CONTRACT_FILE = DATA / "contract.json"
CONTRACT: dict[str, Any] = json.loads(CONTRACT_FILE.read_text()) if CONTRACT_FILE.exists() else {}
MISTAKES: dict[str, Any] = yaml.safe_load((DATA / "mistakes.yaml").read_text())
COMPANIONS: dict[str, str] = MISTAKES.pop("companions")
"""The files that all examples of mistakes share."""

Json = Any


def missing(pinned: Json, found: Json, place: str = "") -> Iterator[str]:
    """Yields each entry of the contract that was not found. Lists are compared as sets."""
    if isinstance(pinned, dict):
        for key, value in pinned.items():
            inner = f"{place}.{key}" if place else str(key)
            if not isinstance(found, dict) or key not in found:
                yield inner
            else:
                yield from missing(value, found[key], inner)
    elif isinstance(pinned, list):
        yield from (
            f"{place}: {entry}" for entry in pinned if not isinstance(found, list) or entry not in found
        )
    elif pinned != found:
        yield f"{place}: {pinned!r} is now {found!r}"


def extended(pinned: Json, found: Json) -> Json:
    """Returns the contract with the new entries added."""
    if isinstance(pinned, dict) and isinstance(found, dict):
        keys = sorted({*pinned, *found})
        return {
            key: extended(pinned.get(key, found.get(key)), found.get(key, pinned.get(key))) for key in keys
        }
    if isinstance(pinned, list) and isinstance(found, list):
        return sorted({*pinned, *found})
    return pinned
