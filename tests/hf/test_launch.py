"""A recipe trains a model, resumes in another layout and exports it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from meshctl.components import Cycle
from meshctl.hf import Model
from tests.command_server import call

RECIPE = """
name: sft
groups:
  train: {ranks: 2, device_type: cpu}
components:
  rows: {_target_: meshctl.components.Cycle, group: train, args: {path: rows.jsonl}}
  actor:
    _target_: meshctl.hf.Model
    group: train
    parallel: {fsdp_size: 2}
    args:
      model:
        model_type: llama
        vocab_size: 96
        hidden_size: 32
        intermediate_size: 64
        num_hidden_layers: 2
        num_attention_heads: 4
        num_key_value_heads: 2
      dtype: float64
      lr: 1e-2
      micro_batch: 2
      lora: {r: 4}
  other: {_target_: meshctl.hf.Model, group: train, parallel: actor, args: {model: "${components.actor.args.model}"}}
pipeline:
  batch: {call: rows.next, samples: 8}
  metrics: {call: actor.update, in: batch}
  saved: {call: actor.export, in: [], when: end}
  also: {call: other.export, in: [], when: end}
run: {steps: 2, checkpoint: {every: 2}}
"""


def launch(folder: Path, *arguments: str) -> str:
    done = call(folder, "launch", *arguments, env={"OMP_NUM_THREADS": "1"}, preload="meshctl.hf")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_rows(path: Path) -> None:
    draw = random.Random(0)
    rows = [{"input_ids": [draw.randrange(1, 96) for _ in range(draw.randrange(4, 12))]} for _ in range(32)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def losses(run: Path) -> list[float]:
    return [json.loads(line)["metrics.loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def alone(path: Path) -> tuple[list[float], Model]:
    """Trains on the same samples in this process. Returns the losses, and the model."""
    rows = Cycle(str(path))
    arguments = yaml.safe_load(RECIPE)["components"]["actor"]["args"]
    model = Model(**{**arguments, "lr": float(arguments["lr"]), "micro_batch": None})
    found = [model.update(rows.next(range(8 * step, 8 * step + 8)))["loss"] for step in range(4)]
    return found, model


@pytest.mark.slow
def test_a_run_resumes_in_another_layout_and_exports(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    launch(tmp_path, "recipe.yaml")
    [run] = (tmp_path / "runs" / "sft").iterdir()
    launch(tmp_path, str(run), "components.actor.parallel={tp_size: 2}", "run.steps=4")
    expected, model = alone(tmp_path / "rows.jsonl")
    assert losses(run) == pytest.approx(expected, rel=1e-8)
    assert (run / "exports" / "other" / "step-4" / "config.json").is_file(), "each has a folder of its own"
    exported = AutoModelForCausalLM.from_pretrained(run / "exports" / "actor" / "step-4", dtype=torch.float64)
    found = dict(exported.named_parameters())
    for name, tensor in model.weights():
        torch.testing.assert_close(found[name].detach(), tensor, rtol=0, atol=1e-8)
