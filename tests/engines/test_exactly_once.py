"""Whatever process dies in a run with `run.restarts`, the result is that of an uninterrupted run: every sample
once, and equal rows of metrics and weights, digit for digit."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import Launched, alive, events_of, family, name_of, parent_of, rows_of, runs_in, wait, written

from meshctl.run.directory import RunDir, write_whole
from meshctl.run.events import Event
from tests.command_server import server

PARTS = """
import json
import time

import torch
from meshctl import Batch, Component, endpoint


class Reader(Component):
    def setup(self):
        self.random = torch.Generator().manual_seed(self.mesh.data_rank())

    @endpoint
    def next(self, samples: range) -> Batch:
        time.sleep(0.004)
        gate = self.run_dir.parents[2] / f"gate-{self.run_dir.parent.name}"
        while gate.exists() and self.step > int(gate.read_text()):
            time.sleep(0.01)
        return Batch({"x": torch.rand(len(samples), generator=self.random) + torch.tensor(samples)})

    def state_dict(self):
        return {"random": self.random.get_state()}

    def load_state_dict(self, state):
        self.random.set_state(state["random"])


class Learner(Component):
    def setup(self):
        self.weight, self.seen = torch.zeros(3, dtype=torch.float64), []
        self.log({"size": 3.0})

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        noise = torch.rand(3, dtype=torch.float64)
        step = torch.sin(self.weight + batch["x"].double().sum()) * noise
        self.weight += self.collective("dp").all_reduce(step)
        self.seen += [int(id) for id in batch.ids[:, 0]]
        self.log({"first": float(batch["x"][0])})
        return {"norm": float(self.weight.norm())}

    def state_dict(self):
        return {"weight": self.weight, "seen": [self.rank, list(self.seen)]}

    def load_state_dict(self, state):
        self.weight, self.seen = state["weight"], list(state["seen"][1])

    def close(self):
        result = {"weight": self.weight.tolist(), "seen": self.seen}
        (self.run_dir / f"result-{self.rank}.json").write_text(json.dumps(result))
"""

RECIPE = """
groups:
  read: {ranks: 2, device_type: cpu}
  learn: {ranks: 2, device_type: cpu}
components:
  reader: {_target_: parts.Reader, group: read}
  learner: {_target_: parts.Learner, group: learn}
pipeline:
  batch: {call: reader.next, samples: 6}
  update: {call: learner.update, in: batch}
run: {dir: runs, checkpoint: {every: 3, keep: 2}, restarts: {times: 1000}}
"""

SAMPLES = 6
AHEAD = 20
"""Steps that a run may make beyond the one of the next kill, so that no kill comes after its end."""
VICTIMS = ("worker", "worker", "agent", "node process", "launcher")


@dataclass(frozen=True)
class Kill:
    victim: str
    step: int
    """The process is killed when a row of this step, or of a later one, is there."""


class Running(Launched):
    """A run with a name, which is launched in the background, perhaps several times."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, 0)
        self.name, self.errors = name, folder / f"{name}.err"

    def begin(self, *words: str) -> Running:
        files = [self.folder / f"{self.name}.out", self.errors]
        self.pid = server().start(self.folder, "launch", *words, env=os.environ, files=files)
        self.code = None
        return self

    def done(self) -> None:
        """Waits for the end of the run, which succeeds."""
        assert self.end() == 0, self.errors.read_text()

    @property
    def is_over(self) -> bool:
        return not alive(self.pid)

    @property
    def run(self) -> RunDir:
        [run] = runs_in(self.folder, self.name)
        return run

    def events(self, name: str, step: int | None = None) -> list[Event]:
        """Returns the events of a name, those of the newest attempt last."""
        found = events_of(self.folder, name, self.name)
        return [event for event in found if step in (None, event.step)]

    def wait_for(self, name: str, step: int | None = None, count: int = 3) -> None:
        wait(lambda: len(self.events(name, step)) >= count or self.is_over, f"{name} of step {step}")
        assert len(self.events(name, step)) >= count, self.errors.read_text()

    @property
    def workers(self) -> list[int]:
        """The pids of the living workers."""
        return [pid for event in self.events("started") if alive(pid := event.value["pid"])]

    def last_step(self) -> int:
        """Returns the last step of which a worker has reported the end in the newest attempt."""
        begun = max((event.time for event in self.events("launched")), default=0.0)
        steps = [event.step or 0 for event in self.events("step") if event.time >= begun]
        return max(steps, default=0)

    def pid_of(self, victim: str, chosen: random.Random) -> int:
        """Returns the pid of a process that is to be killed; 0 if there is none now."""
        if not (workers := self.workers):
            return 0
        agents = [pid for pid in family(self.pid) if name_of(pid).startswith("mesh ")]
        return {
            "worker": chosen.choice(workers),
            "agent": chosen.choice(agents or [0]),
            "node process": parent_of(workers[0]),
            "launcher": self.pid,
        }[victim]


