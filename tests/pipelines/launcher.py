"""Launches recipes in real processes: one process imports torch once and forks a launcher for each line it reads.

stdin    {"folder": PATH, "recipe": PATH or the folder of a run, "overrides": [...]}
stdout   {"code": n}, when the run is over; what the launcher prints is in PATH/out
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.events import Follower
from meshctl.run.metrics import read as read_rows
from tests.paths import ROOT
from tests.pipelines.model import Saved
from tests.pipelines.run import Ran, by_worker


class Launcher:
    """The process that launches."""

    def __init__(self, folder: Path) -> None:
        """All files are in `folder`."""
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipelines.launcher"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def close(self) -> None:
        self._process.communicate(timeout=60)  # the end of its input ends the process

    def launch(self, recipe: Path, overrides: Sequence[str] = ()) -> Ran:
        """Runs a recipe, or continues a run, to its end."""
        request = {"folder": str(self._folder), "recipe": str(recipe), "overrides": list(overrides)}
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        code = json.loads(self._process.stdout.readline())["code"]
        if code:
            assert code in (1, 4, 5), f"exit code {code}: {(self._folder / 'out').read_text()}"
            return Ran(fault=(self._folder / "out").read_text())
        return self._ran(recipe if recipe.is_dir() else newest(self._folder))

    def _ran(self, folder: Path) -> Ran:
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
            by_worker(taken_records(run), plan),
            metrics,
            checkpoints_of(run, {event.step for event in events if event.name == "checkpoint"}),
            checkpoint.keep if checkpoint else 0,
            folder,
        )


def newest(folder: Path) -> Path:
    return max(folder.glob("runs/*/*"), key=lambda path: path.stat().st_mtime_ns)


def taken_records(run: RunDir) -> list[Any]:
    """What the components of the last attempt recorded. The files are removed, for the next attempt."""
    files = sorted((run.path / "seen").glob("*.jsonl"))
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    for file in files:
        file.unlink()
    return records


def checkpoints_of(run: RunDir, published: Set[int | None]) -> list[Saved]:
    """The checkpoints that were kept. Their states are not read here."""
    found = []
    for path in run.path.glob("checkpoints/step-*"):
        given = [json.loads(file.read_text())["given"] for file in path.glob("*.json")]
        positions = {source: count for one in given for source, count in one.items()}
        found.append(Saved(int(path.name.removeprefix("step-")), positions))
    return sorted((saved for saved in found if saved.step in published), key=lambda saved: saved.step)


def main() -> None:
    from meshctl.cli import launch

    launch.import_torch()
    import meshctl.runtime.checkpoint  # noqa: F401
    import tests.pipelines.parts  # noqa: F401

    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
            print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)
            continue
        os.setsid()
        folder = Path(request["folder"])
        os.chdir(folder)
        out = os.open(folder / "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        code = 70
        try:
            code = launch.launch(request["recipe"], request["overrides"])
        finally:
            sys.stdout.flush()
            os._exit(code)


if __name__ == "__main__":
    main()
