"""GRPO with an elastic trainer and two groups that restart alone, of which something is killed or stopped every
20 s for `MESHCTL_CHAOS_S` seconds (ten minutes where it is not set): the run makes progress, its rewards end where
those of an undisturbed run do, and it leaves nothing."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from processes import alive, family, litter, name_of, wait

from meshctl.run.directory import RunDir
from meshctl.run.events import Event, events_of
from meshctl.run.metrics import Row, read
from tests.paths import ROOT

CHAOS_S = float(os.environ.get("MESHCTL_CHAOS_S", "600"))
EVERY_S = 20.0
"""Seconds between two kills. On a slow machine there are more: a kill waits until the run has advanced."""
ADVANCE_S = 300.0
"""The longest time from a kill to the end of a step that was not there before."""
LEARNED_STEPS = 170
"""The steps of `grpo_arithmetic.yaml`, in which the model learns to add. The learning rate is constant afterwards."""
END_S = 1200
"""The longest time in which the run learns undisturbed what it has not learned by then."""
END_STEPS = 20
"""The number of last steps whose mean reward is compared."""
KINDS = ("rollout", "judge", "train", "stopped worker", "agent", "node process")
RECIPE = f"""
defaults: [./grpo_arithmetic, _self_]
groups:
  rollout: {{restartable: true}}
  judge: {{restartable: true}}
components:
  actor: {{_target_: ended.Actor, parallel: {{fsdp_size: auto}}, args: {{steps: {LEARNED_STEPS}}}}}
pipeline:
  questions: {{ends_run: false}}
  batch: {{ends_run: false}}
run:
  dir: runs
  steps: 100000
  patience: 15
  checkpoint: {{every: 5, keep: 2}}
  restarts: {{times: 1000}}
  elastic: {{train: {{min_ranks: 1}}}}
"""
ENDED = """
import arithmetic
from meshctl import Batch, endpoint


