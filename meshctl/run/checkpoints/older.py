"""Finds missing and cut files in checkpoints of versions without manifests.

The metadata of torch.distributed.checkpoint lists the parts of each file. torch pickles it; it is read here
without torch, by an unpickler that makes an empty object of every class and so runs no code from the file.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshctl.run.reading import bytes_of, decoded, text_of


def is_older(folder: Path) -> bool:
    """Returns whether a version without manifests wrote the checkpoint: its position files have no format."""
    positions = [_json(path) for path in folder.glob("*.json")]
    return any("given" in found and "format" not in found for found in positions)


def missing_part(folder: Path, plan: Path) -> str:
    """Returns a file that is missing, cut or damaged, with its path; empty if the checkpoint is complete.
    `plan` is the file of the plan whose run wrote it."""
    given: set[str] = set()
    for path in sorted(folder.glob("*.json")):
        if not (found := _json(path)):
            return f"{path} is damaged"
        given |= set(found.get("given", {}))
    for group, source in _sources(_json(plan)):
        if source not in given:
            return f"{folder / group}.json is missing: it has the position of source `{source}`"
    components = sorted(path for path in folder.iterdir() if path.is_dir())
    return next(filter(None, map(_missing_of_component, components)), "")


def _sources(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the group and the name of each source of a plan."""
    group_of = {component["name"]: component["group"] for component in plan.get("components", ())}
    for stage in plan.get("stages", ()):
        is_called = stage.get("kind") == "call" and not stage.get("inputs")
        if is_called and not stage.get("without_data") and not stage.get("block"):
            yield group_of[stage["component"]], stage["name"]


def _missing_of_component(folder: Path) -> str:
    path = folder / ".metadata"
    try:
        metadata = _Unpickler(io.BytesIO(bytes_of(path))).load()
        parts = [vars(part) for part in metadata.storage_data.values()]
        ends = [(folder / part["relative_path"], part["offset"] + part["length"]) for part in parts]
    except FileNotFoundError:
        return f"{path} is missing"
    except Exception as error:  # a damaged pickle raises anything
        return f"{path} is damaged: {type(error).__name__}"
    for file, end in ends:
        if not file.is_file():
            return f"{file} is missing"
        if file.stat().st_size < end:
            return f"{file} has {file.stat().st_size} bytes and was written with at least {end}"
    return ""


class _Stub:
    """Stands for an object of any class."""

    def __init__(self, *args: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            vars(self).update(state)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Stub]:
        return _Stub


def _json(path: Path) -> dict[str, Any]:
    """Returns the mapping of a JSON file; an empty one if there is none."""
    try:
        data = decoded(text_of(path))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
