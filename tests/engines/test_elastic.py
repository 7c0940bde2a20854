"""Runs that lose a worker for good, go on without it, and grow back: each step has the same samples in the same
order, and its metrics are those of runs that a person starts on each size from the same checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import events_of, rows_of, runs_in, written

from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from tests.command_server import Done, call

PARTS = """
import json
import os
import signal
import time

import torch
from meshctl import Batch, Component, endpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Reader(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        ids = torch.tensor(samples, dtype=torch.float64)
        return Batch({"x": torch.stack([torch.sin(ids * k) for k in (0.1, 0.3, 0.7, 1.1)], dim=1)})


class Learner(Component):
    def setup(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2)).double()
        if self.mesh.size("tp") > 1:
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(self.model, self.torch_mesh["tp"], plan)
        if self.mesh.size("fsdp") > 1:
            fully_shard(self.model, mesh=self.torch_mesh["fsdp"])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    @endpoint(collect="sum")
    def update(self, batch: Batch) -> dict[str, float]:
        self.die_twice()
        data = self.collective("dp", "fsdp")
        x, total = batch["x"], 12
        error = (self.model(x) - x[:, :2].flip(1)) ** 2
        loss = error.sum() / total
        self.optimizer.zero_grad()
        (loss * data.size if isinstance(self.model, FSDPModule) else loss).backward()
        if self.mesh.size("dp") > 1:
            for parameter in self.model.parameters():
                parameter.grad = data.all_reduce(parameter.grad)
        self.optimizer.step()
        with open(self.run_dir / f"seen-{self.mesh.world_size}-{self.rank}.jsonl", "a") as file:
            if self.mesh.dim_rank("tp") == 0:
                file.write(json.dumps([self.step, [int(id) for id in batch.ids[:, 0]]]) + "\\n")
        return {"loss": float(loss)}

    def die_twice(self):
        deaths = self.run_dir / "deaths"
        count = len(deaths.read_text()) if deaths.exists() else 0
        if os.environ.get("RAISES") == "always" and self.rank == self.mesh.world_size - 1 and self.step == 4:
            raise RuntimeError("the sample is wrong")
        if os.environ.get("DIES") and self.mesh.world_size == 4 and self.rank == 2 and self.step == 4 and count < 2:
            deaths.write_text("x" * (count + 1))
            while not (self.run_dir / "checkpoints" / "latest").exists():  # that of step 3 is published by the launcher
                time.sleep(0.01)
            if os.environ.get("RAISES") == "twice":
                raise RuntimeError("the device is broken")
            os.kill(os.getpid(), signal.SIGKILL)
        while os.environ.get("DIES") and self.mesh.world_size < 4 and self.step > 6:
            time.sleep(0.01)  # the attempt ends with the checkpoint of step 6

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
"""

RECIPE = """
groups:
  read: {ranks: 1, device_type: cpu}
  learn: {ranks: 4, device_type: cpu}
components:
  reader: {_target_: parts.Reader, group: read}
  learner: {_target_: parts.Learner, group: learn, parallel: {dp_size: auto}}
pipeline:
  batch: {call: reader.next, samples: 12}
  update: {call: learner.update, in: batch}