class Actor(arithmetic.Actor):
    @endpoint(dispatch="slice_dp", collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        if self.step >= self.steps and (self.run_dir.parents[2] / "enough").exists():
            self.stop("enough")
        return super().update(batch)
"""


@dataclass
class Chaotic:
    """A run that goes on, of which processes are killed."""

    folder: Path
    launcher: subprocess.Popen[bytes]
    chosen: random.Random
    kinds: list[str] = field(default_factory=list)
    """The kinds that are still to be killed before the first one is again."""
    killed: Counter[str] = field(default_factory=Counter)
    progress: list[int] = field(default_factory=list)
    """The greatest step with metrics, before each kill."""

    @classmethod
    def begun(cls, folder: Path, seed: int) -> Chaotic:
        return cls(folder, launched(folder, "chaos"), random.Random(seed))

    @property
    def run(self) -> RunDir:
        [found] = (self.folder / "runs" / "chaos").iterdir()
        return RunDir(found)

    @property
    def rows(self) -> list[Row]:
        return rows_of(self.run)

    def events(self, name: str) -> list[Event]:
        return [event for event in events_of(self.run.journal("launcher")) if event.name == name]

    def has_rows(self) -> bool:
        return any((self.folder / "runs").glob("chaos/*/metrics.jsonl")) and len(self.rows) > 5

    @property
    def last_step(self) -> int:
        return max((int(row["step"]) for row in self.rows), default=0)

    def has_advanced(self) -> bool:
        """Whether there is a step that was never there before the last kill."""
        return self.launcher.poll() is not None or self.last_step > max(self.progress, default=0)

    def kill(self) -> None:
        """Kills a process of a kind that is chosen by chance, or stops it. All kinds are killed equally often."""
        self.progress.append(self.last_step)
        self.kinds = self.kinds or self.chosen.sample(KINDS, len(KINDS))
        kind = self.kinds.pop()
        if pids := list(self._pids(kind)):
            is_stopped = kind == "stopped worker"
            with suppress(ProcessLookupError):
                os.kill(self.chosen.choice(pids), signal.SIGSTOP if is_stopped else signal.SIGKILL)
                self.killed[kind] += 1

    def _pids(self, kind: str) -> Iterator[int]:
        for pid in family(self.launcher.pid):
            name = name_of(pid)
            group = name.split(":")[0]
            match kind:
                case "agent" if name.startswith("mesh "):
                    yield pid
                case "node process" if name == "meshctl-fork":
                    yield pid
                case "stopped worker" if group in ("rollout", "judge", "train"):
                    yield pid
                case _ if group == kind:
                    yield pid


def launched(folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "meshctl", "launch", "chaos.yaml", f"name={name}", *words]
    cache = str(folder / "cache")  # of torch, which keeps it by design
    environ = {**os.environ, "TMPDIR": str(folder / "tmp"), "TORCHINDUCTOR_CACHE_DIR": cache}
    with (folder / f"{name}.txt").open("wb") as output:
        return subprocess.Popen(
            command, cwd=folder, env=environ, stdout=output, stderr=output, start_new_session=True
        )


def rows_of(run: RunDir) -> list[Row]:
    return read(run.metrics)


def reward_at_end(rows: list[Row]) -> float:
    return sum(row["exam.reward"] for row in rows[-END_STEPS:]) / END_STEPS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "recipes" / "arithmetic", tmp_path / "arithmetic")
    shutil.copy(ROOT / "recipes" / "grpo_arithmetic.yaml", tmp_path)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "chaos.yaml").write_text(RECIPE)
    (tmp_path / "ended.py").write_text(ENDED)
    return tmp_path


@pytest.mark.nightly
@pytest.mark.timeout(CHAOS_S + 3 * END_S)
def test_a_run_under_kills_ends_as_an_undisturbed_one(folder: Path) -> None:
    before = litter(folder / "tmp")
    chaotic = Chaotic.begun(folder, seed=7)
    pids = set[int]()
    try:
        wait(chaotic.has_rows, "the first steps", 300)
        ends = time.monotonic() + CHAOS_S
        while time.monotonic() < ends and chaotic.launcher.poll() is None:
            time.sleep(EVERY_S)
            pids.update(family(chaotic.launcher.pid))
            wait(chaotic.has_advanced, "a new step after a kill", ADVANCE_S)
            chaotic.kill()
        (folder / "enough").touch()
        code = chaotic.launcher.wait(END_S)
    finally:
        chaotic.launcher.kill()  # all others die with it
        chaotic.launcher.wait()
    assert code == 0, (folder / "chaos.txt").read_text()[-3000:]
    report(chaotic)
    check_rows(chaotic)
    wait(lambda: not [pid for pid in pids if alive(pid)], "the end of all processes", 10)
    assert litter(folder / "tmp") <= before
    rows = chaotic.rows
    calm = launched(folder, "calm", f"run.steps={len(rows)}", "components.actor._target_=arithmetic.Actor")
    assert calm.wait(END_S) == 0, (folder / "calm.txt").read_text()[-3000:]
    [found] = (folder / "runs" / "calm").iterdir()
    own, other = reward_at_end(rows), reward_at_end(rows_of(RunDir(found)))
    print(f"mean reward of the last {END_STEPS} steps: {own:.3f}, undisturbed {other:.3f}")
    assert own == pytest.approx(other, abs=0.05)


def check_rows(chaotic: Chaotic) -> None:
    """Each step has one row, and there were restarts of single groups and of the run."""
    assert [row["step"] for row in chaotic.rows] == [*range(1, len(chaotic.rows) + 1)]
    assert any("group" in event.value for event in chaotic.events("restarted"))
    assert any("group" not in event.value for event in chaotic.events("restarted"))


def report(chaotic: Chaotic) -> None:
    restarted = chaotic.events("restarted")
    alone = Counter(str(event.value.get("group", "the run")) for event in restarted)
    sizes = [event.value["workers"]["train"] for event in chaotic.events("launched")]
    print(f"killed {dict(chaotic.killed)}; restarted {dict(alone)}; {len(chaotic.rows)} steps; sizes {sizes}")
    print(f"steps at the kills: {chaotic.progress}")
