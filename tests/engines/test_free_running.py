"""Blocks with `take`, by real processes: whatever dies, and however many ranks go on, each sample of the source
is trained once or was dropped, never older than its bound."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from processes import alive, rows_of, wait, written
from test_exactly_once import VICTIMS, Kill, Running, generated, run_with

from meshctl.run.directory import RunDir, write_whole

PARTS = """
import asyncio
import json
import os
import random
import signal
import time

import torch
from meshctl import Batch, Component, endpoint


class Numbers(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"n": torch.tensor(list(samples))})


class Works(Component):
    @endpoint
    async def work(self, batch: Batch) -> Batch:
        number = int(batch["n"][0])
        await asyncio.sleep(random.Random(number).choice([0, 0.002, 0.002, 0.03]))
        self.log({"worked": 1.0})
        return batch.repeat(2)


class Fails(Component):
    def __init__(self, how: str):
        self.how = how

    @endpoint
    async def work(self, batch: Batch) -> Batch:
        if int(batch["n"][0]) == 13:
            if self.how == "hangs":
                await asyncio.sleep(10**6)
            if self.how == "raises":
                raise KeyError("no such thing")
            if self.how == "collects":
                self.collective("world").all_reduce(torch.ones(1))
            return {"n": 1}
        return batch


class Held(Numbers):
    def __len__(self):
        return 6


class Judges(Component):
    def __init__(self, dies: bool = False):
        self.dies, self.is_busy = dies, False

    @endpoint
    def score(self, batch: Batch) -> Batch:
        assert not self.is_busy, "a pass and the program call it at the same time"
        self.is_busy = True
        time.sleep(0.001)
        self.is_busy = False
        is_due = (self.run_dir / "checkpoints" / "latest").exists()
        if self.dies and self.world_size == 3 and self.rank == 2 and is_due:
            os.kill(os.getpid(), signal.SIGKILL)
        kept = [row for row, number in enumerate(batch["n"].tolist()) if number % 5 != 3]
        return batch.take(kept)


class Learner(Component):
    def setup(self):
        self.seen = []

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        gate = self.run_dir.parents[2] / f"gate-{self.run_dir.parent.name}"
        while gate.exists() and self.step > int(gate.read_text()):
            gate.with_name(f"{gate.name}-{self.step}").touch()
            time.sleep(0.01)
        self.seen += batch.ids[:, 0].tolist()
        return {"samples": float(len(batch))}

    @endpoint(collect="mean")
    def look(self, batch: Batch) -> dict[str, float]:
        time.sleep(0.002)
        return {"samples": float(len(batch))}

    def state_dict(self):
        return {"seen": [self.rank, list(self.seen)]}

    def load_state_dict(self, state):
        self.seen = list(state["seen"][1])

    def close(self):
        (self.run_dir / f"result-{self.rank}.json").write_text(json.dumps({"seen": self.seen}))
"""

RECIPE = """
groups:
  roll: {ranks: 2, device_type: cpu}
  learn: {ranks: 1, device_type: cpu}
components:
  numbers: {_target_: parts.Numbers, group: roll}
  works: {_target_: parts.Works, group: roll}
  judges: {_target_: parts.Judges, group: roll}
  learner: {_target_: parts.Learner, group: learn}
pipeline:
  passes:
    repeat: {take: 4, ahead: 2, late: 1}
    stages:
      batch: {call: numbers.next}
      worked: {call: works.work, in: batch}
      scored: {call: judges.score, in: worked}
  update: {call: learner.update, in: passes.scored}
run: {dir: runs, checkpoint: {every: 3, keep: 2}, restarts: {times: 1000}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("free"), RECIPE, PARTS)


def check_numbers(run: RunDir, steps: int, bound: int = 3) -> None:
    """Checks that each number was trained once, with both of its samples, or dropped, and the ages."""
    seen = sorted(json.loads((run.path / "result-0.json").read_text())["seen"])
    expected = [number for number in range(seen[-1] + 1) if number % 5 != 3]
    assert seen == [number for number in expected for _ in range(2)]
    assert len(expected) == 4 * steps
    rows = rows_of(run)
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert all(
        row["update.samples"] == 8 and (row.get("passes.scored.age_max") or 0) <= bound for row in rows
    )
    assert rows[-1]["passes.scored.open"] == 0


@pytest.mark.slow
def test_each_kind_of_process_may_die(folder: Path) -> None:
    kills = [Kill(victim, 4 * n) for n, victim in enumerate(dict.fromkeys(VICTIMS), 1)]
    killed, restarts = run_with(folder, "killed", 24, kills, seed=0)
    check_numbers(killed, 24)
    assert restarts == len(kills)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 11))
def test_processes_that_die_at_generated_moments(folder: Path, seed: int) -> None:
    killed, restarts = run_with(folder, f"killed-{seed}", 200, generated(seed, 10, 200), seed)
    check_numbers(killed, 200)
    assert restarts == 10


