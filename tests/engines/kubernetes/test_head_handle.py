"""The end of a head in a pod, which waits for the last copy of the run directory."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from meshctl.cli.launch import outcome_of
from meshctl.engines.engine import Job
from meshctl.engines.kubernetes.engine import HeadHandle
from meshctl.engines.supervise.attempt import begin
from meshctl.engines.supervise.signals import Signals
from meshctl.plan.model import Cluster, Group, Plan, Run
from meshctl.run.directory import RunDir
from meshctl.view.live.state_file import StateFile
from tests.engines.fake import FakeEngine, FakeHandle, FakeWorker

PLAN = Plan("test", 0, Cluster(nodes=1), (Group("one", "cpu", 1, 0),), (), (), (), Run())


def closed(run: RunDir) -> float:
    """Closes a handle. Returns when, in seconds since the epoch."""
    HeadHandle(Job(PLAN, run, lambda environ: 0)).close()
    return time.time()


def test_a_head_waits_for_a_copy_that_began_after_its_end(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.copied.touch()
    copied: list[float] = []

    def copy() -> None:
        copied.append(time.time())
        os.utime(run.copied, (copied[0], copied[0]))

    timer = threading.Timer(0.3, copy)
    timer.start()
    assert closed(run) >= copied[0]
    timer.join()


def test_a_head_that_nobody_copies_does_not_wait(tmp_path: Path) -> None:
    began = time.time()
    assert closed(RunDir(tmp_path)) < began + 1
    RunDir(tmp_path).copied.touch()
    os.utime(RunDir(tmp_path).copied, (began - 60, began - 60))
    assert closed(RunDir(tmp_path)) < began + 1


def done(worker: FakeWorker) -> int:
    worker.journal().write("ready")
    worker.journal().write("done", step=1)
    return 0


def test_the_last_copy_has_the_end_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is read when the handle is closed, as the last copy does."""
    attempt = begin(PLAN, "name: test\n", (str(tmp_path),), None)
    state, last = StateFile(PLAN, attempt.run), list[object]()
    text = attempt.run.state.read_text
    monkeypatch.setattr(FakeHandle, "close", lambda handle: last.append(json.loads(text())["code"]))
    engine = FakeEngine(done, "inside")
    job = Job(PLAN, attempt.run, lambda environ: 70)
    assert outcome_of(engine, job, attempt, Signals(), lambda: [state], {}).code == 0 and last == [0]
