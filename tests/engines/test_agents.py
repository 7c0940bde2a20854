"""Agents in runs, by real processes: whatever dies, each episode is trained once and whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import rows_of, written
from test_exactly_once import Kill, Running, generated, run_with

from meshctl.run.directory import RunDir
from meshctl.run.episodes import episodes_of

pytest.importorskip("transformers")
PARTS = """
import asyncio
import json
import random
import time

import aiohttp
import torch
from meshctl import Batch, Component, endpoint


class Numbers(Component):
    def __len__(self):
        return 1 << 30

    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"n": torch.tensor(list(samples))})


class Held(Numbers):
    def __len__(self):
        return 6


async def count(episode, n, *, broken=()):
    messages = [{"role": "user", "content": str(n)}]
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for turn in range(1 + n % 3):
            await asyncio.sleep(random.Random(n).choice([0, 0.01]))
            for _ in range(1 + (turn == 0 and n % 4 == 0)):  # a retry is a branch
                body = {"messages": messages}
                async with session.post(f"{episode.base_url}/chat/completions", json=body) as response:
                    reply = (await response.json())["choices"][0]["message"]
            if n in broken:
                raise ValueError("no")
            messages = [*messages, reply, {"role": "user", "content": "on"}]
    return {"reward": float(n), "asked": 1 + n % 3}


class Learner(Component):
    def setup(self):
        self.seen = []

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        gate = self.run_dir.parents[2] / f"gate-{self.run_dir.parent.name}"
        while gate.exists() and self.step > int(gate.read_text()):
            time.sleep(0.01)
        self.seen += [
            [id, turns, reward, text.count("on")]
            for id, turns, reward, text in zip(
                batch.ids.tolist(), batch["turns"].tolist(), batch["rewards"].tolist(),
                ["".join(one["content"] for one in each[::2]) for each in batch["messages"]])
        ]
        return {"rows": float(len(batch))}

    def state_dict(self):
        return {"seen": json.dumps(self.seen)}

    def load_state_dict(self, state):
        self.seen = json.loads(state["seen"])

    def close(self):
        (self.run_dir / f"result-{self.rank}.json").write_text(json.dumps(self.seen))
"""
RECIPE = """
groups:
  roll: {ranks: 2, device_type: cpu}
  learn: {ranks: 1, device_type: cpu}
components:
  numbers: {_target_: parts.Numbers, group: roll}
  held: {_target_: parts.Held, group: roll}
  sampler:
    _target_: meshctl.hf.Sampler
    group: roll
    args:
      tokenizer: byte
      max_new_tokens: 3
      model: {model_type: qwen3, vocab_size: 260, hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1,
              num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8, max_position_embeddings: 512}
  agent: {_target_: meshctl.agents.Agent, group: roll, args: {sampler: sampler, function: parts.count, group_size: 2}}
  learner: {_target_: parts.Learner, group: learn}
pipeline:
  passes:
    repeat: {take: 4, ahead: 2, late: 1}
    stages: {number: {call: numbers.next}, done: {call: agent.run, in: number}}
  update: {call: learner.update, in: passes.done}
  exam: {every: 4, repeat: {until: q}, stages: {q: {call: held.next, samples: 2}, s: {call: agent.run, in: q}}}
run: {dir: runs, checkpoint: {every: 3, keep: 2}, restarts: {times: 1000}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("agents"), RECIPE, PARTS)


def check_episodes(run: RunDir, steps: int) -> None:
    """Checks that each row of each episode was trained once, with all of its turns."""
    seen = json.loads((run.path / "result-0.json").read_text())
    rows = {
        ((number, episode, row), 1 + number % 3 + (number % 4 == 0), float(number))
        for number in range(4 * steps)
        for episode in range(2)
        for row in range(1 + (number % 4 == 0))
    }
    found = [(tuple(id), turns, reward) for id, turns, reward, _ in seen]
    assert len(found) == len(set(found)) and set(found) == rows
    lengths = {(number, row): further for (number, _, row), further in ((id, one) for id, *_, one in seen)}
    assert all(max(lengths[n, row] for row in range(1 + (n % 4 == 0))) == n % 3 for n in range(4 * steps))
    assert [row["step"] for row in rows_of(run)] == list(range(1, steps + 1))


@pytest.mark.slow
def test_episodes_are_trained_once_when_a_worker_dies(folder: Path) -> None:
    """An exam runs the same agent between two takes."""
    run, restarts = run_with(folder, "killed", 8, [Kill("worker", 4)], seed=0)
    check_episodes(run, 8)
    assert restarts == 1
    assert [row.get("exam.s.reward") for row in rows_of(run)] == [None, None, None, 2.5] * 2


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 11))
def test_episodes_are_trained_once_whatever_dies(folder: Path, seed: int) -> None:
    run, restarts = run_with(folder, f"killed-{seed}", 80, generated(seed, 10, 80), seed)
    check_episodes(run, 80)
    assert restarts == 10


THREE = "pipeline.exam.stages.q.samples=3"


@pytest.mark.slow_suite
def test_episodes_go_on_with_other_numbers_of_ranks(folder: Path) -> None:
    running = Running(folder, "resized")
    running.begin("recipe.yaml", "run.steps=3", "name=resized", "run.checkpoint.every=3").done()
    for ranks, steps in ((3, 6), (1, 9)):
        words = [f"groups.roll.ranks={ranks}", f"run.steps={steps}", "run.accept=[pipeline]", THREE]
        running.begin(str(running.run.path), *words).done()
    check_episodes(running.run, 9)


@pytest.mark.slow_suite
def test_a_lockstep_stage_drops_a_sample_whose_episode_fails_twice(folder: Path) -> None:
    words = ["~pipeline.passes", "+pipeline.number={call: numbers.next, samples: 4}"]
    words += ["+pipeline.done={call: agent.run, in: number}", "pipeline.update.in=done"]
    words += ["+components.agent.args.options={broken: [5]}", "run.steps=3", "name=lockstep"]
    running = Running(folder, "lockstep")
    running.begin("recipe.yaml", *words).done()
    seen = {id[0] for id, *_ in json.loads((running.run.path / "result-0.json").read_text())}
    assert seen == {*range(12)} - {5}
    assert [row["done.failed"] for row in rows_of(running.run)] == [0, 1, 0]
    kept = [(one.id, one.attempt, one.step) for one in episodes_of(running.run)]
    assert sorted(kept) == [(f"5.{n}", attempt, 2) for n in (0, 1) for attempt in (1, 2)]
