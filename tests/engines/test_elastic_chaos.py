"""Something of a run is killed every 20 s, for `MESHCTL_CHAOS_S` seconds (ten minutes where it is not set): the run
makes progress, ends as an undisturbed one does, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from processes import alive, wait

from tests.command_server import call
from tests.engines.test_elastic import PARTS
from tests.engines.test_exactly_once import Running, last_step

CHAOS_S = float(os.environ.get("MESHCTL_CHAOS_S", "600"))
EVERY_S = 20.0
VICTIMS = ("worker", "worker", "agent", "node process")
RECIPE = """
groups:
  read: {ranks: 1, device_type: cpu}
  learn: {ranks: 3, device_type: cpu}
components:
  reader: {_target_: parts.Reader, group: read}
  learner: {_target_: gated.Learner, group: learn, parallel: {fsdp_size: auto}}
pipeline:
  batch: {call: reader.next, samples: 12}
  update: {call: learner.update, in: batch}
run:
  dir: runs
  steps: 100000
  checkpoint: {every: 10, keep: 2}
  restarts: {times: 1000}
  elastic: {learn: {min_ranks: 2}}
"""
GATED = """
import time

import parts
from meshctl import Batch, endpoint


class Learner(parts.Learner):
    @endpoint(collect="sum")
    def update(self, batch: Batch) -> dict[str, float]:
        time.sleep(0.1)
        if (self.run_dir.parents[2] / "enough").exists():
            self.stop("enough")
        return super().update(batch)
"""


@pytest.mark.nightly
def test_a_run_under_kills_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "gated.py").write_text(GATED)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    chosen, running = random.Random(7), Running(tmp_path, "chaos")
    thread = running.start("recipe.yaml", "name=chaos")
    wait(lambda: len(running.events) > 0 and last_step(running) > 5, "the first steps")
    ends, pids, progress = time.monotonic() + CHAOS_S, set[int](), [0]
    while time.monotonic() < ends and running.done is None:
        time.sleep(EVERY_S)
        progress.append(last_step(running))
        pids.update(event.value["pid"] for event in running.events if event.name == "started")
        if (pid := running.pid_of(chosen.choice(VICTIMS), chosen)) > 1:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    before = len([event for event in running.events if event.name == "launched"])
    time.sleep(5)
    (tmp_path / "enough").touch()
    thread.join(120)
    assert running.done is not None and running.done.returncode == 0, running.done
    assert before > 1 and progress == sorted(progress) and len(set(progress)) > len(progress) / 2, progress
    rows = [json.loads(line) for line in running.run.metrics.read_text().splitlines()]
    assert [row["step"] for row in rows] == [*range(1, len(rows) + 1)]
    words = (f"run.steps={len(rows)}", "name=calm", "components.learner._target_=parts.Learner")
    assert call(tmp_path, "launch", "recipe.yaml", *words).returncode == 0
    [folder] = (tmp_path / "runs" / "calm").iterdir()
    calm = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for own, other in zip(rows, calm, strict=True):
        assert own["update.loss"] == pytest.approx(other["update.loss"], rel=1e-6, abs=1e-12)
    assert not [pid for pid in pids if alive(pid)]
    print(f"{before - 1} restarts, {len(rows)} steps, sizes {sizes_of(running)}")


def sizes_of(running: Running) -> list[int]:
    return [event.value["workers"]["learn"] for event in running.events if event.name == "launched"]
