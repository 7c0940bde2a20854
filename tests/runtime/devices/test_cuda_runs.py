"""Whole runs whose batches and weights go from device to device. Each test states how many devices it needs.

pytest -m gpu tests/runtime/devices/test_cuda_runs.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from meshctl.run.events import Follower
from tests.command_server import call
from tests.runtime.devices.standin import gpus

PARTS = """
import torch
from meshctl import Batch, Component, Ragged, endpoint


class Prompts(Component):
    def __len__(self):
        return 1000

    @endpoint
    def next(self, samples: range):
        numbers = torch.tensor(list(samples), device=self.device)
        rows = [torch.full((n % 5 + 1,), n, device=self.device) for n in samples]
        wide = numbers[:, None].float().expand(-1, 100_000).contiguous()
        return Batch({"n": numbers, "wide": wide, "rows": Ragged.of(rows), "text": [str(n) for n in samples]})


class Sampler(Component):
    def setup(self):
        self.weight = torch.zeros(1000, 300, device=self.device)

    @endpoint
    def sample(self, batch: Batch) -> Batch:
        scale = self.weight.flatten()[-1]
        half = self.weight.new_full((len(batch),), 0.5, dtype=torch.bfloat16)
        return batch.with_columns(scaled=batch["wide"] * scale, half=half)

    def load_weights(self, stream):
        for name, tensor in stream:
            assert tensor.device.type == self.device.type, (name, tensor.device)
            self.weight.copy_(tensor)


class Trainer(Component):
    def setup(self):
        self.weight = torch.ones(1000, 300, device=self.device)
        self.last = None

    @endpoint(collect="mean")
    def update(self, batch: Batch):
        n = torch.tensor([int(text) for text in batch["text"]], device=self.device)
        there = sum(batch[name].device.type == self.device.type for name in ("n", "wide", "scaled", "half"))
        same = torch.equal(batch["n"], n) and torch.equal(batch["wide"][:, 7], n.float()) and batch["half"].eq(0.5).all().item()
        rows = batch["rows"].values.sum().item() == sum((k % 5 + 1) * k for k in n.tolist())
        scaled = torch.equal(batch["scaled"][:, -1], n.float() * self.step)
        kept = self.last is None or torch.equal(self.last, self.kept)  # what was cloned stays, whatever came since
        self.last, self.kept = batch["wide"].clone(), batch["wide"].clone()
        self.weight += 1
        return {"there": there, "same": float(same), "rows": float(rows), "scaled": float(scaled), "kept": float(kept)}

    def weights(self):
        yield "weight", self.weight
"""
RECIPE = """
name: devices
groups:
  rollout: {ranks: 1, device_type: cuda}
  train: {ranks: 1, device_type: cuda}
components:
  prompts: {_target_: parts.Prompts, group: rollout}
  sampler: {_target_: parts.Sampler, group: rollout}
  actor: {_target_: parts.Trainer, group: train}
pipeline:
  batch: {call: prompts.next, samples: 7}
  made: {call: sampler.sample, in: batch}
  learnt: {call: actor.update, in: made}
  publish: {sync: actor, to: sampler}
run: {steps: 12, dir: runs}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(["groups.rollout.device_type=cpu", "groups.train.device_type=cpu"], id="cpu"),
        pytest.param(["+groups.train.colocate=rollout"], id="one device", marks=[pytest.mark.gpu, pytest.mark.skipif(
            torch.cuda.device_count() < 1, reason="needs a CUDA device")]),
        pytest.param([], id="two devices", marks=[pytest.mark.gpu, pytest.mark.skipif(
            torch.cuda.device_count() < 2, reason="needs 2 CUDA devices")]),
    ],
)  # fmt: skip
def test_a_run_moves_batches_and_weights_from_device_to_device(tmp_path: Path, overrides: list[str]) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    done = call(tmp_path, "launch", "recipe.yaml", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (tmp_path / "runs").glob("*/*")
    check_metrics(run)


def check_metrics(run: Path) -> None:
    """Each step had the right tensors, on the right device, and the weights of the step before."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    for name, value in {"there": 4.0, "same": 1.0, "rows": 1.0, "scaled": 1.0, "kept": 1.0}.items():
        assert [line[f"learnt.{name}"] for line in lines] == [value] * 12, name


DEATH = """
import os, signal


class Dying(Sampler):
    @endpoint
    def sample(self, batch: Batch) -> Batch:
        here = self.run_dir / "died"
        if self.step == 5 and not here.exists():
            here.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sample(batch)
"""


@gpus(1)
@pytest.mark.slow
def test_a_group_on_a_device_restarts_alone(tmp_path: Path) -> None:
    """The tensors of both groups are on one device, and those between them pass CPU memory."""
    (tmp_path / "parts.py").write_text(PARTS + DEATH)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    words = ["+groups.train.colocate=rollout", "components.sampler._target_=parts.Dying"]
    # The prompts are in the other group: a run restarts alone only without state, which a source has.
    words += ["components.prompts.group=train", "+groups.rollout.restartable=true", "+run.restarts=3"]
    done = call(tmp_path, "launch", "recipe.yaml", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (tmp_path / "runs").glob("*/*")
    started = [event.group for event in Follower(run / "events").in_order() if event.name == "started"]
    assert sorted(started) == ["rollout", "rollout", "train"]
    check_metrics(run)
