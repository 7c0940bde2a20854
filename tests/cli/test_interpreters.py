"""Groups with interpreters of their own, from `validate` to a run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.cli.small_launch import rows, run_of, wait_for_processes
from tests.environments import OURS, environment, site_packages
from tests.log_text import own_lines
from tests.paths import ROOT

OTHER_TORCH = ROOT / ".venv-torch" / "bin" / "python"
PARTS = """
import os
import sys
import time
import torch
from meshctl import Batch, Component, Ragged, endpoint


def here():
    return sys.prefix.rpartition("/")[2]


COLUMNS = {
    "brain": torch.tensor([0.1, -2.5, 3.0]).to(torch.bfloat16),
    "small": torch.tensor([0.5, -2.0, 448.0]).half(),
    "flags": torch.tensor([True, False, True]),
    "waves": torch.tensor([1 + 2j, -1j, 3.0]),
}


def check(batch):
    for name, column in COLUMNS.items():
        expected = column[batch["x"] % 3]
        assert batch[name].dtype == expected.dtype and batch[name].tolist() == expected.tolist(), name
    for number, row, text in zip(batch["x"].tolist(), batch["rows"].rows(), batch["text"], strict=True):
        assert row.tolist() == list(range(number % 3 + 1)) and text == f"sample {number}"


