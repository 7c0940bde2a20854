"""The manifest of a checkpoint, and the checkpoint from which a run continues: the newest one whose files are
as they were written.

    step-N/checkpoint.manifest.json     (a group cannot have this name, so it is no position file)

    {"format": 1, "step": N, "version": of meshctl,
     "files": {PATH: {"size": bytes, "sha256": hexadecimal}}, "plan": facts of the plan (`facts_of`)}

Each worker describes the files that it has written in its `saved` event, and the supervisor writes the
manifest once all workers have saved. It is the last file to be written, so a checkpoint with a manifest is
complete.

    found = newest_whole_checkpoint(run)           # at a launch, and before each further attempt
    found.path, found.step, found.warning

The link `latest` is never followed; only its text is read, which states which checkpoint was published last.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from pathlib import Path, PurePosixPath
from sys import maxsize
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.package import OUR_VERSION
from meshctl.run.directory import RunDir, write_whole
from meshctl.run.reading import DAMAGED, decoded, descriptor, text_of
from meshctl.text.english import listed
from meshctl.topology.mesh import DeviceMesh

FILE = "checkpoint.manifest.json"
FORMAT = 1
STEP = re.compile(r"step-([0-9]{1,15})")
KEPT = "damaged-"
"""The prefix of the name under which a damaged checkpoint is kept when its step is run again."""
PASSES = ".passes"
"""The end of the name of a folder with ready passes of a take block. The name of a component has no dot."""
MAX_THREADS = 16
"""The number of files of which digests are computed at the same time, at most. hashlib releases the GIL."""

CHUNK_BYTES = 8 << 20
"""Bytes that are read at once. They are many, because a thread beside training may wait 5 ms for the
interpreter's lock after each call."""

Described = Mapping[str, Mapping[str, Any]]
"""Path below the checkpoint's folder -> `size` in bytes, and `sha256`."""


@dataclass(frozen=True)
class Manifest:
    step: int
    files: Described
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the plan whose run wrote the checkpoint, as plain data."""
    version: str = OUR_VERSION
    """The version of meshctl that wrote it."""

    def write(self, folder: Path, private: bool = False) -> None:
        """Writes the manifest. With `private` only its owner may read it. Raises `OSError`."""
        data = {"format": FORMAT, "step": self.step, "version": self.version}
        data |= {"files": dict(self.files), "plan": dict(self.plan)}
        write_whole(folder / FILE, json.dumps(data, indent=1) + "\n", private)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises `ValueError` with the name of the file if it is damaged or of a newer format, and
        `FileNotFoundError` if there is none."""
        path = folder / FILE
        try:
            data = decoded(text_of(path))
            if int(data["format"]) > FORMAT:
                raise ValueError(f"it has format {data['format']} of meshctl {data['version']}")
            files = {_checked(name): dict(facts) for name, facts in data["files"].items()}
            return cls(int(data["step"]), files, dict(data["plan"]), str(data["version"]))
        except FileNotFoundError:
            raise
        except (OSError, *DAMAGED) as error:
            raise ValueError(f"{path} is damaged: {error}") from error

    def damage(self, folder: Path) -> str:
        """Returns the first file that is not as it was written, with its path, and how it differs; empty if
        all files are whole. It reads every file."""
        from concurrent.futures import ThreadPoolExecutor  # `validate` imports this module, and not logging

        names = sorted(self.files)
        for name in names:
            if found := _wrong_size(folder / name, self.files[name].get("size")):
                return found
        with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
            digests = pool.map(lambda name: digest(folder / name), names)
            for name, found in zip(names, digests, strict=True):
                if found != self.files[name].get("sha256"):
                    return f"{folder / name} has other bytes than were written"
        return ""