def generated(seed: int, count: int, steps: int) -> list[Kill]:
    """Returns kills in rising order of their steps, which all come before the last step."""
    chosen = random.Random(seed)
    return sorted(
        (Kill(chosen.choice(VICTIMS), chosen.randint(1, steps - 4)) for _ in range(count)),
        key=lambda kill: kill.step,
    )


def run_with(folder: Path, name: str, steps: int, kills: Sequence[Kill], seed: int) -> tuple[RunDir, int]:
    """Runs the recipe and kills processes of it. Returns its directory and the number of restarts. A killed
    launcher is followed by another launch of the same directory."""
    chosen, running = random.Random(seed), Running(folder, name)
    gate = folder / f"gate-{name}"
    if kills:
        write_whole(gate, "0")
    running.begin("recipe.yaml", f"run.steps={steps}", f"name={name}")
    for kill in kills:
        reached = max((event.step or 0 for event in running.events("step")), default=0)
        write_whole(gate, str(min(max(kill.step, reached) + AHEAD, steps - 1)))
        wait(lambda kill=kill: running.last_step() >= kill.step or running.is_over, f"step {kill}")
        pid = 0

        def found(victim: str = kill.victim) -> bool:
            nonlocal pid
            pid = running.pid_of(victim, chosen)
            return pid > 1 or running.is_over

        wait(found, f"a process for {kill}")
        if running.is_over:
            break
        attempts = len(running.events("launched"))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if kill.victim == "launcher":
            running.end()
            wait(lambda: not running.workers, "the end of all workers")
            running.begin(str(running.run.path))
        wait(
            lambda attempts=attempts: running.is_over or len(running.events("launched")) > attempts,
            f"the attempt after {kill}",
        )
    if kills:
        write_whole(gate, str(steps))
    running.done()
    return running.run, len(running.events("launched")) - 1


def results_of(run: RunDir) -> list[dict[str, list[float]]]:
    return [json.loads((run.path / f"result-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("once"), RECIPE, PARTS)


def check(folder: Path, steps: int, kills: Sequence[Kill], seed: int) -> int:
    """Compares a run with kills with one without, and returns the number of its restarts."""
    whole, _ = run_with(folder, f"whole-{seed}", steps, (), seed)
    killed, restarts = run_with(folder, f"killed-{seed}", steps, kills, seed)
    assert results_of(killed) == results_of(whole)
    seen = sorted(int(id) for result in results_of(killed) for id in result["seen"])
    assert seen == list(range(SAMPLES * steps))
    assert rows_of(killed) == rows_of(whole)
    assert [row["step"] for row in rows_of(killed)] == list(range(steps + 1))
    return restarts


@pytest.mark.slow
def test_each_kind_of_process_may_die(folder: Path) -> None:
    kills = [Kill(victim, 4 * n) for n, victim in enumerate(dict.fromkeys(VICTIMS), 1)]
    assert check(folder, 24, kills, seed=0) == len(kills)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 11))
def test_processes_that_die_at_generated_moments(folder: Path, seed: int) -> None:
    assert check(folder, 200, generated(seed, 10, 200), seed) == 10
