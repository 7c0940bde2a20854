"""One run on disk. This module alone knows the paths below `runs/NAME/TIME/`, and it writes files atomically.

`docs/runs.md` describes the files that users read. The others:

plan-DIGEST.json             the plan of an attempt in which groups have fewer workers (`run.elastic`)
job.json                     the job to which the run was submitted (`Submission`)
job/                         what was submitted: the script, the manifests or the placement group
git.txt                      the commit and the branch of the recipe's repository, and whether it was changed
logs/ray.log                 the output of the driver in a Ray cluster
logs/tracker-NAME.log        the output of a tracker's process
media/step-N/STAGE.NAME...   what components log beside numbers (`media.py`)
trackers/                    files of trackers, and NAME.json with the run's id there
checkpoints/step-N/COMPONENT/, a position file GROUP.json per group, and `checkpoint.manifest.json`
checkpoints/damaged-step-N/  a damaged checkpoint of a step that ran again
trace/GROUP-RANK.profile.json                  with `run.trace.profiler`: the trace of torch's profiler
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.run.best import ScoredCheckpoint
from meshctl.run.reading import DAMAGED, decoded, text_of

SHIP_TO = "~/meshctl-runs"
"""The folder of runs on a node that does not share the launcher's one (`engine.NAME.ship`)."""
RUNS = "runs"
"""The folder in which a command finds a run by its name, if the user names no other one."""

LOCAL = "local"