class Maker(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        ids = torch.tensor(list(samples))
        rows = Ragged.of([torch.arange(number % 3 + 1) for number in ids.tolist()])
        texts = [f"sample {number}" for number in ids.tolist()]
        return Batch({**{k: v[ids % 3] for k, v in COLUMNS.items()}, "x": ids, "rows": rows, "text": texts})


class Sampler(Component):
    def __init__(self, mood: str = "") -> None:
        self.mood, self.version = mood, torch.zeros(3, dtype=torch.bfloat16)

    def load_weights(self, stream):
        for _, tensor in stream:
            self.version.copy_(tensor)

    @endpoint
    def sample(self, batch: Batch) -> Batch:
        check(batch)
        if self.mood == "dies" and self.step == 2 and self.rank == 1:
            os.abort()
        if self.mood == "slow":
            time.sleep(0.05)
        answers = batch.repeat(2)
        version = torch.full((len(answers),), float(self.version[0]))
        made_in = [f"{here()} {os.environ.get('VIRTUAL_ENV', '').rpartition('/')[2]}"] * len(answers)
        return Batch({**answers.columns, "version": version, "made_in": made_in}, ids=answers.ids)


class Trainer(Component):
    def __init__(self) -> None:
        self.weight = torch.zeros(3, dtype=torch.bfloat16)

    def weights(self):
        return {"weight": self.weight}

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        [made_in] = {*batch["made_in"]}
        assert here() not in made_in and made_in.split()[0] == made_in.split()[1], made_in
        check(batch)
        self.weight += 1
        return {"version": float(batch["version"].mean()), "samples": float(len(batch))}
"""

RECIPE = """
name: small
groups:
  rollout: {ranks: 2, device_type: cpu, python: envs/other/bin/python}
  train: {ranks: 1, device_type: cpu}
components:
  maker: {_target_: parts.Maker, group: train}
  sampler: {_target_: parts.Sampler, group: rollout, args: {mood: ""}}
  trainer: {_target_: parts.Trainer, group: train}
pipeline:
  prompts: {call: maker.next, samples: 6}
  answers: {call: sampler.sample, in: prompts, samples: 12}
  metrics: {call: trainer.update, in: answers}
  publish: {sync: trainer, to: sampler}
run: {steps: 3, dir: runs}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "it's a recipe"
    folder.mkdir()
    (folder / "parts.py").write_text(PARTS)
    (folder / "recipe.yaml").write_text(RECIPE)
    environment(folder / "envs" / "other", *OURS)
    return folder


WITHOUT = pytest.mark.skipif(
    not OTHER_TORCH.exists(), reason="`make torch` sets up the other version of torch"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "python",
    ["envs/other/bin/python", pytest.param(str(OTHER_TORCH), marks=[pytest.mark.slow_suite, WITHOUT])],
    ids=["environment", "torch"],
)
def test_two_groups_with_two_interpreters(python: str, folder: Path) -> None:
    """Batches of many dtypes go both ways, and weights from one interpreter, or version of torch, to the other."""
    done = meshctl(folder, "launch", "recipe.yaml", f"groups.rollout.python={python}")
    assert done.returncode == 0, done.stderr + done.stdout
    found = [(row["metrics.version"], row["metrics.samples"]) for row in rows(run_of(folder))]
    assert found == [(0, 12), (1, 12), (2, 12)]
    wait_for_processes(folder)


@pytest.mark.slow_suite
def test_a_worker_that_dies_in_the_other_interpreter_is_the_cause(folder: Path) -> None:
    done = meshctl(folder, "launch", "recipe.yaml", "components.sampler.args.mood=dies")
    assert done.returncode == 5
    first, *_ = own_lines(done.stderr)
    assert first.startswith("error: rollout:1 failed: killed by SIGABRT after step 1"), done.stderr
    wait_for_processes(folder)


def validated(folder: Path, *words: str) -> tuple[int, str]:
    done = meshctl(folder, "validate", "recipe.yaml", *words)
    return done.returncode, done.stdout


def test_an_interpreter_that_is_missing(folder: Path) -> None:
    """A note in `validate`, which may run on another machine; an error at launch."""
    missing = ("recipe.yaml", "groups.rollout.python=none/bin/python")
    place, python = (shlex.quote(f"{folder}/{name}") for name in ("none", "none/bin/python"))
    problem = f"the interpreter {folder}/none/bin/python of group `rollout` does not exist"
    code, output = validated(folder, missing[1])
    assert code == 0 and f"note[MC322]: {problem}" in output
    done = meshctl(folder, "launch", *missing)
    assert done.returncode == 4 and not (folder / "runs").exists()
    remedy = f"python3 -m venv {place} && {python} -m pip install "
    assert done.stderr.startswith(f"error: {problem}: {remedy}")


def test_meshctl_and_its_version_must_be_there(folder: Path) -> None:
    empty = environment(folder / "envs" / "empty")
    done = meshctl(folder, "launch", "recipe.yaml", f"groups.rollout.python={json.dumps(str(empty))}")
    remedy = f"{shlex.quote(str(empty))} -m pip install "
    assert done.returncode == 4 and f" of group `rollout` has no meshctl: {remedy}" in done.stderr
    bare = environment(folder / "envs" / "bare", OURS[1])
    done = meshctl(folder, "launch", "recipe.yaml", f"groups.rollout.python={json.dumps(str(bare))}")
    assert done.returncode == 4 and " lacks `torch`, `numpy` and `msgpack`: " in done.stderr


def test_pictures_and_the_dry_run_show_the_interpreter(folder: Path) -> None:
    drawn = meshctl(folder, "show-topology", "recipe.yaml").stdout
    assert "rollout  2 workers on cpu, node 0, python envs/other/bin/python" in drawn
    zoomed = meshctl(folder, "show-topology", "recipe.yaml", "--rank", "rollout:1").stdout
    assert "on cpu, python envs/other/bin/python" in zoomed
    dry = meshctl(folder, "launch", "--dry-run", "recipe.yaml").stdout
    assert "  rollout: 2 x cpu, components sampler, python envs/other/bin/python\n" in dry
    assert "  train: 1 x cpu, components maker, trainer\n" in dry
    other = "groups.rollout.python=envs/new/bin/python"
    changed = meshctl(folder, "show-topology", "recipe.yaml", other, "--diff", "recipe.yaml").stdout
    assert "python" in changed and "envs/new/bin/python" in changed


def test_classes_are_those_of_the_interpreter(folder: Path) -> None:
    """A class that only the other interpreter has is found there, and not for a group without it."""
    (site_packages(folder / "envs" / "other") / "engine.py").write_text(PARTS)
    sampler, trainer = (f"components.{name}._target_=engine" for name in ("sampler", "trainer"))
    code, output = validated(folder, f"{sampler}.Sampler")
    assert (code, "note" in output) == (0, False), output
    code, output = validated(folder, f"{trainer}.Trainer")
    assert code == 1 and "error[MC501]: module `engine` was not found" in output
    code, output = validated(folder, f"{sampler}.Smapler")
    assert code == 1 and "did you mean `Sampler`?" in output
    code, output = validated(folder, f"{sampler}.Sampler", "groups.rollout.python=none/python")
    assert code == 0 and "note[MC504]: `engine.Sampler` cannot be checked" in output
