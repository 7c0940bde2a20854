"""Finds the checkpoint from which a run continues: the newest one whose files are as they were written.

    found = newest_whole_checkpoint(run)           # at a launch, and before each further attempt
    found.path, found.step, found.warning

The link `latest` is never followed; only its text is read, which states which checkpoint was published last.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.run.checkpoints.manifest import FILE as MANIFEST
from meshctl.run.checkpoints.manifest import Manifest
from meshctl.run.directory import RunDir

STEP = re.compile(r"step-([0-9]{1,15})")
DAMAGED = "damaged-"
"""The prefix of the name under which a damaged checkpoint is kept when its step is run again."""

BEFORE_MANIFESTS = "it is incomplete, or older than meshctl 0.1.0, the last version that reads such a one"


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
        return f"{folder} has no manifest: {BEFORE_MANIFESTS}" if step <= published else None
    except ValueError as error:
        return str(error)
    if manifest.step != step:
        return f"{folder / MANIFEST} is of step {manifest.step}"
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
        if later > step and (later <= published or (folder / MANIFEST).exists()):
            kept = folder.with_name(f"{DAMAGED}{folder.name}")
            shutil.rmtree(kept, ignore_errors=True)
            folder.rename(kept)
        elif later > step:
            shutil.rmtree(folder)
    if published > step:
        run.publish_checkpoint(step) if step else run.latest.unlink(missing_ok=True)
