"""SmolLM2-135M learns from the verifier of a reasoning-gym task. `make smollm2` makes the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import RECIPES

pytest.importorskip("transformers")
pytest.importorskip("reasoning_gym")

MODEL = RECIPES / "smollm2"
STEPS = 3
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="make smollm2"),
]
RECIPE = """
name: sums
groups:
  rollout: {ranks: 1, device_type: cpu}
  train: {ranks: 1, device_type: cpu}
vars: {model: MODEL}
components:
  tasks:
    _target_: meshctl.rewards.Tasks
    group: rollout
    args:
      task: chain_sum
      options: {min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}
      tokenizer: "${vars.model}"
      chat: true
      system: Answer with the number only.
  sampler:
    _target_: meshctl.hf.Sampler
    group: rollout
    args: {model: "${vars.model}", max_new_tokens: 8, group_size: 4}
  judge: {_target_: meshctl.rewards.Function, group: rollout, args: {function: reasoning_gym}}
  actor:
    _target_: meshctl.hf.Model
    group: train
    args: {model: "${vars.model}", loss: grpo, lr: 1e-4, lora: {r: 8, target: all-linear}}
pipeline:
  batch: {call: tasks.next, samples: 8}
  rollouts: {call: sampler.sample, in: batch}
  scored: {call: judge.score, in: rollouts}
  metrics: {call: actor.update, in: scored}
  publish: {sync: actor, to: sampler}
run: {steps: STEPS}
"""


def test_a_language_model_learns_from_a_task(tmp_path: Path) -> None:
    text = RECIPE.replace("MODEL", str(MODEL)).replace("STEPS", str(STEPS))
    (tmp_path / "recipe.yaml").write_text(text)
    command = [sys.executable, "-m", "meshctl", "launch", "recipe.yaml"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (tmp_path / "runs").glob("*/*")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == STEPS and all(row["scored.failed"] == 0 for row in rows)
    assert max(row["scored.reward"] for row in rows) > 0, rows
    assert any(row["metrics.grad_norm"] > 0 for row in rows), rows
