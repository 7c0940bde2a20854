"""Whole runs from the command line: resume, re-sharding, state that differs between ranks, weights between
meshes, errors in the recipe's code."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.command_server import call

pytestmark = pytest.mark.slow

PARTS = """
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from meshctl import Batch, Component, endpoint


def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))


class Source(Component):
    # has a state of its own on each rank
    def __init__(self):
        self.random = torch.Generator().manual_seed(self.mesh.data_rank())
        self.position = 0

    def __len__(self):
        return 1000

    @endpoint
    def next(self, samples: range):
        self.position += 1 + self.mesh.data_rank()
        noise = torch.rand(len(samples), 1, generator=self.random) + 0.01 * self.position
        return Batch({"x": torch.tensor([[n % 7, n % 5, n % 3, 1.0] for n in samples]) + noise})

    def state_dict(self):
        return {"loader": {"position": self.position}, "random": self.random.get_state()}

    def load_state_dict(self, state):
        self.position = state["loader"]["position"]
        self.random.set_state(state["random"])


class Sampler(Component):
    def setup(self):
        self.net = net()

    @endpoint
    def sample(self, batch: Batch) -> Batch:
        with torch.no_grad():
            return batch.with_columns(y=self.net(batch["x"]) + 0.01 * batch["x"][:, :3])

    def load_weights(self, stream):
        self.net.load_state_dict({name: tensor.clone() for name, tensor in stream})


class Trainer(Component):
    def setup(self):
        self.net = net()
        assert self.collective("local").size == self.collective("world").size == self.mesh.world_size
        if self.mesh.world_size > 1:
            fully_shard(self.net, mesh=self.torch_mesh["fsdp"])
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=0.05)

    @endpoint(collect="mean")
    def update(self, batch: Batch):
        target = batch["x"].sum(1, keepdim=True)
        # every rank has the same number of samples here, so the mean of means is the mean
        loss = (self.net(batch["x"]) - target).square().mean() + 0 * batch["y"].mean()
        loss.backward()
        self.opt.step()
        self.opt.zero_grad()
        seen = {"seen": batch["y"].mean().item(), "version": batch["@version"].max().item(), "first": batch.ids.min().item()}
        return {"loss": loss.item(), **seen}

    def weights(self):
        yield from self.net.named_parameters()

    def state_dict(self):
        model, optimizer = get_state_dict(self.net, self.opt)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.net, self.opt, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


class Half(Component):
    @endpoint(collect="mean")
    def update(self, batch: Batch):
        return {}


setattr(Half, "state_dict", lambda self: {})  # which cannot be read as text


class Broken(Trainer):
    @endpoint(collect="mean")
    def update(self, batch: Batch):
        if self.step == 2 and self.rank == 1:
            raise KeyError("nothing there")
        return {}


class Scribbler(Trainer):
    @endpoint(collect="mean")
    def update(self, batch: Batch):
        batch["x"][0] = 0.0
        return {}
"""
RECIPE = """
name: learns
seed: 3
groups:
  rollout: {ranks: 2, device_type: cpu}
  train: {ranks: 2, device_type: cpu}
components:
  prompts: {_target_: parts.Source, group: rollout}
  sampler: {_target_: parts.Sampler, group: rollout}
  actor: {_target_: parts.Trainer, group: train, parallel: {fsdp_size: auto}}
pipeline:
  batch: {call: prompts.next, samples: 8}
  made: {call: sampler.sample, in: batch}
  learnt: {call: actor.update, in: made}
  publish: {sync: actor, to: sampler, every: 2}
run: {steps: 9, dir: runs, checkpoint: {every: 3}}
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    folder: Path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def curve(self, name: str) -> list[float]:
        return [line[name] for line in self.metrics]


def launch(where: Path, *words: str) -> Ran:
    done = call(where, "launch", *words)
    folders = sorted((where / "runs").glob("*/*"), key=lambda run: run.name)
    return Ran(done.returncode, done.stdout, done.stderr, folders[-1] if folders else where)


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("it's a place")
    (folder / "parts.py").write_text(PARTS)
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def whole(where: Path) -> Ran:
    ran = launch(where, "recipe.yaml")
    assert ran.code == 0, ran.err
    return ran


@pytest.fixture(scope="module")
def part(where: Path) -> Path:
    """Returns the folder of a run of three steps. No sync runs in the last one, in whose cut the sampler gets
    the weights."""
    first = launch(where, "recipe.yaml", "run.steps=3", "name=part")
    assert first.code == 0, first.err
    [folder] = (where / "runs" / "part").iterdir()
    return folder


def resumed(part: Path, name: str, *words: str) -> Ran:
    """Continues a copy of the run."""
    folder = part.parent.parent / name / part.name
    shutil.copytree(part, folder, symlinks=True)
    done = call(part, "launch", str(folder), *words)
    return Ran(done.returncode, done.stdout, done.stderr, folder)