def describe(folder: Path, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Returns the sizes and digests of files below a checkpoint's folder."""
    return {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": digest(path)}
        for path in paths
    }


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal; empty if it cannot be read."""
    try:
        with os.fdopen(descriptor(path, maxsize), "rb", buffering=0) as file:
            size = min(os.fstat(file.fileno()).st_size + 1, CHUNK_BYTES)
            found, buffer = hashlib.sha256(), memoryview(bytearray(size))
            while count := file.readinto(buffer):
                found.update(buffer[:count])
            return found.hexdigest()
    except OSError:
        return ""


def _wrong_size(path: Path, expected: object) -> str:
    try:
        size = path.lstat().st_size
    except OSError as error:
        return f"{path} is missing" if isinstance(error, FileNotFoundError) else f"{path}: {error.strerror}"
    return "" if size == expected else f"{path} has {size} bytes and was written with {expected}"


def _checked(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} is outside of the checkpoint")
    return name


class NoWholeCheckpoint(Exception):
    """There are checkpoints, and none is whole. The message names the damaged files."""


@dataclass(frozen=True)
class WholeCheckpoint:
    """The newest whole checkpoint of a run; without a path if the run has no checkpoint."""

    path: Path | None = None
    step: int = 0
    warning: str = ""
    """One line that names the damaged files and both steps, if a newer checkpoint is damaged."""


def newest_whole_checkpoint(run: RunDir) -> WholeCheckpoint:
    """Returns the newest checkpoint that is whole, after reading all its files. A checkpoint that a run did
    not finish to write is no checkpoint. Raises `NoWholeCheckpoint` if there are others and none is whole."""
    published, damaged = run.saved(), dict[int, str]()
    for step in sorted(steps_of(run), reverse=True):
        reason = damage(run, step, published)
        if reason == "":
            return WholeCheckpoint(run.checkpoint(step), step, _warning(damaged, step))
        if reason is not None:
            damaged[step] = reason
    if damaged:
        what = "the checkpoint" if len(damaged) == 1 else "each checkpoint"
        raise NoWholeCheckpoint(f"{what} of {run.path} is damaged: {'; '.join(damaged.values())}")
    return WholeCheckpoint()


def damage(run: RunDir, step: int, published: int) -> str | None:
    """Returns how a checkpoint is damaged, with the path of a file; empty if it is whole, and None if it was
    never finished. `published` is the step to which `latest` points; 0 if that is unknown."""
    folder = run.checkpoint(step)
    try:
        manifest = Manifest.read(folder)
    except FileNotFoundError:
        why = "it is incomplete, or older than meshctl 0.1.0, the last version that reads such a one"
        return f"{folder} has no manifest: {why}" if step <= published else None
    except ValueError as error:
        return str(error)
    if manifest.step != step:
        return f"{folder / FILE} is of step {manifest.step}"
    return manifest.damage(folder)


def _warning(damaged: dict[int, str], step: int) -> str:
    if not damaged:
        return ""
    steps = " and ".join(map(str, damaged))
    is_one = len(damaged) == 1
    what = f"checkpoint of step {steps} is" if is_one else f"checkpoints of steps {steps} are"
    return f"the {what} damaged, so the run continues from that of step {step}: {'; '.join(damaged.values())}"


def steps_of(run: RunDir) -> set[int]:
    """Returns the steps of all folders of checkpoints, whole or not."""
    folders = run.checkpoints.iterdir() if run.checkpoints.is_dir() else ()
    found = {STEP.fullmatch(one.name) for one in folders if one.is_dir() and not one.is_symlink()}
    return {int(name[1]) for name in found if name}


def clear_later(run: RunDir, step: int) -> None:
    """Makes room for the checkpoints after `step`, which the run writes again. Those that were published are
    renamed to `damaged-step-N`; what was never finished is deleted. Raises `OSError`."""
    published = run.saved()
    for later in steps_of(run):
        folder = run.checkpoint(later)
        if later > step and (later <= published or (folder / FILE).exists()):
            kept = folder.with_name(f"{KEPT}{folder.name}")
            shutil.rmtree(kept, ignore_errors=True)
            folder.rename(kept)
        elif later > step:
            shutil.rmtree(folder)
    if published > step:
        run.publish_checkpoint(step) if step else run.latest.unlink(missing_ok=True)


BY_RANK = "by_rank.json"
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
            write_whole(folder / BY_RANK, json.dumps(asdict(self), indent=2) + "\n")
        else:
            (folder / BY_RANK).unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path) -> VaryingState:
        """Reads the file; returns an empty state if there is none. Raises `ValueError` if it is damaged."""
        file = folder / BY_RANK
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
