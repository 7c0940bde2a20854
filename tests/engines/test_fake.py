"""The supervisor on fake engines of both kinds. Everything except the processes is real."""

from __future__ import annotations

import errno
import json
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import plan_of, rows_of, wait

from meshctl.cli.launch import outcome_of
from meshctl.engines import engine
from meshctl.engines.engine import Exited, Job, engine_named
from meshctl.engines.local import LocalEngine
from meshctl.engines.supervise.attempt import begin
from meshctl.engines.supervise.session import Observers, Outcome
from meshctl.engines.supervise.signals import Signals
from meshctl.engines.supervise.supervisor import Supervisor
from meshctl.network.connection import Message
from meshctl.network.control_store import GET, StoreClient
from meshctl.plan.model import Cluster, Plan, Program, Restarts
from meshctl.plan.resizing import Lost
from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.settings import Elastic, end_of_data
from meshctl.run.shutdown import PREFIX
from tests.engines.fake import FakeEngine, FakeHandle, FakeNode, FakeWorker


class Recording:
    def __init__(self) -> None:
        self.attempts: list[tuple[int, int | None]] = []
        self.events: list[Event] = []
        self.rows: list[int] = []
        self.end: tuple[int, str] | None = None

    def on_attempt(self, number: int, step: int | None) -> None:
        self.attempts.append((number, step))

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def on_row(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row["step"])

    def on_end(self, code: int, reason: str) -> None:
        self.end = (code, reason)


def steps(worker: FakeWorker) -> int:
    """Runs three steps, each with a checkpoint."""
    journal = worker.journal()
    journal.write("ready")
    for step in (1, 2, 3):
        worker.run.checkpoint(step).mkdir(parents=True, exist_ok=True)
        journal.write("metric", step=step, stage="sum", values={"x": step})
        journal.write("saved", step=step)
        journal.write("step", step=step, seconds=0.0)
    journal.write("done", step=3)
    return 0


def until_stopped(worker: FakeWorker) -> int:
    worker.journal().write("ready")
    worker.stop.wait()
    return 143


@pytest.fixture
def two_nodes(tmp_path: Path) -> Plan:
    return replace(plan_of(tmp_path, ("one", 2), ("two", 2)), cluster=Cluster(nodes=2))


def run(fake: FakeEngine, plan: Plan, folder: Path) -> tuple[Outcome, Recording]:
    attempt, seen = begin(plan, "name: test\n", (str(folder),), None), Recording()
    job = Job(plan, attempt.run, lambda environ: 70)
    environ: dict[str, str] | None = {} if fake.supervisor == "inside" else None
    return outcome_of(fake, job, attempt, Signals(), lambda: [seen], environ), seen


@pytest.mark.parametrize("where", ["here", "inside"])
def test_a_run_to_its_end(two_nodes: Plan, tmp_path: Path, where: Any) -> None:
    fake = FakeEngine(steps, where)
    outcome, seen = run(fake, two_nodes, tmp_path)
    assert (outcome.code, seen.end) == (0, (0, ""))
    assert seen.attempts == [(0, None)]
    assert seen.rows == [1, 2, 3]
    assert seen.names.count("exited") == 4 and seen.names.count("checkpoint") == 3
    assert [row["sum.x"] for row in rows_of(tmp_path)] == [1, 2, 3]


def test_the_reason_is_the_stream_that_ended_first(two_nodes: Plan, tmp_path: Path) -> None:
    """Also where a group that is ahead reports the end of a later step before."""
    asked = {"one": ("late", 4), "two": ("early", 2)}

    def worker(job: FakeWorker) -> int:
        number = list(asked).index(job.group)
        source, ended = asked[job.group]
        with closing(StoreClient(job.control, job.token, f"run/{job.attempt}/{PREFIX}")) as store:
            if not job.rank:
                store.wait([f"asked/{earlier}" for earlier in range(number)], GET)
                store.set(f"asked/{number}", json.dumps({"reason": end_of_data(source), "ended": ended}))
                if number == len(asked) - 1:  # a plain request is answered, after those before it
                    store.set(f"asked/{len(asked)}", json.dumps({"reason": "stop", "ended": None}))
            store.wait(["word/0"], GET)
        return steps(job)

    outcome, _ = run(FakeEngine(worker), two_nodes, tmp_path)
    assert (outcome.code, outcome.reason) == (0, "the data of `early` ended")


