"""Runs of recipes with the sampler in the interpreter of `make vllm`, and the actor in the usual one."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.cli.small_launch import started
from tests.vllm.interpreter import BIN, needs_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow_suite, needs_vllm]
PARTS = """
from meshctl import Batch, Component, endpoint


class Judge(Component):
    @endpoint(collect="mean")
    def compare(self, rollouts: Batch, before: Batch, after: Batch) -> dict[str, float]:
        sampled = rollouts["sampled_logprobs"].values
        differences = [(sampled - batch["logprobs"].values).abs().max() for batch in (before, after)]
        assert sampled.dtype.itemsize == 4 and sampled.any()
        return {"same": float(differences[0]), "other": float(differences[1])}
"""
RECIPE = f"""
name: rollouts
seed: 3
vars:
  model:
    model_type: qwen3
    vocab_size: 260
    hidden_size: 64
    intermediate_size: 128
    num_hidden_layers: 2
    num_attention_heads: 4
    num_key_value_heads: 2
    head_dim: 32
    max_position_embeddings: 128
    initializer_range: 0.3
    tie_word_embeddings: true
  temperature: 1.0
groups:
  rollout: {{ranks: 2, device_type: cpu, python: {BIN}/python}}
  train: {{ranks: 2, device_type: cpu}}
components:
  prompts: {{_target_: meshctl.data.Prompts, group: train, args: {{path: prompts.jsonl, tokenizer: byte}}}}
  sampler:
    _target_: meshctl.vllm.Sampler
    group: rollout
    parallel: {{dp_size: 2}}
    args:
      model: "${{vars.model}}"
      tokenizer: byte
      group_size: 2
      max_new_tokens: 8
      temperature: "${{vars.temperature}}"
      kv_cache_bytes: 67108864
  actor:
    _target_: meshctl.hf.Model
    group: train
    parallel: {{fsdp_size: 2}}
    args: {{model: "${{vars.model}}", lr: 0.01, temperature: "${{vars.temperature}}"}}
  judge: {{_target_: parts.Judge, group: train}}
pipeline:
  batch: {{call: prompts.next, samples: 4}}
  rollouts: {{call: sampler.sample, in: batch, samples: 8}}
  before: {{call: actor.logprobs, in: rollouts}}
  metrics: {{call: actor.update, in: rollouts}}
  after: {{call: actor.logprobs, in: rollouts, after: metrics}}
  compared: {{call: judge.compare, in: {{rollouts: rollouts, before: before, after: after}}}}
  publish: {{sync: actor, to: sampler}}
run: {{steps: 3, dir: runs}}
"""
PROMPTS = [{"prompt": f"{number} times {number} is"} for number in range(16)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    return tmp_path


def rows_of(folder: Path) -> list[dict[str, float]]:
    [file] = folder.glob("runs/rollouts/*/metrics.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def processes(folder: Path) -> dict[str, int]:
    """Returns title -> pid of the processes of a run."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace")
            title, cwd = (process / "comm").read_text().strip(), os.readlink(process / "cwd")
        except OSError:
            continue
        if str(folder) in words + cwd:
            found[title] = int(process.name)
    return found


def test_a_sync_with_lag_is_compared_on_held_answers(folder: Path) -> None:
    lag = ("pipeline.publish.max_staleness=1", "run.steps=6")
    lag += ("pipeline.batch.samples=2", "pipeline.rollouts.samples=4")
    flow = ("~pipeline.before", "~pipeline.after", "~pipeline.compared", "~components.judge")
    with started(folder, "recipe.yaml", *lag, *flow) as run:
        output, errors = run.communicate()
    assert run.returncode == 0, output + errors
    rows = rows_of(folder)
    assert {row["step"] for row in rows if "metrics.parity_max" in row} == {1, 4, 5, 6}
    assert all(row["metrics.parity_max"] < 1e-3 for row in rows if "metrics.parity_max" in row), rows


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_sampler_is_the_actor(folder: Path, temperature: float) -> None:
    """The sampled log-probabilities are those of `hf.Model` with the weights of the last sync, and not those
    after the update that follows."""
    with started(folder, "recipe.yaml", f"vars.temperature={temperature}") as run:
        output, errors = run.communicate()
    assert run.returncode == 0, output + errors
    rows = rows_of(folder)
    assert len(rows) == 3
    for row in rows:
        assert row["compared.same"] < 1e-3 and row["compared.other"] > 0.05, rows
        assert row["rollouts.length"] <= 8
    assert not processes(folder)


def test_an_engine_that_is_killed_is_the_cause(folder: Path) -> None:
    with started(folder, "recipe.yaml", "run.steps=100000", "+run.epochs=10000") as run:
        assert run.stdout
        while run.poll() is None and "step 2" not in run.stdout.readline():
            pass
        os.kill(processes(folder).get("rollout:1", run.pid), signal.SIGKILL)
        _, errors = run.communicate()
    assert run.returncode == 5
    assert re.match(r"error: rollout:1 failed( in stage rollouts, step \d+)?: killed by SIGKILL", errors), (
        errors
    )
    assert not processes(folder)
