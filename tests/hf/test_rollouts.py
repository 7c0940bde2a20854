"""A recipe samples answers, scores them, trains on them and sends the weights back. The rollouts are the same on
one and on two ranks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import meshctl

pytestmark = pytest.mark.nightly

JUDGE = """
import json
import torch
from meshctl import Batch, Component, endpoint
from meshctl.hf import Sampler

class Judge(Component):
    @endpoint
    def score(self, batch: Batch) -> Batch:
        rewards = torch.tensor([float(len(text) % 3) for text in batch["response"]])
        with open("seen.jsonl", "a") as file:
            for row, id in enumerate(batch.ids.tolist()):
                seen = {"id": id, "step": self.step, "ids": batch["input_ids"][row].tolist(),
                        "version": batch["@version"][row].tolist(), "group": batch.group_ids[row].tolist(),
                        "logprobs": batch["sampled_logprobs"][row].tolist(), "columns": batch.names}
                file.write(json.dumps(seen) + "\\n")
        return batch.with_columns(rewards=rewards)

class Drifting(Sampler):
    def load_weights(self, stream):
        super().load_weights(stream)
        if self.step > 1:
            self.module.lm_head.weight.mul_(3)
"""
RECIPE = """
name: rollouts
vars:
  model:
    model_type: qwen3
    vocab_size: 259
    hidden_size: 32
    intermediate_size: 64
    num_hidden_layers: 2
    num_attention_heads: 4
    num_key_value_heads: 2
    head_dim: 8
    initializer_range: 0.1
groups:
  rollout: {ranks: 2, device_type: cpu}
  train: {ranks: 1, device_type: cpu}
components:
  prompts:
    {_target_: meshctl.data.Prompts, group: rollout, args: {path: prompts.jsonl, tokenizer: byte, keep: [answer]}}
  sampler:
    _target_: meshctl.hf.Sampler
    group: rollout
    args: {model: "${vars.model}", dtype: float64, tokenizer: byte, max_new_tokens: 8, group_size: 4}
  judge: {_target_: judge.Judge, group: rollout}
  actor:
    _target_: meshctl.hf.Model
    group: train
    args: {model: "${vars.model}", dtype: float64, lr: 1e-2, loss: grpo}
pipeline:
  batch: {call: prompts.next, samples: 6}
  rollouts: {call: sampler.sample, in: batch}
  scored: {call: judge.score, in: rollouts}
  metrics: {call: actor.update, in: scored}
  publish: {sync: actor, to: sampler}
run: {steps: 3}
"""
COLUMNS = [
    "input_ids",
    "labels",
    "sampled_logprobs",
    "finish_reason",
    "response",
    "prompt_ids",
    "answer",
    "prompt",
]


def run(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    (folder / "judge.py").write_text(JUDGE)
    (folder / "recipe.yaml").write_text(RECIPE)
    rows = [{"prompt": "ab" * (1 + number % 3) + "=", "answer": str(number)} for number in range(18)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return meshctl(folder, "launch", "recipe.yaml", *overrides)


def launch(folder: Path, *overrides: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns what the judge has seen, ordered by step and id, and the metrics of the steps."""
    done = run(folder, *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = (folder / "runs" / "rollouts").iterdir()
    seen = [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]
    metrics = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    return sorted(seen, key=lambda row: (row["step"], row["id"])), metrics


def test_rollouts_train_an_actor_and_do_not_depend_on_the_ranks(tmp_path: Path) -> None:
    seen, metrics = launch(tmp_path / "two")
    assert [row["id"] for row in seen] == [[prompt, child] for prompt in range(18) for child in range(4)]
    for row in seen:
        assert row["columns"] == COLUMNS
        assert row["group"] == row["id"][:1]
        assert row["version"] == row["step"] - 1, "the weights after the last step"
    assert all(1 <= row["rollouts.length"] <= 8 and 0 <= row["rollouts.cut"] <= 1 for row in metrics)
    assert len({row["metrics.grad_norm"] for row in metrics}) == 3
    assert all(row["metrics.parity_max"] < 1e-9 for row in metrics), "the sampler is the actor"
    alone, _ = launch(tmp_path / "one", "groups.rollout.ranks=1")
    for one, two in zip(alone, seen, strict=True):
        assert one["ids"] == two["ids"]
        assert one["logprobs"] == pytest.approx(two["logprobs"], abs=1e-9)


LAG = ("pipeline.publish.max_staleness=1", "run.steps=6", "pipeline.batch.samples=3", "groups.train.ranks=2")


def test_a_sync_with_lag_is_compared_on_held_answers(tmp_path: Path) -> None:
    seen, metrics = launch(tmp_path / "lag", *LAG)
    assert all(row["version"] == max(0, row["step"] - 2) for row in seen)
    assert {row["step"] for row in metrics if "metrics.parity_max" in row} == {1, 4, 5, 6}
    assert all(row["metrics.parity_max"] < 1e-9 for row in metrics if "metrics.parity_max" in row)
    assert all(set(row["columns"]) == set(COLUMNS) for row in seen)


def test_held_answers_have_tokens_that_other_weights_exclude(tmp_path: Path) -> None:
    drawn = ("+components.sampler.args.top_k=2", "+components.sampler.args.temperature=0.7")
    _, metrics = launch(tmp_path / "top", *LAG, *drawn, "+components.actor.args.temperature=0.7")
    with_lag = [
        row["metrics.parity_max"] for row in metrics if row["metrics.lag"] and "metrics.parity_max" in row
    ]
    assert len(with_lag) == 3 and max(with_lag) < 1e-9


def test_a_sampler_that_differs_after_a_sync_with_lag_ends_the_run(tmp_path: Path) -> None:
    other = ("components.sampler._target_=judge.Drifting", "+components.actor.args.parity=error")
    done = run(tmp_path / "other", *LAG, *other)
    assert done.returncode == 5
    assert "step 4: the log-probabilities of the sampled tokens differ" in done.stderr, done.stderr