run: {dir: runs, steps: 9, checkpoint: {every: 3, keep: 10}, restarts: 5, elastic: {learn: {}}}
"""


@dataclass(frozen=True)
class Ran:
    done: Done
    run: RunDir

    @property
    def rows(self) -> list[dict[str, float]]:
        return rows_of(self.run)

    def events(self, name: str) -> list[Event]:
        return events_of(self.run, name)

    def seen(self) -> dict[int, list[int]]:
        """Step -> the ids of its samples in the order of the ranks, of the last attempt that ran it."""
        found: dict[int, dict[int, list[int]]] = {}
        for size in (4, 3, 2):  # the attempts of the first size come first, and it also ends the run
            for rank in range(size):
                file = self.run.path / f"seen-{size}-{rank}.jsonl"
                for line in file.read_text().splitlines() if file.exists() else ():
                    step, ids = json.loads(line)
                    found.setdefault(step, {})[rank] = ids
        return {
            step: [one for rank in sorted(by_rank) for one in by_rank[rank]]
            for step, by_rank in found.items()
        }


def launch(where: Path, name: str, *words: str, dies: bool = False, raises: str = "") -> Ran:
    done = call(where, "launch", *words, env={"DIES": "1" if dies else "", "RAISES": raises})
    return Ran(done, *runs_in(where, name))


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("elastic"), RECIPE, PARTS)


def sizes(ran: Ran) -> list[int]:
    """The numbers of workers of the group in all attempts."""
    return [event.value["workers"]["learn"] for event in ran.events("launched")]


@pytest.mark.slow
def test_a_run_goes_on_without_a_worker_that_fails_again_and_grows_back(where: Path) -> None:
    ran = launch(where, "dp", "recipe.yaml", "name=dp", dies=True)
    assert ran.done.returncode == 0, ran.done.stderr
    assert sizes(ran) == [4, 4, 3, 4]
    changes = [(event.step, event.value.get("sizes")) for event in ran.events("restarted")]
    assert changes == [(3, None), (3, {"learn": [4, 3]}), (6, {"learn": [3, 4]})]
    assert (
        "restarted after step 3, learn with 3 of 4 workers: learn:2 failed in stage update" in ran.done.stdout
    )
    assert [row["step"] for row in ran.rows] == [*range(1, 10)]
    assert ran.seen() == {step: [*range(12 * step - 12, 12 * step)] for step in range(1, 10)}


@pytest.mark.slow_suite
def test_a_run_goes_on_without_a_worker_that_raises_the_same_exception_twice(where: Path) -> None:
    """Its device may be broken. Another worker that raises it in the same step ends the run: the sample or the code
    is wrong."""
    ran = launch(where, "raises", "recipe.yaml", "name=raises", dies=True, raises="twice")
    assert ran.done.returncode == 0, ran.done.stderr
    assert sizes(ran) == [4, 4, 3, 4]
    causes = [event.value["cause"] for event in ran.events("restarted")]
    assert causes[:2] == ["learn:2 failed in stage update, step 4: RuntimeError: the device is broken"] * 2
    assert ran.seen() == {step: [*range(12 * step - 12, 12 * step)] for step in range(1, 10)}
    ran = launch(where, "wrong", "recipe.yaml", "name=wrong", raises="always")
    assert ran.done.returncode == 5 and sizes(ran) == [4, 4, 3], ran.done
    assert (
        "error: learn:2 failed in stage update, step 4: RuntimeError: the sample is wrong" in ran.done.stderr
    )
    [warning] = ran.events("warning")
    assert "the same exception was raised in the same step before" in warning.value["text"]


@pytest.mark.slow_suite
@pytest.mark.parametrize(
    ("layout", "smaller", "by_hand"),
    [
        ("{dp_size: 4}", 3, "{dp_size: 3}"),
        ("{fsdp_size: auto}", 3, "{fsdp_size: 3}"),
        ("{fsdp_size: 2, tp_size: 2}", 2, "{fsdp_size: 1, tp_size: 2}"),
    ],
    ids=["dp", "fsdp", "fsdp-tp"],
)
def test_the_metrics_are_those_of_runs_on_each_size(
    where: Path, layout: str, smaller: int, by_hand: str, request: pytest.FixtureRequest
) -> None:
    """The other run is started three times, by hand: with all ranks, with those that were left, and with all."""
    name = request.node.callspec.id
    first = f"components.learner.parallel={layout}"
    ran = launch(where, f"e-{name}", "recipe.yaml", f"name=e-{name}", first, dies=True)
    assert ran.done.returncode == 0, ran.done.stderr
    assert sizes(ran) == [4, 4, smaller, 4]
    hand = launch(where, f"h-{name}", "recipe.yaml", f"name=h-{name}", first, "run.steps=3", "~run.elastic")
    assert hand.done.returncode == 0, hand.done.stderr
    folder = str(hand.run.path)
    other = [f"groups.learn.ranks={smaller}", f"components.learner.parallel={by_hand}", "run.steps=6"]
    assert call(where, "launch", folder, *other).returncode == 0
    back = ["groups.learn.ranks=4", f"components.learner.parallel={layout}", "run.steps=9"]
    assert call(where, "launch", folder, *back).returncode == 0
    assert ran.seen() == {step: [*range(12 * step - 12, 12 * step)] for step in range(1, 10)}
    for own, others in zip(ran.rows, hand.rows, strict=True):
        assert own["update.loss"] == pytest.approx(others["update.loss"], rel=1e-6)


@pytest.mark.slow_suite
@pytest.mark.parametrize("layout", ["{dp_size: auto}", "{fsdp_size: auto}"], ids=["dp", "fsdp"])
def test_a_group_over_two_nodes(where: Path, layout: str, request: pytest.FixtureRequest) -> None:
    name, whole = f"nodes-{request.node.callspec.id}", f"whole-{request.node.callspec.id}"
    words = ("recipe.yaml", f"components.learner.parallel={layout}")
    nodes = ("--engine", "loopback", "+cluster.nodes=2", "+groups.read.nodes=0")
    ran = launch(where, name, *words, f"name={name}", *nodes, dies=True)
    assert ran.done.returncode == 0, ran.done.stderr
    assert sizes(ran) == [4, 4, 3, 4]
    assert ran.seen() == {step: [*range(12 * step - 12, 12 * step)] for step in range(1, 10)}
    other = launch(where, whole, *words, f"name={whole}")
    for own, others in zip(ran.rows, other.rows, strict=True):
        assert own["update.loss"] == pytest.approx(others["update.loss"], rel=1e-6)


DEVICES = """
groups:
  train: {ranks: 4, device_type: npu, visible_devices: "0,1,2,3", program: train.py, args: ["{run_dir}"]}
  read: {ranks: 1, device_type: cpu}