def test_a_run_learns_with_the_weights_of_the_last_sync(whole: Ran) -> None:
    loss = whole.curve("learnt.loss")
    assert len(loss) == 9 and loss[-1] < loss[0]
    assert whole.curve("learnt.version") == [0, 0, 2, 3, 4, 4, 6, 6, 8], "3 and 6 are cuts"
    # the mean of the two shares' first: 8 k and 8 k + 4
    assert whole.curve("learnt.first") == [8 * step + 2.0 for step in range(9)]
    assert len(set(whole.curve("learnt.seen"))) == 9  # the sampler's weights do change
    assert (whole.folder / "checkpoints" / "latest").resolve().name == "step-9"
    assert (whole.folder / "logs" / "train" / "1.log").exists()


def test_a_resumed_run_has_the_same_curve_as_one_that_was_not_interrupted(part: Path, whole: Ran) -> None:
    """Each rank continues with its own state."""
    again = resumed(part, "resumed", "run.steps=9")
    assert again.code == 0, again.err
    assert [line["step"] for line in again.metrics] == list(range(1, 10))
    for name in ("learnt.loss", "learnt.seen", "learnt.version", "learnt.first"):
        assert again.curve(name) == whole.curve(name)


def test_a_resume_on_another_mesh_goes_on_with_the_same_samples(part: Path, whole: Ran) -> None:
    again = resumed(part, "resharded", "run.steps=9", "groups.train.ranks=1")
    assert again.code == 0, again.err
    assert again.curve("learnt.loss") == pytest.approx(whole.curve("learnt.loss"), rel=1e-5)
    assert again.curve("learnt.first")[3:] == [8.0 * step for step in range(3, 9)]


def test_a_changed_dim_of_state_that_differs_is_refused_before_anything_starts(part: Path) -> None:
    again = resumed(part, "refused", "run.steps=6", "groups.rollout.ranks=4")
    assert again.code == 4 and "Traceback" not in again.err
    [line] = [line for line in again.err.splitlines() if line.startswith("error[MC724]: ")]
    assert line.endswith(
        "the state of `prompts` was saved with dp 2 and cannot be loaded with dp 4: "
        "`loader.position` and `random` differ along `dp`"
    )
    events = [{path.name for path in (run / "events").iterdir()} for run in (part, again.folder)]
    assert events[0] == events[1]


def test_state_that_would_be_lost_is_an_error_of_one_line(where: Path) -> None:
    words = ("~components.sampler", "~pipeline.made", "~pipeline.publish", "pipeline.learnt.in=batch")
    ran = launch(where, "recipe.yaml", "name=half", "components.actor._target_=parts.Half", *words)
    assert ran.code == 5 and "Traceback" not in ran.err
    assert "`actor` has `state_dict` and no `load_state_dict`: its state would be lost" in ran.err


def test_a_run_that_is_done_has_nothing_left_to_do(where: Path, whole: Ran) -> None:
    before = (whole.folder / "recipe.yaml").read_text()
    again = launch(where, str(whole.folder), "run.steps=4")
    assert again.code == 0 and not re.search("^(error|warning|note)", again.err, re.MULTILINE), again.err
    assert "the run is complete: its last checkpoint is of step 9 of 4" in again.out
    assert (whole.folder / "recipe.yaml").read_text() == before


def test_a_damaged_checkpoint_names_itself_and_no_worker_starts(where: Path, whole: Ran) -> None:
    for part in (whole.folder / "checkpoints").glob("step-*/actor/*.distcp"):
        part.write_bytes(b"")
    again = launch(where, str(whole.folder), "run.steps=12")
    assert again.code == 4
    assert "checkpoints/step-9/actor" in again.err and "was written with" in again.err


def test_an_endpoint_that_raises_is_named_once_with_its_traceback(where: Path) -> None:
    ran = launch(where, "recipe.yaml", "name=broken", "components.actor._target_=parts.Broken")
    assert ran.code == 5
    assert ran.err.count("train:1 failed in stage learnt, step 2: KeyError: 'nothing there'") == 1
    assert ran.err.count("Traceback") == 1 and "parts.py" in ran.err and "meshctl/runtime" not in ran.err
    assert "log: " in ran.err


def test_an_endpoint_that_writes_into_its_batch_is_named_with_its_line_and_a_hint_to_clone(
    where: Path,
) -> None:
    words = ("pipeline.batch.samples=4096", "components.actor._target_=parts.Scribbler")
    ran = launch(where, "recipe.yaml", "name=scribbler", *words)
    assert ran.code == 5
    cause = (
        r"train:\d failed in stage learnt, step 1: killed by SIGSEGV \(a received batch is read-only: clone"
    )
    assert re.search(cause, ran.err)
    assert "runtime/loop.py" not in ran.err, "the stack ends where the user's code ends"
    line = PARTS.splitlines().index('        batch["x"][0] = 0.0') + 1
    assert f'parts.py", line {line} in update' in ran.err
