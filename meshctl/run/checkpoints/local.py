"""Checkpoints on the disk of a node (`run.checkpoint.local_dir`), on their way to the run directory.

    LOCAL_DIR/NAME/TIME-DIGEST/GROUP-RANK/step-N/...    the files of one worker, named as in the run directory

The digest is that of the path of the run directory, because runs of other directories may have the same name
and time. The files of a worker are deleted once they are copied. What a killed run leaves there is deleted by
the next checkpoint of the same worker, and is never resumed from: other nodes may lack their part.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.run.checkpoints.manifest import Described, digest
from meshctl.run.directory import RunDir

DIGEST_DIGITS = 8


def folder_of(local_dir: str, run: RunDir) -> Path:
    """Returns the folder of a run's checkpoints on this node."""
    path = run.path.resolve()
    digits = sha256(str(path).encode()).hexdigest()[:DIGEST_DIGITS]
    return Path(local_dir) / path.parent.name / f"{path.name}-{digits}"


def newest_uncopied(local_dir: str, run: RunDir) -> Path | None:
    """Returns the folder of a worker with the newest checkpoint that is still on the disk of this node; None
    if there is none."""
    found = {folder: _step_of(folder) for folder in folder_of(local_dir, run).glob("*/step-*")}
    return max(found, key=lambda folder: found[folder], default=None)


def warning_of_uncopied(local_dir: str, run: RunDir, step: int) -> str:
    """Returns one line about a checkpoint on the disk of this node that is newer than `step`, from which the
    run continues; empty if there is none."""
    newest = newest_uncopied(local_dir, run) if local_dir else None
    if newest is None or _step_of(newest) <= step:
        return ""
    where = f"continues from step {step}" if step else "starts from the beginning"
    return f"the checkpoint of step {_step_of(newest)} was not copied whole from {newest}, so the run {where}"


def _step_of(folder: Path) -> int:
    number = folder.name.removeprefix("step-")
    return int(number) if number.isdigit() else 0


@dataclass(frozen=True)
class LocalFolder:
    """The checkpoints of one worker on its node."""

    path: Path
    run: RunDir

    @classmethod
    def of(cls, local_dir: str, run: RunDir, group: str, rank: int) -> LocalFolder:
        return cls(folder_of(local_dir, run) / f"{group}-{rank}", run)

    def begin(self, step: int) -> Path:
        """Returns the folder of a checkpoint that is written now. Deletes what an earlier attempt left."""
        shutil.rmtree(self.path, ignore_errors=True)
        folder = self.path / f"step-{step}"
        with suppress(OSError):  # the first file that is written meets the same error, which is reported
            folder.mkdir(parents=True, mode=0o700)
        return folder

    def copy(self, step: int, files: Described) -> None:
        """Copies files to the run directory, and reads them there. Raises `OSError` with the path of a copy
        that cannot be written, or that has other bytes."""
        for name in files:
            copy = self.run.checkpoint(step) / name
            try:
                _copy(self.path / f"step-{step}" / name, copy)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(copy)) from error
            if digest(copy) != files[name]["sha256"]:
                raise OSError(errno.EIO, "the copy has other bytes than the file", str(copy))

    def end(self) -> None:
        """Deletes the files, and the folders of the run that are empty now."""
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in self._parents():
            with suppress(OSError):  # other workers still have files there
                folder.rmdir()

    def _parents(self) -> Iterator[Path]:
        yield self.path.parent
        yield self.path.parent.parent


def _copy(source: Path, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, copy)
    with copy.open("rb") as file:
        os.fsync(file.fileno())