components:
  reader: {_target_: devices.Reader, group: read}
pipeline:
  batch: {call: reader.next, samples: 1}
run: {dir: runs, steps: 100000, checkpoint: {every: 2}, restarts: 5, elastic: {train: {min_ranks: 2}}}
"""
PROGRAM = """
import os, signal, sys, time
from pathlib import Path

run, device = Path(sys.argv[1]), Path("dev/davinci1")
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
(run / f"ran-{os.environ['MESHCTL_ATTEMPT']}-{rank}").write_text(f"{size} {os.environ['ASCEND_RT_VISIBLE_DEVICES']}")
while True:
    time.sleep(0.02)
    if rank == "1" and os.environ["MESHCTL_ATTEMPT"] == "0" and (run / "checkpoints" / "latest").is_symlink():
        device.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
"""
READER = """
import os
import time
from pathlib import Path

from meshctl import Batch, Component, endpoint


class Reader(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        time.sleep(0.05)
        attempt = int(os.environ["MESHCTL_ATTEMPT"])
        has_begun = all((self.run_dir / f"ran-{attempt}-{rank}").exists() for rank in range(3))
        if has_begun and attempt == 2 and self.step > 4:
            Path("dev/davinci1").touch()
        if has_begun and attempt == 3:
            self.stop("the device is used again")
        return Batch({"x": [0.0] * len(samples)})

    def __len__(self) -> int:
        return 100000
"""
FAKE_ROOT = """
from pathlib import Path
from meshctl.engines.checks import device_files
device_files.ROOT = Path.cwd()
"""


@pytest.mark.slow_suite
def test_a_device_that_vanishes_and_comes_back(tmp_path: Path) -> None:
    """The group is a program, because the devices are empty files, which no library can use."""
    (tmp_path / "dev").mkdir()
    for number in range(4):
        (tmp_path / "dev" / f"davinci{number}").touch()
    written(tmp_path, DEVICES, train=PROGRAM, devices=READER)
    done = call(tmp_path, "launch", "recipe.yaml", "name=devices", program=FAKE_ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = Ran(done, *runs_in(tmp_path))
    assert [event.value["workers"]["train"] for event in ran.events("launched")] == [4, 4, 3, 4]
    assert (
        "restarted after step" in done.stdout
        and "train with 3 of 4 workers: node 0 lacks npu device 1" in done.stdout
    )
    texts = [(ran.run.path / f"ran-{attempt}-1").read_text() for attempt in (2, 3)]
    assert texts == ["3 0,2,3", "4 0,1,2,3"]
    assert [event.value["left"] for event in ran.events("restarted")] == [4, 4, 4]
