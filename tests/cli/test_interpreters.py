"""Groups with interpreters of their own, from `validate` to a run."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path

import pytest

from tests.cli.commands import meshctl
from tests.cli.small_launch import PATIENT, run_of, started, steps, wait_for_processes
from tests.environments import OURS, distribution, environment, site_packages
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


class Maker(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        ids = list(samples)
        rows = Ragged.of([torch.arange(number % 3 + 1) for number in ids])
        return Batch({"x": torch.tensor(ids), "rows": rows, "text": [f"sample {number}" for number in ids]})


class Sampler(Component):
    def __init__(self, mood: str = "") -> None:
        self.mood, self.version = mood, torch.zeros(3)

    def load_weights(self, stream):
        for _, tensor in stream:
            self.version.copy_(tensor)

    @endpoint
    def sample(self, batch: Batch) -> Batch:
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
        self.weight = torch.zeros(3)

    def weights(self):
        return {"weight": self.weight}

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        assert here() != "other", sys.prefix
        assert set(batch["made_in"]) == {"other other"}, batch["made_in"]
        for number, row, text in zip(batch["x"].tolist(), batch["rows"].rows(), batch["text"], strict=True):
            assert row.tolist() == list(range(number % 3 + 1)) and text == f"sample {number}"
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


@pytest.mark.slow
def test_two_groups_with_two_interpreters(folder: Path) -> None:
    """Routes lead in both directions, and weights from one interpreter to the other."""
    done = meshctl(folder, "launch", "recipe.yaml")
    assert done.returncode == 0, done.stderr + done.stdout
    rows = [json.loads(line) for line in (run_of(folder) / "metrics.jsonl").read_text().splitlines()]
    assert [row["metrics.version"] for row in rows] == [0, 1, 2]
    assert [row["metrics.samples"] for row in rows] == [12, 12, 12]
    wait_for_processes(folder)


VERSIONS = """
import torch
from meshctl import Batch, Component, endpoint

COLUMNS = {
    "brain": torch.tensor([0.1, -2.5, 3.0]).to(torch.bfloat16),
    "small": torch.tensor([0.5, -2.0, 448.0]).half(),
    "flags": torch.tensor([True, False, True]),
    "waves": torch.tensor([1 + 2j, -1j, 3.0]),
}


def check(batch):
    for name, column in COLUMNS.items():
        expected = column[batch["x"]]
        assert batch[name].dtype == expected.dtype, (name, batch[name].dtype)
        assert batch[name].tolist() == expected.tolist(), name
    assert {*batch["torch"]}.isdisjoint({torch.__version__}), "the other group has another version"


class Maker(Component):
    def __init__(self):
        self.weight = torch.zeros(3)

    @endpoint
    def next(self, samples: range) -> Batch:
        x = torch.tensor([number % 3 for number in samples])
        return Batch({**{k: v[x] for k, v in COLUMNS.items()}, "x": x, "torch": [torch.__version__] * len(x)})

    def weights(self):
        return {"weight": self.weight.bfloat16()}

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        check(batch)
        self.weight += 1
        return {"version": float(batch["version"].mean())}


class Sampler(Component):
    def load_weights(self, stream):
        [(_, tensor)] = stream
        assert tensor.dtype == torch.bfloat16
        self.version = float(tensor[0])

    @endpoint
    def sample(self, batch: Batch) -> Batch:
        check(batch)
        columns = {name: batch[name] for name in ("x", *COLUMNS)}
        version = torch.full((len(batch),), self.version)
        return Batch({**columns, "torch": [torch.__version__] * len(batch), "version": version}, ids=batch.ids)
"""
VERSIONS_RECIPE = f"""
name: small
groups:
  rollout: {{ranks: 2, device_type: cpu, python: {OTHER_TORCH}}}
  train: {{ranks: 1, device_type: cpu}}
components:
  maker: {{_target_: parts.Maker, group: train}}
  sampler: {{_target_: parts.Sampler, group: rollout}}