@dataclass(frozen=True)
class EngineChoice:
    """The engine that a recipe chooses. `start.json` contains it, and the plan does not, so that a run can be
    continued on another engine."""

    name: str = LOCAL
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the engine, by key; plain data."""


@dataclass(frozen=True)
class Start:
    """The facts that a run's processes need in addition to the plan."""

    path: tuple[str, ...]
    """Folders that are searched for `_target_`s and programs before installed packages: the recipe's folder
    and the working directory."""
    attempt: int = 0
    resume: str = ""
    """The checkpoint folder to continue from; empty for a fresh start."""
    only: str = ""
    """The group that runs alone; empty for all of them."""
    replay: Mapping[str, str] = field(default_factory=dict)
    """Route -> the folder of its source's recording, for the routes that the plan replays."""
    after: int = 0
    """The step before the first one, where a recording begins later than step 1."""
    debug: str = ""
    """GROUP:RANK of the worker that is debugged; empty for none."""
    terminal: str = ""
    """The path of the terminal that this worker has as its standard streams."""
    engine: EngineChoice = EngineChoice()
    plan: str = ""
    """The name of the file of the attempt's plan; empty for `plan.json`, whose groups are whole."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Start:
        """Returns the start of its fields as plain data. Those that an older version has not written have
        their defaults. Raises `KeyError`, `TypeError` and `ValueError`."""
        replay = {str(route): str(folder) for route, folder in dict(data.get("replay", {})).items()}
        return cls(
            path=tuple(data["path"]),
            attempt=int(data["attempt"]),
            resume=str(data["resume"]),
            only=str(data.get("only", "")),
            replay=replay,
            after=int(data.get("after", 0)),
            debug=str(data.get("debug", "")),
            terminal=str(data.get("terminal", "")),
            engine=EngineChoice(**data.get("engine", {})),
            plan=str(data.get("plan", "")),
        )


NO_START = Start(())


class _Below:
    """A path below the run directory, as a property of `RunDir`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunDir, owner: object = None) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunDir:
    path: Path

    recipe = _Below("recipe.yaml")
    plan = _Below("plan.json")
    start = _Below("start.json")
    lock = _Below(".lock")
    head = _Below("head.json")
    token = _Below(".token")
    commands = _Below("commands.txt")
    job = _Below("job.json")
    submitted = _Below("job")
    ray_log = _Below("logs/ray.log")
    copied = _Below(".copied")
    state = _Below("state.json")
    launches = _Below("launches.jsonl")
    events = _Below("events")
    metrics = _Below("metrics.jsonl")
    lost_metrics = _Below("metrics.lost.jsonl")
    checkpoints = _Below("checkpoints")
    best = _Below("checkpoints/best.json")
    latest = _Below("checkpoints/latest")
    launcher_log = _Below("logs/launcher.log")
    media = _Below("media")
    git = _Below("git.txt")
    trackers = _Below("trackers")
    stalls = _Below("logs/stalls.log")
    trace = _Below("trace.json")

    @classmethod
    def create(cls, parent: Path, name: str, when: str) -> RunDir:
        """Makes the folder `parent/name/when`, for its owner alone. A second run in the same second gets
        `when-2`."""
        for count in range(1, 10_000):
            path = parent / name / (when if count == 1 else f"{when}-{count}")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return cls(path.resolve())
        raise FileExistsError(f"{parent / name} has 10,000 runs of {when}")

    @classmethod
    def of_plan(cls, plan: Path) -> RunDir:
        return cls(plan.resolve().parent)

    def plan_of(self, start: Start) -> Path:
        """Returns the file of the plan of an attempt."""
        return self.path / start.plan if start.plan else self.plan

    def smaller_plan(self, digest: str) -> Path:
        """Returns the file of a plan with fewer workers than that of the recipe."""
        return self.path / f"plan-{digest}.json"

    def journal(self, who: str) -> Path:
        """Returns the event file of a process. `who` is "launcher", "agent-GROUP-NODE" or "GROUP-RANK"."""
        return self.events / f"{who}.jsonl"

    def log(self, group: str, rank: int | str) -> Path:
        return self.path / "logs" / group / f"{rank}.log"

    def node_log(self, node: int) -> Path:
        """Returns the log file of a node process itself, which is usually empty."""
        return self.path / "logs" / ("fork-server.log" if node == 0 else f"fork-server-{node}.log")

    def tracker_log(self, name: str) -> Path:
        return self.path / "logs" / f"tracker-{name.replace(':', '.')}.log"

    def traced(self, group: str, rank: int) -> Path:
        """Returns the file of a worker's trace."""
        return self.path / "trace" / f"{group}-{rank}.jsonl"

    def profile(self, group: str, rank: int) -> Path:
        return self.path / "trace" / f"{group}-{rank}.profile.json"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step}"

    def recorded(self, stage: str) -> Recorded:
        return Recorded(self.path / "recorded" / stage)

    def forget_parts(self) -> None:
        """Deletes the files that earlier processes of the run did not finish: they were killed."""
        for part in self.path.rglob(".*"):
            if re.fullmatch(r"\..+\.(\d+|part)", part.name) and part.is_file():
                part.unlink()

    def forget_recorded(self, after: int) -> None:
        """Deletes the recordings of later steps before these run again, perhaps on other ranks."""
        for stage in (self.path / "recorded").glob("*"):
            for folder in Recorded(stage).folders(after):
                shutil.rmtree(folder)

    def write_start(self, start: Start) -> None:
        write_whole(self.start, start.to_json())

    def read_start(self) -> Start:
        """Raises `ValueError` if `start.json` is damaged."""
        file = self.start
        try:
            return Start.from_json(decoded(text_of(file)))
        except FileNotFoundError:
            raise
        except (OSError, *DAMAGED) as error:
            raise ValueError(f"{file} is damaged: {error}") from error

    def saved(self) -> int:
        """Returns the step of the checkpoint that was published last, which is the text of the link
        `latest`; 0 if there is none. The link is not followed."""
        try:
            found = re.fullmatch("step-([0-9]{1,15})", os.readlink(self.latest))
        except OSError:
            return 0
        return int(found[1]) if found else 0

    def publish_checkpoint(self, step: int) -> None:
        """Makes the checkpoint of `step` the latest, in one rename. Raises `OSError`."""
        link = self.checkpoints / ".latest"
        link.unlink(missing_ok=True)
        link.symlink_to(self.checkpoint(step).name)
        link.rename(self.latest)

    def prune_checkpoints(self, latest: int, keep: int, exempt: Collection[int] = ()) -> None:
        """Deletes the checkpoints of the steps up to `latest` except the newest `keep` and those of the steps
        `exempt`."""
        names = [path.name.removeprefix("step-") for path in self.checkpoints.glob("step-*")]
        steps = sorted(int(name) for name in names if name.isdigit() and int(name) <= latest)
        for step in steps[:-keep]:
            if step not in exempt:
                shutil.rmtree(self.checkpoint(step), ignore_errors=True)

    def write_best(self, metric: str, mode: str, checkpoints: Sequence[ScoredCheckpoint]) -> None:
        """Writes the best checkpoints to `best.json`, the best first, each with the name of its folder beside
        the file."""
        listed = [{"checkpoint": self.checkpoint(one.step).name, **asdict(one)} for one in checkpoints]
        data = {"on": metric, "mode": mode, "checkpoints": listed}
        write_whole(self.best, json.dumps(data, indent=2) + "\n")

    def read_best(self) -> tuple[str, list[ScoredCheckpoint]]:
        """Returns the metric and the best checkpoints that are there, the best first; an empty text and list
        where `best.json` does not exist or is damaged."""
        try:
            data = decoded(text_of(self.best))
            scored = [
                ScoredCheckpoint(int(one["step"]), float(one["value"]), int(one["value_step"]))
                for one in data["checkpoints"]
            ]
            metric = str(data["on"])
        except (OSError, *DAMAGED):
            return "", []
        return metric, [one for one in scored if self.checkpoint(one.step).is_dir()]


