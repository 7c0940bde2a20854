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
from contextlib import suppress
from pathlib import Path

import pytest
from processes import alive, events_of, family, litter, name_of, rows_of, runs_in, wait

from meshctl.run.metrics import Row
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


class Chaotic:
    """A run that goes on, of which processes are killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.launcher, self.chosen = folder, launched(folder, "chaos"), random.Random(seed)
        self.kinds: list[str] = []
        """The kinds that are still to be killed before the first one is again."""
        self.killed = Counter[str]()
        self.progress: list[int] = []
        """The greatest step with metrics, before each kill."""

    @property
    def rows(self) -> list[Row]:
        return rows_of(self.folder)

    @property
    def last_step(self) -> int:
        return max((int(row["step"]) for row in self.rows), default=0)

    def has_advanced(self) -> bool:
        """Whether there is a step that was never there before the last kill."""
        return self.launcher.poll() is not None or self.last_step > max(self.progress, default=5)

    def kill(self) -> None:
        """Kills a process of a kind that is chosen by chance, or stops it. All kinds are killed equally often."""
        self.progress.append(self.last_step)
        self.kinds = self.kinds or self.chosen.sample(KINDS, len(KINDS))
        kind = self.kinds.pop()
        if pids := [pid for pid in family(self.launcher.pid) if is_kind(name_of(pid), kind)]:
            is_stopped = kind == "stopped worker"
            with suppress(ProcessLookupError):
                os.kill(self.chosen.choice(pids), signal.SIGSTOP if is_stopped else signal.SIGKILL)
                self.killed[kind] += 1


def is_kind(name: str, kind: str) -> bool:
    """Returns whether a process with a name is of a kind."""
    beginnings = {"agent": "mesh ", "node process": "meshctl-fork"}
    is_worker = name.startswith(("rollout:", "judge:", "train:"))
    return is_worker if kind == "stopped worker" else name.startswith(beginnings.get(kind, f"{kind}:"))


def launched(folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "meshctl", "launch", "chaos.yaml", f"name={name}", *words]
    cache = str(folder / "cache")  # of torch, which keeps it by design
    environ = {**os.environ, "TMPDIR": str(folder / "tmp"), "TORCHINDUCTOR_CACHE_DIR": cache}
    with (folder / f"{name}.txt").open("wb") as output:
        return subprocess.Popen(
            command, cwd=folder, env=environ, stdout=output, stderr=output, start_new_session=True
        )


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
    chaotic = Chaotic(folder, seed=7)
    pids = set[int]()
    try:
        wait(chaotic.has_advanced, "the first steps", 300)
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
    restarted, rows = events_of(folder, "restarted"), chaotic.rows
    alone = Counter(str(event.value.get("group", "the run")) for event in restarted)
    sizes = [event.value["workers"]["train"] for event in events_of(folder, "launched")]
    print(f"killed {dict(chaotic.killed)}; restarted {dict(alone)}; {len(rows)} steps; sizes {sizes}")
    print(f"steps at the kills: {chaotic.progress}")
    assert [row["step"] for row in rows] == [*range(1, len(rows) + 1)]
    assert alone["the run"] and len(alone) > 1, "single groups and the run have restarted"
    wait(lambda: not [pid for pid in pids if alive(pid)], "the end of all processes", 10)
    assert litter(folder / "tmp") <= before
    calm = launched(folder, "calm", f"run.steps={len(rows)}", "components.actor._target_=arithmetic.Actor")
    assert calm.wait(END_S) == 0, (folder / "calm.txt").read_text()[-3000:]
    own, other = reward_at_end(rows), reward_at_end(rows_of(*runs_in(folder, "calm")))
    print(f"mean reward of the last {END_STEPS} steps: {own:.3f}, undisturbed {other:.3f}")
    assert own == pytest.approx(other, abs=0.05)