def killed_alone(
    folder: Path, seed: int, kills: int, steps: int, further: str = ""
) -> tuple[RunDir, list[str]]:
    """Runs with a group of passes that may restart alone, and with `further` stages, and kills workers of the
    group. Returns the groups that restarted, empty for the whole run."""
    assert steps > (7 * kills + 3 if not further else 5 * kills), "the run could end before the last kill"
    chosen, running = random.Random(seed), Running(folder, f"alone-{seed}")
    gate = folder / f"gate-alone-{seed}"
    write_whole(gate, "0")
    words = [f"run.steps={steps}", f"name=alone-{seed}", "+groups.roll.restartable=true"]
    running.begin("recipe.yaml", *words, *filter(None, [further]))
    step = 0
    for number in range(kills):
        step = max(step, running.last_step()) + chosen.randint(1, 4)
        write_whole(gate, str(step + 3 * (not further)))  # else the first stage waits in the next step
        wait(lambda step=step: running.last_step() >= step or running.is_over, f"step {step}")
        if further:
            there = gate.with_name(f"{gate.name}-{step + 1}")
            wait(lambda there=there: there.exists() or running.is_over, f"the samples of step {step + 1}")

        def pids() -> list[int]:  # none while the whole run restarts
            started = [event.value["pid"] for event in running.events("started") if event.group == "roll"]
            return [pid for pid in started if alive(pid)]

        wait(lambda: bool(pids()) or running.is_over, f"a worker for kill {number}")
        with suppress(ProcessLookupError, IndexError):
            os.kill(chosen.choice(pids()), signal.SIGKILL)
        wait(
            lambda number=number: running.is_over or len(running.events("restarted")) > number,
            f"restart {number}",
        )
    write_whole(gate, str(steps))
    running.done()
    return running.run, [event.value.get("group", "") for event in running.events("restarted")]


@pytest.mark.slow
def test_a_group_of_passes_restarts_alone_or_with_the_whole_run(folder: Path) -> None:
    run, restarted = killed_alone(folder, 0, 6, 48)
    check_numbers(run, 48)
    assert len(restarted) == 6 and "roll" in restarted


@pytest.mark.slow
def test_where_a_step_has_arrived_in_part_the_whole_run_restarts(folder: Path) -> None:
    """The first stage has the samples of a step while it computes, and the second one does not have them."""
    run, restarted = killed_alone(folder, 11, 4, 30, "+pipeline.look={call: learner.look, in: passes.scored}")
    check_numbers(run, 30)
    assert len(restarted) >= 4 and "" in restarted


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_group_of_passes_restarts_at_generated_moments(folder: Path, seed: int) -> None:
    run, restarted = killed_alone(folder, seed, 10, 100)
    check_numbers(run, 100)
    assert len(restarted) == 10


@pytest.mark.slow
def test_a_run_goes_on_with_other_numbers_of_ranks_and_another_age(folder: Path) -> None:
    running = Running(folder, "resized")
    running.begin("recipe.yaml", "run.steps=7", "name=resized", "run.checkpoint.every=7").done()
    for ranks, ahead, steps in ((3, 2, 13), (1, 0, 20)):
        words = [f"groups.roll.ranks={ranks}", f"pipeline.passes.repeat.ahead={ahead}", f"run.steps={steps}"]
        running.begin(str(running.run.path), *words, "run.accept=[pipeline]").done()
    check_numbers(running.run, 20)


@pytest.mark.slow
def test_a_run_goes_on_without_a_worker_that_is_lost_for_good(folder: Path) -> None:
    running = Running(folder, "elastic")
    words = ["groups.roll.ranks=3", "+run.elastic.roll.min_ranks=2", "+components.judges.args.dies=true"]
    running.begin("recipe.yaml", "run.steps=16", "name=elastic", *words).done()
    check_numbers(running.run, 16)
    sizes = [event.value.get("sizes") for event in running.events("restarted")]
    assert {"roll": [3, 2]} in sizes


EXAM = "+pipeline.exam={every: 2, repeat: {until: q}, stages: {q: {call: held.next, samples: 2}, s: {call: judges.score, in: q}}}"


def test_an_exam_calls_the_components_of_passes_between_two_takes(folder: Path) -> None:
    words = ["+components.held={_target_: parts.Held, group: roll}", EXAM, "run.steps=12", "name=exam"]
    running = Running(folder, "exam").begin("recipe.yaml", *words)
    running.done()
    check_numbers(running.run, 12)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "raises",
            r"in stage passes\.worked, step \d: KeyError: 'no such thing'\n(.*\n)*in the pass of sample 13",
        ),
        ("collects", "`fails.work` calls a collective, and a pass of a block with `take` runs on one rank"),
        ("returns", "`fails.work` returned a dict, and each pass of a block needs a Batch"),
        ("hangs", r"in stage passes\.scored, step \d: it has not advanced for \d+ s \(`run.patience`\)"),
    ],
)
def test_a_pass_that_fails_ends_the_run(folder: Path, how: str, message: str) -> None:
    words = [
        f"+components.fails={{_target_: parts.Fails, group: roll, args: {{how: {how}}}}}",
        "~components.works",
    ]
    words += [
        "pipeline.passes.stages.worked.call=fails.work",
        "run.restarts=0",
        "+run.patience=5",
        "run.steps=9",
    ]
    running = Running(folder, how).begin("recipe.yaml", f"name={how}", *words)
    assert running.end() == 5
    assert re.search(message, running.errors.read_text())
    if how == "hangs":
        logs = "".join(file.read_text() for file in running.run.path.glob("logs/roll/*.log"))
        assert re.search(
            r"`passes`: step \d has waited \d s for pass 13, \d s in `worked` at .*parts.py:\d+", logs
        )
