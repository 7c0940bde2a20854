"""What consumers of weights get in `load_weights`, in a run with processes: the shard of their own `weights()`
where these are DTensors (fsdp, tp), and otherwise the whole parameter. The line by which the shipped sampler
copies them suits all of these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_server import call

pytestmark = pytest.mark.slow

PARTS = """
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from meshctl import Batch, Component, endpoint
from meshctl.components.starters.grpo import Policy, Sampler

SIZES = {"digit.weight": (20, 64), "think.0.weight": (128, 128), "think.0.bias": (128,),
         "think.2.weight": (10, 128), "think.2.bias": (10,)}


def expected(name, version):
    shape = SIZES[name]
    return (torch.arange(float(torch.Size(shape).numel())) + len(name)).reshape(shape) * (1 + version)


class Source(Component):
    @endpoint
    def next(self, samples: range):
        return Batch({"x": torch.tensor(samples)})


class Actor(Component):
    def setup(self):
        self.model = fully_shard(Policy(), mesh=self.torch_mesh["fsdp"])
        self.fill(0)

    def fill(self, version):
        for name, parameter in self.model.named_parameters():
            whole = expected(name, version)
            shard = whole.chunk(self.mesh.world_size)[self.rank] if len(whole) > self.rank else whole[:0]
            parameter.to_local().detach().copy_(shard)

    @endpoint(collect="mean")
    def update(self, batch: Batch):
        self.fill(self.step)
        return {"version": float(self.step)}

    def weights(self):
        return self.model.named_parameters()


class Consumer(Sampler):  # `load_weights` is the sampler's
    def load_weights(self, stream):
        self.shapes = {}
        super().load_weights(self.seen(stream))

    def seen(self, stream):
        for name, tensor in stream:
            assert type(tensor) is torch.Tensor
            self.shapes[name] = tuple(tensor.shape)
            yield name, tensor

    @endpoint(collect="sum")
    def check(self, batch: Batch):
        wrong, rows = 0, 0
        for name, parameter in self.model.named_parameters():
            whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            wrong += not torch.equal(whole, expected(name, self.step - 1))
        think, digit = self.shapes["think.2.weight"], self.shapes["digit.weight"]
        return {"wrong": float(wrong), "names": float(len(self.shapes)),
                "rows": float(digit[0]), "out": float(think[0]), "in": float(think[1])}


class Fsdp(Consumer):
    def setup(self):
        super().setup()
        fully_shard(self.model, mesh=self.torch_mesh["fsdp"])


class Tp(Consumer):
    def setup(self):
        super().setup()
        plan = {"think.0": ColwiseParallel(), "think.2": RowwiseParallel()}
        parallelize_module(self.model, self.torch_mesh["tp"], plan)


class WithoutWeights(Component):
    def load_weights(self, stream):
        self.got = {name: tensor.clone() for name, tensor in stream}

    @endpoint(collect="sum")
    def check(self, batch: Batch):
        wrong = [name for name in SIZES if not torch.equal(self.got[name], expected(name, self.step - 1))]
        return {"wrong": float(len(wrong)), "names": float(len(self.got))}
"""
RECIPE = """
name: consumers
groups:
  train: {ranks: 2, device_type: cpu}
  rollout: {ranks: 2, device_type: cpu}
components:
  source: {_target_: parts.Source, group: train}
  actor: {_target_: parts.Actor, group: train, parallel: {fsdp_size: 2}}
  whole: {_target_: parts.Consumer, group: rollout, parallel: {dp_size: 2}}
  fsdp: {_target_: parts.Fsdp, group: rollout, parallel: {fsdp_size: 2}}
  tp: {_target_: parts.Tp, group: rollout, parallel: {tp_size: 2}}
  without: {_target_: parts.WithoutWeights, group: rollout, parallel: tp}
pipeline:
  batch: {call: source.next, samples: 4}
  in_whole: {call: whole.check, in: batch}
  in_fsdp: {call: fsdp.check, in: batch}
  in_tp: {call: tp.check, in: batch}
  in_without: {call: without.check, in: batch}
  metrics: {call: actor.update, in: batch}
  to_whole: {sync: actor, to: whole}
  to_fsdp: {sync: actor, to: fsdp}
  to_tp: {sync: actor, to: tp}
  to_without: {sync: actor, to: without}
run: {steps: 3}
"""


def test_each_consumer_gets_what_its_own_weights_hold(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    done = call(tmp_path, "launch", "recipe.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.glob("runs/consumers/*/metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert (row["in_without.wrong"], row["in_without.names"]) == (0, 5)
        # A sum over both ranks of dp and fsdp; tp peers are one data rank.
        per_rank = {"whole": (20, 10, 128), "fsdp": (10, 5, 128), "tp": (20, 10, 64)}
        for name, (digits, outputs, inputs) in per_rank.items():
            data_ranks = 1 if name == "tp" else 2
            found = {
                key: row[f"in_{name}.{key}"] / data_ranks for key in ("wrong", "names", "rows", "out", "in")
            }
            assert found == {"wrong": 0, "names": 5, "rows": digits, "out": outputs, "in": inputs}, name
