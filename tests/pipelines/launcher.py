"""Launches recipes in real processes, and reads what the runs left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from meshctl.plan.model import Plan
from meshctl.run import checkpoints
from meshctl.run.directory import RunDir
from meshctl.run.events import Follower
from meshctl.run.metrics import read as read_rows
from tests.command_server import call
from tests.paths import ROOT
from tests.pipelines.calls import Called, Worker
from tests.pipelines.model import Saved
from tests.pipelines.run import Ran, by_worker

IMPORTS = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tests.pipelines.parts"
"""Executed in the launcher, so that it finds the components, and that workers need not import them."""


def launch(folder: Path, recipe: Path, overrides: Sequence[str] = ()) -> Ran:
    """Runs a recipe, or continues a run, to its end. All files are in `folder`."""
    done = call(folder, "launch", str(recipe), *overrides, env={"OMP_NUM_THREADS": "1"}, program=IMPORTS)
    output = done.stdout + done.stderr
    if done.returncode:
        assert done.returncode in (1, 4, 5), f"exit code {done.returncode}: {output}"
        return Ran(fault=output, seen=seen_in(run_of(folder, recipe)) if done.returncode == 5 else {})
    return _ran(run_of(folder, recipe))


def run_of(folder: Path, recipe: Path) -> Path:
    """The folder of a run that has ended: `recipe` is the folder of a run that was continued, or a recipe."""
    return recipe if recipe.is_dir() else newest(folder)


def seen_in(folder: Path) -> Mapping[Worker, Sequence[Called]]:
    """Returns the records of the components in the last attempt."""
    run = RunDir(folder)
    return by_worker(taken_records(run), Plan.read(run.plan))


def _ran(folder: Path) -> Ran:
    """What the last attempt of a run left in its folder."""
    run = RunDir(folder)
    events = list(Follower(run.events).new())
    attempts = [event.time for event in events if event.name == "launched"]
    own = [event for event in events if event.time >= max(attempts)]
    [last] = {event.step for event in own if event.name == "done"}
    [over] = [event for event in own if event.name == "over"]
    rows = {row.pop("step"): row for row in read_rows(run.metrics)}
    metrics = {
        step: {key: value for key, value in row.items() if key != "time"} for step, row in rows.items()
    }
    plan = Plan.read(run.plan)
    checkpoint = plan.run.checkpoint
    return Ran(
        "",
        last or 0,
        over.value["reason"],
        seen_in(folder),
        metrics,
        [(one.step, one.value, one.value_step) for one in run.read_best()[1]],
        checkpoints_of(run, {event.step for event in events if event.name == "checkpoint"}),
        checkpoint.keep if checkpoint else 0,
        folder,
    )


def newest(folder: Path) -> Path:
    return max(folder.glob("runs/*/*"), key=lambda path: path.stat().st_mtime_ns)


def taken_records(run: RunDir) -> list[Any]:
    """Returns the records of the components in the last attempt, and removes their files."""
    files = sorted((run.path / "seen").glob("*.jsonl"))
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    for file in files:
        file.unlink()
    return records


def checkpoints_of(run: RunDir, published: Set[int | None]) -> list[Saved]:
    """The checkpoints that were kept. Their states are not read here."""
    found = []
    for path in run.path.glob("checkpoints/step-*"):
        files = [file for file in path.glob("*.json") if file.name != checkpoints.FILE]
        given = [json.loads(file.read_text())["given"] for file in files]
        positions = {source: count for one in given for source, count in one.items()}
        found.append(Saved(int(path.name.removeprefix("step-")), positions))
    return sorted((one for one in found if one.step in published), key=lambda one: one.step)