pipeline:
  batch: {{call: maker.next, samples: 6}}
  answers: {{call: sampler.sample, in: batch, samples: 6}}
  metrics: {{call: maker.update, in: answers}}
  publish: {{sync: maker, to: sampler}}
run: {{steps: 3, dir: runs}}
"""


@pytest.mark.slow_suite
@pytest.mark.skipif(not OTHER_TORCH.exists(), reason="`make torch` sets up the other version of torch")
def test_two_groups_with_two_versions_of_torch(tmp_path: Path) -> None:
    """Batches of many dtypes go both ways, and weights one way."""
    (tmp_path / "parts.py").write_text(VERSIONS)
    (tmp_path / "recipe.yaml").write_text(VERSIONS_RECIPE)
    done = meshctl(tmp_path, "launch", "recipe.yaml")
    assert done.returncode == 0, done.stderr + done.stdout
    rows = [json.loads(line) for line in (run_of(tmp_path) / "metrics.jsonl").read_text().splitlines()]
    assert [row["metrics.version"] for row in rows] == [0, 1, 2]
    wait_for_processes(tmp_path)


@pytest.mark.slow_suite
def test_a_worker_that_dies_in_the_other_interpreter_is_the_cause(folder: Path) -> None:
    done = meshctl(folder, "launch", "recipe.yaml", "components.sampler.args.mood=dies")
    assert done.returncode == 5
    first, *_ = own_lines(done.stderr)
    assert first.startswith("error: rollout:1 failed: killed by SIGABRT after step 1"), done.stderr
    wait_for_processes(folder)


@pytest.mark.slow_suite
def test_ctrl_c_ends_the_other_interpreter_too(folder: Path) -> None:
    words = ("components.sampler.args.mood=slow", PATIENT, "run.steps=100000")
    with started(folder, "recipe.yaml", *words) as run:
        assert run.stdout
        while "step 1" not in run.stdout.readline():
            assert run.poll() is None
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate()
    assert (run.returncode, own_lines(errors)) == (130, [])
    assert steps(run_of(folder))
    wait_for_processes(folder)


def refused(folder: Path, python: str) -> str:
    """Returns what `launch` says about an interpreter that cannot be used, after its path and its group."""
    done = meshctl(folder, "launch", "recipe.yaml", f"groups.rollout.python={json.dumps(python)}")
    assert done.returncode == 4, done.stdout + done.stderr
    assert not (folder / "runs").exists()
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert sentence.startswith("error: the interpreter ")
    return sentence.partition(" of group `rollout` ")[2]


def test_an_interpreter_that_is_missing(folder: Path) -> None:
    """A note in `validate`, which may run on another machine; an error at launch."""
    done = meshctl(folder, "validate", "recipe.yaml", "groups.rollout.python=none/python")
    assert done.returncode == 0
    assert (
        f"note[MC322]: the interpreter {folder}/none/python of group `rollout` does not exist" in done.stdout
    )
    assert refused(folder, "none/python") == "does not exist"
    problem, _, remedy = refused(folder, "none/bin/python").partition(": ")
    place, python = (shlex.quote(f"{folder}/{name}") for name in ("none", "none/bin/python"))
    assert problem == "does not exist"
    assert remedy.startswith(f"python3 -m venv {place} && {python} -m pip install ")


@pytest.mark.slow
def test_meshctl_and_its_libraries_must_be_there(folder: Path) -> None:
    empty = environment(folder / "envs" / "empty")
    problem, _, remedy = refused(folder, str(empty)).partition(": ")
    assert problem == "has no meshctl" and remedy.startswith(f"{shlex.quote(str(empty))} -m pip install ")
    noted = meshctl(folder, "validate", "recipe.yaml", f"groups.rollout.python={json.dumps(str(empty))}")
    assert "note[MC322]" in noted.stdout and f"help: {remedy}" in noted.stdout
    bare = environment(folder / "envs" / "bare", OURS[1])
    assert refused(folder, str(bare)).startswith("lacks `torch`, `numpy` and `msgpack`: ")


@pytest.mark.slow
def test_another_version_of_meshctl_is_refused(folder: Path) -> None:
    site = site_packages(folder / "envs" / "other")
    (site / "packages.pth").write_text(f"{OURS[0]}\n")
    (site / "meshctl").mkdir()
    (site / "meshctl" / "__init__.py").write_text('__version__ = "9.0"\n')
    assert refused(folder, "envs/other/bin/python").startswith("has meshctl 9.0, and this is ")
    noted = meshctl(folder, "validate", "recipe.yaml")
    assert "of group `rollout` has meshctl 9.0, and this is " in noted.stdout
    distribution(site, "meshctl", "9.0")
    noted = meshctl(folder, "validate", "recipe.yaml")
    assert "of group `rollout` has the distribution `meshctl` 9.0 (another tool)" in noted.stdout
    assert " -m pip uninstall -y meshctl meshctl-torch, then " in noted.stdout


def test_pictures_and_the_dry_run_show_the_interpreter(folder: Path) -> None:
    drawn = meshctl(folder, "show-topology", "recipe.yaml").stdout
    assert "rollout  2 workers on cpu, node 0, python envs/other/bin/python" in drawn
    zoomed = meshctl(folder, "show-topology", "recipe.yaml", "--rank", "rollout:1").stdout
    assert "on cpu, python envs/other/bin/python" in zoomed
    dry = meshctl(folder, "launch", "--dry-run", "recipe.yaml").stdout
    assert "  rollout: 2 x cpu, components sampler, python envs/other/bin/python\n" in dry
    assert "  train: 1 x cpu, components maker, trainer\n" in dry
    other = (folder / "recipe.yaml").read_text().replace("envs/other", "envs/new")
    (folder / "other.yaml").write_text(other)
    changed = meshctl(folder, "show-topology", "other.yaml", "--diff", "recipe.yaml").stdout
    assert "python" in changed and "envs/new/bin/python" in changed


def test_classes_are_read_on_the_path_of_the_interpreter(folder: Path) -> None:
    """A class that only the other interpreter has is found there, and not for a group without it."""
    (site_packages(folder / "envs" / "other") / "engine.py").write_text(PARTS)
    right = meshctl(folder, "validate", "recipe.yaml", "components.sampler._target_=engine.Sampler")
    assert (right.returncode, "note" in right.stdout) == (0, False), right.stdout
    wrong = meshctl(folder, "validate", "recipe.yaml", "components.trainer._target_=engine.Trainer")
    assert wrong.returncode == 1 and "error[MC501]: module `engine` was not found" in wrong.stdout
    misspelt = meshctl(folder, "validate", "recipe.yaml", "components.sampler._target_=engine.Smapler")
    assert misspelt.returncode == 1 and "did you mean `Sampler`?" in misspelt.stdout
    absent = ("components.sampler._target_=engine.Sampler", "groups.rollout.python=none/python")
    elsewhere = meshctl(folder, "validate", "recipe.yaml", *absent)
    assert elsewhere.returncode == 0 and "note[MC504]: `engine.Sampler` cannot be checked" in elsewhere.stdout


def test_the_extras_of_a_group_are_those_of_its_interpreter(folder: Path) -> None:
    (folder / "parts.py").write_text(
        PARTS.replace("class Sampler(Component):", 'class Sampler(Component):\n    EXTRA = "hf"')
    )
    assert "MC442" not in meshctl(folder, "validate", "recipe.yaml").stdout
    bare = environment(folder / "envs" / "bare", OURS[1])
    noted = meshctl(
        folder, "validate", "recipe.yaml", f"groups.rollout.python={json.dumps(str(bare))}"
    ).stdout
    assert f"not installed for {bare}" in noted and f"help: {shlex.quote(str(bare))} -m pip install" in noted
