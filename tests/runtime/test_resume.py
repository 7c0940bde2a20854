"""Whole runs whose components have state that differs between ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command_server import call

PARTS = """
import torch
from meshctl import Batch, Component, endpoint

class Reader(Component):
    def __init__(self):
        self.random = torch.Generator().manual_seed(self.mesh.data_rank())
        self.position = 0

    @endpoint
    def next(self, samples: range) -> Batch:
        self.position += len(samples) + self.mesh.data_rank()
        x = torch.rand(len(samples), generator=self.random) + self.position
        return Batch({"x": x})

    def state_dict(self):
        return {"loader": {"position": self.position}, "random": self.random.get_state()}

    def load_state_dict(self, state):
        self.position = state["loader"]["position"]
        self.random.set_state(state["random"])

class Learner(Component):
    def setup(self):
        self.total = 0.0

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        self.total += float(batch["x"].sum()) * (1 + self.mesh.dim_rank("tp"))
        return {"total": self.total}

    def state_dict(self):
        total = self.collective("dp").all_reduce(torch.tensor(self.total, dtype=torch.float64))
        return {"total": float(total)}

    def load_state_dict(self, state):
        self.total = state["total"]

class Unstorable(Learner):
    def state_dict(self):
        return {"a": {"random": torch.Generator()}}

class Half(Component):
    @endpoint
    def update(self, batch: Batch) -> None: ...

setattr(Half, "state_dict", lambda self: {})  # which cannot be read as text
"""

RECIPE = """
name: whole
groups:
  read: {ranks: 2, device_type: cpu}
  learn: {ranks: 2, device_type: cpu}
components:
  reader: {_target_: parts.Reader, group: read}
  learner: {_target_: parts.Learner, group: learn, parallel: {tp_size: 2}}
pipeline:
  batch: {call: reader.next, samples: 4}
  seen: {call: learner.update, in: batch}
run: {steps: 4, dir: runs, checkpoint: {every: 2}}
"""


@dataclass(frozen=True)
class Ran:
    code: int
    err: str
    folder: Path

    @property
    def rows(self) -> list[dict[str, float]]:
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [{key: value for key, value in json.loads(line).items() if key != "time"} for line in lines]


def launch(where: Path, *words: str, name: str = "whole") -> Ran:
    done = call(where, "launch", *words)
    [folder] = (where / "runs" / name).iterdir()
    return Ran(done.returncode, done.stderr, folder)


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    (folder / "parts.py").write_text(PARTS)
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def part(where: Path) -> Ran:
    ran = launch(where, "recipe.yaml", "run.steps=2", "name=part", name="part")
    assert ran.code == 0, ran.err
    return ran


@pytest.mark.slow
def test_each_rank_continues_with_its_own_state(where: Path, part: Ran) -> None:
    whole = launch(where, "recipe.yaml")
    assert whole.code == 0, whole.err
    assert launch(where, str(part.folder), "run.steps=4", name="part").code == 0
    assert part.rows == whole.rows and len(part.rows) == 4


@pytest.mark.slow
def test_a_changed_dim_is_refused_before_anything_starts(where: Path, part: Ran) -> None:
    before = sorted(path.name for path in (part.folder / "events").iterdir())
    again = launch(where, str(part.folder), "run.steps=6", "groups.read.ranks=4", name="part")
    assert again.code == 4 and "Traceback" not in again.err
    [line] = [line for line in again.err.splitlines() if line.startswith("error[MC724]: ")]
    assert line.endswith(
        "the state of `reader` was saved with dp 2 and cannot be loaded with dp 4: "
        "`loader.position` and `random` differ along `dp`"
    )
    assert sorted(path.name for path in (part.folder / "events").iterdir()) == before


@pytest.mark.slow
def test_equal_state_is_loaded_on_another_mesh(where: Path, part: Ran) -> None:
    again = launch(where, str(part.folder), "run.steps=6", "groups.learn.ranks=4", name="part")
    assert again.code == 0, again.err


@pytest.mark.slow
def test_what_cannot_be_stored_is_one_line_in_the_step_of_the_checkpoint(where: Path) -> None:
    ran = launch(
        where, "recipe.yaml", "name=unstorable", "components.learner._target_=parts.Unstorable",
        name="unstorable",
    )  # fmt: skip
    assert ran.code == 5 and "Traceback" not in ran.err
    reason = (
        "the state of `learner` cannot be stored: `a.random` is a torch._C.Generator: store its `get_state()`"
    )
    assert reason in ran.err and "step 2" in ran.err


@pytest.mark.slow
def test_a_component_with_half_of_the_methods_is_refused(where: Path) -> None:
    ran = launch(where, "recipe.yaml", "name=half", "components.learner._target_=parts.Half", name="half")
    assert ran.code == 5 and "Traceback" not in ran.err
    assert "`learner` has `state_dict` and no `load_state_dict`: its state would be lost" in ran.err
