"""The manifest of a checkpoint: the sizes and digests of all its files. It is the last file of a checkpoint
to be written, so a checkpoint with a manifest is complete.

    step-N/checkpoint.manifest.json     (a group cannot have this name, so it is no position file)

    {"format": 1, "step": N, "version": of meshctl,
     "files": {PATH: {"size": bytes, "sha256": hexadecimal}}, "plan": facts of the plan (`plan.resume_facts`)}

Each worker describes the files that it has written in its `saved` event, and the supervisor writes the
manifest once all workers have saved.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path, PurePosixPath
from sys import maxsize
from typing import Any

from meshctl import __version__
from meshctl.dataclass import dataclass
from meshctl.run.directory import write_whole
from meshctl.run.reading import DAMAGED, decoded, descriptor, text_of

FILE = "checkpoint.manifest.json"
FORMAT = 1
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
    version: str = __version__
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
