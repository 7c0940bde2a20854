"""One run on disk: the one owner of every path below `runs/NAME/TIME/`, and of writes that are whole or not
there.

recipe.yaml     as composed; `${oc.env:X}` stays as written, so no secret is in it
plan.json       the plan, and nothing that only the start knows
                (where a secret is written out in a recipe all the same, both must have it, and only their
                owner may read them)
start.json      what only the start knows: where the recipe's code is found, which attempt this is, what it
                resumes
events/         JSON lines, a file per process
metrics.jsonl   one object per step
logs/GROUP/RANK.log
checkpoints/step-N/COMPONENT/, and `latest`, a link that is renamed into place last
recorded/STAGE/step-N/K-of-M.safetensors      what each speaker of a stage gave, where `run.record` says so
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Start:
    """What a run's processes must know beside the plan."""

    path: tuple[str, ...]
    """Folders in which `_target_`s and programs are found before what is installed: the recipe's own, the
    working directory."""
    attempt: int = 0
    resume: str = ""
    """The checkpoint folder to continue from; empty for a fresh start."""
    only: str = ""
    """The group that runs alone; empty for all of them."""
    replay: Mapping[str, str] = field(default_factory=dict)
    """Route -> the folder of its source's recording, where the plan says that it is replayed."""
    after: int = 0
    """The step before the first, where a recording begins late."""


@dataclass(frozen=True)
class RunDir:
    path: Path

    @classmethod
    def create(cls, parent: Path, name: str, when: str) -> RunDir:
        """A new folder `parent/name/when`; a second run in the same second gets `when-2`."""
        for count in range(1, 10_000):
            path = parent / name / (when if count == 1 else f"{when}-{count}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            return cls(path.resolve())
        raise FileExistsError(f"{parent / name} has 10,000 runs of {when}")

    @classmethod
    def of_plan(cls, plan: Path) -> RunDir:
        return cls(plan.resolve().parent)

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def latest(self) -> Path:
        return self.checkpoints / "latest"

    def journal(self, who: str) -> Path:
        """`who` is "launcher", "agent-GROUP-NODE" or "GROUP-RANK"."""
        return self.events / f"{who}.jsonl"

    def log(self, group: str, rank: int | str) -> Path:
        return self.path / "logs" / group / f"{rank}.log"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step}"

    def recorded(self, stage: str) -> Recorded:
        return Recorded(self.path / "recorded" / stage)

    def forget_recorded(self, after: int) -> None:
        """Deletes what was recorded of later steps, before they are run anew: maybe by other ranks."""
        for stage in (self.path / "recorded").glob("*"):
            for folder in Recorded(stage).folders(after):
                shutil.rmtree(folder)

    def write_start(self, start: Start) -> None:
        write_whole(self.path / "start.json", json.dumps(asdict(start), indent=2) + "\n")

    def read_start(self) -> Start:
        """Raises `ValueError` where `start.json` is damaged."""
        path = self.path / "start.json"
        try:
            data: dict[str, Any] = json.loads(path.read_text())
            replay = {str(route): str(folder) for route, folder in dict(data.get("replay", {})).items()}
            only, after = str(data.get("only", "")), int(data.get("after", 0))
            return Start(tuple(data["path"]), int(data["attempt"]), str(data["resume"]), only, replay, after)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error

    def saved(self) -> int:
        """The step of the latest checkpoint; 0 where there is none."""
        return int(self.latest.resolve().name.removeprefix("step-")) if self.latest.is_dir() else 0

    def publish_checkpoint(self, step: int, keep: int) -> None:
        """Makes `step` the latest, in one rename, and then deletes all but the newest `keep`."""
        link = self.checkpoints / ".latest"
        link.unlink(missing_ok=True)
        link.symlink_to(self.checkpoint(step).name)
        link.rename(self.latest)
        names = [path.name.removeprefix("step-") for path in self.checkpoints.glob("step-*")]
        steps = sorted(int(name) for name in names if name.isdigit())
        for old in [other for other in steps if other <= step][:-keep]:
            shutil.rmtree(self.checkpoint(old), ignore_errors=True)


@dataclass(frozen=True)
class Recorded:
    """What the speakers of one stage gave: a folder per step, and in it a file per speaker."""

    path: Path

    def file(self, step: int, speaker: int, speakers: int) -> Path:
        return self.path / f"step-{step}" / f"{speaker}-of-{speakers}.safetensors"

    def files(self, step: int) -> tuple[Path, ...]:
        """Of a step that all its speakers have written, in their order; none of another."""
        folder = self.path / f"step-{step}"
        names = set(os.listdir(folder)) if folder.is_dir() else set[str]()
        for speakers in sorted(
            {int(found[1]) for name in names if (found := re.fullmatch(r"0-of-(\d{1,7})\.safetensors", name))}
        ):
            files = tuple(self.file(step, speaker, speakers) for speaker in range(speakers))
            if all(file.name in names for file in files):
                return files
        return ()

    def folders(self, after: int = 0) -> dict[Path, int]:
        """Those of later steps, and which these are."""
        numbers = {folder: folder.name.removeprefix("step-") for folder in self.path.glob("step-*")}
        return {
            folder: int(number)
            for folder, number in numbers.items()
            if re.fullmatch("[0-9]{1,15}", number) and int(number) > after
        }

    def steps(self) -> list[int]:
        """Those that all their speakers have written, rising."""
        return sorted(step for step in self.folders().values() if self.files(step))


def write_whole(path: Path, text: str, private: bool = False) -> None:
    """Writes beside the place and renames into it: a reader sees the old file or the new one, never half.

    `private`: nobody but its owner may read it, from the first byte on.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    if private:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    part.write_text(text, encoding="utf-8")
    part.rename(path)
