"""The file of a checkpoint that describes how the state of a component differs between its ranks.

    step-N/COMPONENT/by_rank.json

    {"mesh": {"dp": 2, "tp": 2, ...}, "document": ["dp"], "values": {"loader.position": ["dp"]}}

A value that differs along dims can be loaded only if these dims keep their sizes. The launcher checks this
before it starts a process, and each worker before it loads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.run.directory import write_whole
from meshctl.run.reading import DAMAGED, decoded, text_of
from meshctl.text.english import listed
from meshctl.topology.mesh import DeviceMesh

FILE = "by_rank.json"
Dims = tuple[str, ...]
Sizes = Mapping[str, int]
VIEWS: Mapping[str, Dims] = {
    "ulysses": ("dp", "fsdp"),
    "ep": ("dp", "fsdp", "cp", "tp"),
    "etp": ("dp", "fsdp", "cp", "tp"),
    "vpp": ("pp",),
}
"""View -> the dims whose ranks it divides. Its size decides which of these ranks have the same data, experts
or layers."""


@dataclass(frozen=True)
class VaryingState:
    """The dims along which the state of a component differs. It is empty if all ranks have the same state."""

    mesh: Sizes = field(default_factory=dict)
    """Dim or view -> its size when the state was saved."""
    document: Dims = ()
    """The dims along which the structure or any value that is not a tensor differs."""
    values: Mapping[str, Dims] = field(default_factory=dict)
    """Name -> the dims along which this value differs between ranks that have it."""

    @classmethod
    def of(cls, mesh: DeviceMesh, document: Dims, values: Mapping[str, Dims]) -> VaryingState:
        return cls(sizes_of(mesh), document, values) if document or values else cls()

    def write(self, folder: Path) -> None:
        """Writes the file. If all ranks have the same state, deletes the file of an earlier attempt
        instead."""
        if self.document or self.values:
            write_whole(folder / FILE, json.dumps(asdict(self), indent=2) + "\n")
        else:
            (folder / FILE).unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path) -> VaryingState:
        """Reads the file; returns an empty state if there is none. Raises `ValueError` if it is damaged."""
        file = folder / FILE
        if not os.path.lexists(file):
            return cls()
        try:
            data = decoded(text_of(file))
            sizes = {str(dim): int(size) for dim, size in data["mesh"].items()}
            values = {str(name): _dims(dims, sizes) for name, dims in data["values"].items()}
            return cls(sizes, _dims(data["document"], sizes), values)
        except (OSError, *DAMAGED) as error:
            raise ValueError(f"{file} is damaged: {error}") from error

    def changed(self, dims: Dims, mesh: DeviceMesh) -> Sizes:
        """Returns dim or view -> its saved size, for those of `dims`, and of the views that divide them,
        which have another size in `mesh`."""
        now = sizes_of(mesh)
        views = [view for view, divided in VIEWS.items() if {*divided} & {*dims}]
        return {
            name: self.mesh.get(name, 1) for name in (*dims, *views) if self.mesh.get(name, 1) != now[name]
        }

    def refusal(self, component: str, mesh: DeviceMesh) -> str:
        """Returns why the state cannot be loaded on a mesh; empty if it can."""
        lost = {name: dims for name, dims in self.values.items() if self.changed(dims, mesh)}
        if not lost:
            return ""
        along = tuple(dict.fromkeys(dim for dims in lost.values() for dim in dims))
        saved = self.changed(along, mesh)
        now = {name: sizes_of(mesh).get(name, 1) for name in saved}
        verb = "differs" if len(lost) == 1 else "differ"
        return (
            f"the state of `{component}` was saved with {_shown(saved)} and cannot be loaded with "
            f"{_shown(now)}: {listed(lost)} {verb} along {listed(along)}"
        )


def sizes_of(mesh: DeviceMesh) -> dict[str, int]:
    """Returns dim or view -> size."""
    dims = {dim: mesh.size(dim) for dim in mesh.mesh_dim_names}
    views = {"ulysses": mesh.ulysses_size, "ep": mesh.ep_size, "etp": mesh.etp_size, "vpp": mesh.vpp_size}
    return dims | views


def _dims(names: Iterable[str], sizes: Sizes) -> Dims:
    """Raises `ValueError` for a dim that the mesh did not have."""
    if unknown := [name for name in names if name not in sizes]:
        raise ValueError(f"it has no size of {listed(map(str, unknown))}")
    return tuple(names)


def _shown(sizes: Sizes) -> str:
    return " x ".join(f"{name} {size}" for name, size in sizes.items())