@dataclass(frozen=True)
class Recorded:
    """The recorded values of one stage: a folder per step with a file per producer."""

    path: Path

    def file(self, step: int, producer: int, producers: int) -> Path:
        return self.path / f"step-{step}" / f"{producer}-of-{producers}.safetensors"

    def files(self, step: int) -> tuple[Path, ...]:
        """Returns the files of a step by producer; none if a producer has not written its file."""
        folder = self.path / f"step-{step}"
        names = set(os.listdir(folder)) if folder.is_dir() else set[str]()
        first_files = (re.fullmatch(r"0-of-(\d{1,7})\.safetensors", name) for name in names)
        for producers in sorted({int(found[1]) for found in first_files if found}):
            files = tuple(self.file(step, producer, producers) for producer in range(producers))
            if all(file.name in names for file in files):
                return files
        return ()

    def folders(self, after: int = 0) -> dict[Path, int]:
        """Returns the folders of the steps after `after`, each with its step."""
        numbers = {folder: folder.name.removeprefix("step-") for folder in self.path.glob("step-*")}
        return {
            folder: int(number)
            for folder, number in numbers.items()
            if re.fullmatch("[0-9]{1,15}", number) and int(number) > after
        }

    def steps(self) -> list[int]:
        """Returns the steps for which the files of all producers exist, in rising order."""
        return sorted(step for step in self.folders().values() if self.files(step))


def write_whole(path: Path, content: str | bytes, private: bool = False) -> None:
    """Writes a temporary file and renames it, so that a reader sees the old file or the new one, never a
    part.

    With `private` only the owner may read the file, from its first byte on. An `OSError` has the path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replaced(path) as part:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
            with open(descriptor, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yields the path of a file that replaces another one at the end. It is deleted if it cannot be
    written."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    try:
        yield part
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


Phase = Literal["queued", "running", "ended"]


@dataclass(frozen=True)
class Submission:
    engine: str
    job: str
    """The name of the job, as the scheduler knows it."""
    submitted: float
    """The time at which it was submitted, or queued again, in seconds since the epoch."""

    @classmethod
    def of(cls, run: RunDir) -> Submission | None:
        """Returns the job of a run; None for a run without one, or if the file is damaged."""
        try:
            data = decoded(text_of(run.job))
            return cls(str(data["engine"]), str(data["job"]), float(data["submitted"]))
        except (OSError, *DAMAGED):
            return None

    def write(self, run: RunDir) -> None:
        """Raises `OSError`."""
        write_whole(run.job, json.dumps(asdict(self)) + "\n")


@dataclass(frozen=True)
class JobState:
    """The state of a job, according to its scheduler."""

    name: str
    """The job in messages, e.g. "Slurm job 123"."""
    phase: Phase
    text: str = ""
    """The scheduler's own words, e.g. "PENDING (Resources)"; empty if it does not know the job any more."""
    submitted: float = 0.0
    cause: str = ""
    """The reason that the scheduler, or somebody, has ended a part of the job; empty if it is unknown."""


AskJob = Callable[[RunDir], JobState | None]
"""Returns the state of the job of a run; None without a job, or if the scheduler does not answer."""


def unasked(run: RunDir) -> JobState | None:
    """Asks nobody."""
    return None
