"""How the state of a component differs between its ranks, in a file of the checkpoint.

    step-N/COMPONENT/by_rank.json       {"document": {"dp": 2}, "values": {"loader.position": {"dp": 2}}}

A value that differs along dims can be resumed only where these dims keep their sizes. The launcher checks
this before it starts anything, and each worker before it loads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from meshctl.run.directory import write_whole
from meshctl.text.english import listed

FILE = "by_rank.json"
Sizes = Mapping[str, int]
"""Dim -> its size when the state was saved, in the order of the mesh."""


@dataclass(frozen=True)
class VaryingState:
    """The dims along which the state of a component differs. It is empty where all ranks have the same."""

    document: Sizes = field(default_factory=dict)
    """The dims along which the structure or any value that is not a tensor differs."""
    values: Mapping[str, Sizes] = field(default_factory=dict)
    """Name -> the dims along which this value differs between ranks that have it."""

    def write(self, folder: Path) -> None:
        write_whole(folder / FILE, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> VaryingState:
        """Raises `ValueError` where the file is damaged."""
        file = folder / FILE
        if not file.is_file():
            return cls()
        try:
            data = json.loads(file.read_text())
            values = {str(name): _sizes(sizes) for name, sizes in data["values"].items()}
            return cls(_sizes(data["document"]), values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} is damaged: {error}") from error

    def refusal(self, component: str, size: Callable[[str], int]) -> str:
        """Returns why the state cannot be loaded on a mesh with these sizes of dims; empty if it can."""
        changed = {name: _changed(sizes, size) for name, sizes in self.values.items()}
        lost = [name for name, sizes in changed.items() if sizes]
        if not lost:
            return ""
        saved = {dim: count for name in lost for dim, count in changed[name].items()}
        return (
            f"the state of `{component}` was saved with {_shown(saved)} and cannot be loaded with "
            f"{_shown({dim: size(dim) for dim in saved})}: {listed(lost)} "
            f"{'differ' if len(lost) > 1 else 'differs'} along {listed(saved)}"
        )


def _sizes(data: Mapping[str, int]) -> Sizes:
    return {str(dim): int(size) for dim, size in data.items()}


def _changed(sizes: Sizes, size: Callable[[str], int]) -> Sizes:
    return {dim: saved for dim, saved in sizes.items() if size(dim) != saved}


def _shown(sizes: Sizes) -> str:
    return " x ".join(f"{dim} {size}" for dim, size in sizes.items())