def test_the_nodes_receive_beats_while_the_smaller_plan_is_made(
    two_nodes: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that hears nothing for longer than its lease ends itself. The lease is long here, so that none does."""
    obey, beats = FakeNode._obey, list[str]()

    def obey_and_count(self: FakeNode, message: Message) -> None:
        beats.extend(["beat"] if message["type"] == "beat" else [])
        obey(self, message)

    def worker(job: FakeWorker) -> int:
        if job.attempt == 2:
            return steps(job)
        return 1 if (job.group, job.rank) == ("one", 1) else until_stopped(job)

    def resize(lost: Lost) -> Plan:
        before = len(beats)
        wait(lambda: len(beats) > before, "a beat")
        return plan

    monkeypatch.setattr(FakeNode, "_obey", obey_and_count)
    plan = replace(two_nodes, run=replace(two_nodes.run, elastic=(Elastic("one", 1),), restarts=Restarts(5)))
    attempt = begin(plan, "name: test\n", (str(tmp_path),), None)
    job = Job(plan, attempt.run, lambda environ: 70, resize=resize)
    supervisor = Supervisor(FakeEngine(worker, lease_s=3600.0), Signals())
    assert supervisor.run(job, attempt, list).code == 0


def test_the_end_of_a_node_process_comes_before_the_workers_that_miss_it(
    two_nodes: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is known before its connection ends, as that of a client of ssh when the host's sshd dies."""
    poll, running, ended, over = FakeHandle.poll, threading.Event(), threading.Event(), threading.Event()

    def worker(job: FakeWorker) -> int:
        if job.rank == 1:  # of the node that is lost, from which nothing more is heard
            over.wait(60)
            return 0
        if job.group == "one":
            return until_stopped(job)
        running.set()
        ended.wait(60)
        job.journal().write("fault", error="connection closed by peer", traceback="", lost=True)
        return 1

    def poll_with_end(self: FakeHandle) -> list[Exited]:
        found = poll(self)
        if running.is_set() and not ended.is_set():
            found.append(Exited("the node process of node 1", 255, node=1, reason="host b is not reached"))
            ended.set()
        return found

    monkeypatch.setattr(FakeHandle, "poll", poll_with_end)
    outcome, _ = run(FakeEngine(worker), two_nodes, tmp_path)
    over.set()
    assert outcome.reason == "host b is not reached"


# Services


def serving(folder: Path) -> Plan:
    return plan_of(folder, ("one", 2), ("judge", Program(("judge.py",), service=True)))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0, "judge:0 failed: the service ended before the run was over, with exit code 0"),
        (3, "judge:0 failed: exit code 3"),
    ],
)
def test_a_service_that_ends_early_is_a_failure(tmp_path: Path, code: int, reason: str) -> None:
    def worker(job: FakeWorker) -> int:
        return code if (job.group, job.rank) == ("judge", 0) else until_stopped(job)

    outcome, _ = run(FakeEngine(worker), serving(tmp_path), tmp_path)
    assert (outcome.code, outcome.reason) == (5, reason)


def test_services_alone_are_ordinary_programs(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ("judge", Program(("judge.py",), service=True)))
    outcome, _ = run(FakeEngine(lambda job: 0), plan, tmp_path)
    assert outcome.code == 0


# Results that are deleted


def _emptied(run: RunDir) -> None:
    for path in run.path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("moment", "delete", "reason"),
    [
        ("exit", lambda run: shutil.rmtree(run.path), "the run directory {} was deleted"),
        ("end", lambda run: run.path.rename(run.path.with_name("moved")), "the run directory {} was deleted"),
        ("exit", _emptied, "the run directory {} was emptied: it has no `plan.json` and `start.json`"),
        ("end", lambda run: shutil.rmtree(run.checkpoint(3)), "{}/checkpoints/step-3 was deleted"),
    ],
)  # fmt: skip
def test_results_that_are_deleted_at_the_end_are_a_failure(
    moment: str, delete: Callable[[RunDir], object], reason: str, tmp_path: Path
) -> None:
    """They are deleted when the workers exit, or when the observers have seen the end."""
    plan = plan_of(tmp_path, ("one", 1))
    attempt = begin(plan, "name: test\n", (str(tmp_path),), None)

    class Deleting(Recording):
        def on_event(self, event: Event) -> None:
            if event.name == "checkpoint" and event.step == 3 and moment == "exit":
                delete(attempt.run)

        def on_end(self, code: int, reason: str) -> None:
            if moment == "end":
                delete(attempt.run)

    job = Job(plan, attempt.run, lambda environ: 70)
    outcome = Supervisor(FakeEngine(steps), Signals()).run(job, attempt, lambda: [Deleting()])
    assert (outcome.code, outcome.reason) == (5, reason.format(attempt.run.path))


# Observers


@pytest.mark.parametrize(
    ("error", "warning"),
    [
        (ValueError("boom"), "ValueError: boom\n"),
        (OSError(errno.ENOSPC, "No space left", "/runs/m.jsonl"), "OSError: No space left: /runs/m.jsonl\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), ""),
    ],
)
def test_an_observer_that_fails_is_dropped_and_the_others_go_on(
    error: Exception, warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Recording):
        def on_row(self, row: Mapping[str, Any]) -> None:
            raise error

    good, bad = Recording(), Failing()
    observers = Observers([bad, good])
    for number in (1, 2):
        observers.on_attempt(number, None)
        observers.on_event(Event("ready"))
        observers.on_row({"step": number})
    observers.on_end(0, "")
    assert (len(good.attempts), good.names, good.rows, good.end) == (2, ["ready"] * 2, [1, 2], (0, ""))
    assert (len(bad.attempts), bad.names, bad.end) == (1, ["ready"], None)
    assert capsys.readouterr().err == (f"warning: Failing is stopped: {warning}" if warning else "")


# The table


def test_an_engine_is_imported_on_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_engine.py").write_text("class Mine:\n    supervisor = 'inside'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(engine.ENGINES, "mine", "my_engine:Mine")
    assert "my_engine" not in sys.modules
    assert engine_named("mine").supervisor == "inside"
    assert isinstance(engine_named(), LocalEngine)
