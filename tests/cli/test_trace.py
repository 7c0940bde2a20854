"""`run.trace` in whole runs, read back: every stage, wait, route, collective, sync, pass and checkpoint of the
steps that are traced, also where the run fails, restarts or is interrupted in one of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.cli.small_launch import PATIENT
from tests.cli.test_repeat import PARTS, RECIPE
from tests.view.read_trace import Trace, read_back

MOODS = """
import json, os, signal

class Moody(Policy):
    def __init__(self, mood: str, at: int) -> None:
        super().__init__()
        self.mood, self.at, self.calls = mood, at, 0

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        marker = f"{self.run_dir}/marker"
        if self.step == self.at and self.rank == 1 and not os.path.exists(marker):
            open(marker, "w").close()
            if self.mood == "raises":
                raise ValueError("boom")
            if self.mood == "interrupts":
                with open(f"{self.run_dir}/state.json") as file:
                    os.kill(json.load(file)["launcher"]["pid"], signal.SIGINT)
        return super().update(batch)
"""
WORKERS = ("rollout:0", "rollout:1", "train:0", "train:1", "train:2")


@dataclass
class Traced:
    code: int
    output: str
    run: Path

    @property
    def trace(self) -> Trace:
        return read_back(self.run / "trace.json")


def launched(folder: Path, *overrides: str, mood: str = "", at: int = 0) -> Traced:
    (folder / "parts.py").write_text(PARTS + MOODS)
    (folder / "recipe.yaml").write_text(RECIPE)
    moody = ["components.policy._target_=parts.Moody", f"+components.policy.args={{mood: {mood}, at: {at}}}"]
    words = ["run.steps=7", *(moody if mood else []), *overrides]
    done = meshctl(folder, "launch", "recipe.yaml", *words)
    [run] = folder.glob("runs/small/*")
    return Traced(done.returncode, done.stdout + done.stderr, run)


def steps_of(trace: Trace) -> dict[str, list[str]]:
    return {
        thread: [one.name for one in slices] for thread, slices in trace.threads.items() if " " not in thread
    }


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    asynchronous = "run.checkpoint.async=true", "pipeline.publish.max_staleness=1"
    folder = tmp_path_factory.mktemp("trace")
    found = launched(folder, "run.trace={steps: [3, 5], profiler: true}", *asynchronous)
    assert found.code == 0, found.output
    return found


def test_every_stage_of_every_step_is_on_every_rank(traced: Traced) -> None:
    trace = traced.trace
    assert steps_of(trace) == {worker: ["step 3", "step 4", "step 5"] for worker in WORKERS}
    for worker in WORKERS:
        for name, step in trace.steps(worker).items():
            is_eval, stages = name == "step 4", step.named("stage")
            if worker.startswith("rollout"):
                evals = ["eval.questions", "eval.answers"] * 4  # in the last pass they receive the end
                assert stages == ["batch", "rollouts", *(evals if is_eval else [])]
            else:
                evals = ["eval.exam", "eval.count"] * 4
                assert stages == ["ppo.old", "ppo.update"] * 8 + (evals if is_eval else [])
                passes = [f"ppo pass {number}" for number in range(1, 9)]
                passes += [f"eval pass {number}" for number in range(1, 5) if is_eval]
                assert step.named("pass") == passes
            assert step.named("sync") == ["publish"]
            assert bool(step.named("checkpoint")) == is_eval

    for worker in ("train:0", "train:1", "train:2"):
        for step in trace.steps(worker).values():
            collectives = [one for one in step.all() if one.category == "collective"]
            assert [one.name for one in collectives] == ["all_reduce sum float32 [2]"] * 6
            for one in collectives:
                assert one.parent is not None and one.parent.name == "ppo.update"
                assert one.args["group"] == "policy:dp" and one.args["at"].startswith("parts.py:")
    for _, one in trace.slices():
        if one.category == "frame":
            assert one.parent is not None
            assert one.parent.category in ("wait", "send", "sync", "pass", "checkpoint")
    written = {
        thread: "write policy of step 4" in [one.name for one in some]
        for thread, some in trace.threads.items()
        if thread.startswith("train") and " " in thread
    }
    assert written == {f"train:{rank} checkpoint": True for rank in range(3)}
    sent, received = (
        [
            (
                thread if side == "from" else one.args["to"],
                one.args.get("from", thread),
                one.name.split(" ", 1)[1],
            )
            for thread, one in trace.slices()
            if one.category == "frame" and one.name.startswith(verb) and one.args["bytes"] >= 0
        ]
        for verb, side in (("send", "to"), ("receive", "from"))
    )
    routes = {route for *_, route in received}
    assert {"rollouts -> ppo.old", "publish", "eval.answers -> eval.exam"} <= routes
    pairs = {(one, sender, route) for to, sender, route in sent for one in to.split(", ")}
    assert {*received} <= pairs and len(received) > 100


def test_the_files_of_torchs_profiler_have_a_range_for_each_call(traced: Traced) -> None:
    trace = traced.trace
    for worker in ("rollout:0", "train:2"):
        path = traced.run / "trace" / f"{worker.replace(':', '-')}.profile.json"
        events = json.loads(path.read_text())["traceEvents"]
        ranges = [event for event in events if event.get("cat") == "user_annotation"]
        stages = [one for step in trace.threads[worker] for one in step.all() if one.category == "stage"]
        names = {one.name for one in stages}
        ranges = sorted((one for one in ranges if one["name"] in names), key=lambda one: one["ts"])
        assert [event["name"] for event in ranges] == [one.name for one in stages]
    assert {path.name for path in (traced.run / "trace").glob("*.profile.json")} == {
        f"{worker.replace(':', '-')}.profile.json" for worker in WORKERS
    }


def test_the_files_are_named_and_only_their_owner_reads_them(traced: Traced) -> None:
    path = traced.run / "trace.json"
    assert f"trace: {path}" in traced.output
    files = [path, *(traced.run / "trace").iterdir()]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert not [file.name for file in traced.run.glob(".trace*")]
    lines = (traced.run / "events" / "launcher.jsonl").read_text().splitlines()
    clocks = [event["value"] for event in map(json.loads, lines) if event["name"] == "clock"]
    assert clocks and all(abs(one["offset"]) <= one["error"] for one in clocks)


def test_a_run_that_fails_leaves_what_was_recorded_and_the_fault(tmp_path: Path) -> None:
    found = launched(tmp_path, "run.trace=[3,6]", mood="raises", at=4)
    assert found.code == 5
    trace = found.trace
    assert steps_of(trace)["train:1"] == ["step 3", "step 4"]
    [fault] = [one for one in trace.instants if one["name"] == "fault" and "boom" in one["args"]["text"]]
    step = trace.steps("train:1")["step 4"]
    assert step.begin <= fault["ts"] <= step.end + 0.001 and fault["s"] == "t"
    assert step.named("stage")[-1] == "ppo.update"


@pytest.mark.slow_suite
def test_a_run_that_is_interrupted_ends_its_trace(tmp_path: Path) -> None:
    words = ("run.trace=[3,900]", "run.steps=1000", PATIENT)
    found = launched(tmp_path, *words, mood="interrupts", at=4)
    assert found.code == 130
    recorded = steps_of(found.trace)
    assert len({tuple(steps) for steps in recorded.values()}) == 1 and recorded.keys() == {*WORKERS}
    assert recorded["train:0"][:2] == ["step 3", "step 4"]
    assert "stopping" in {event["name"] for event in found.trace.instants}
