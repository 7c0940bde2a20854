"""The settings that all sides of `benchmarks/grpo_end_to_end.py` share, and the components of a run with two
groups, which note their times after each step."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from meshctl.hf import Model, Sampler
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import endpoint

SHAPE = {
    "vocab_size": 264,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": False,
}
PROMPTS, GROUP, TOKENS = 8, 8, 32
"""The prompts of a step, the answers to each of them, and the most tokens of an answer."""
LR, CLIP = 3e-3, 1.0
WARMUP = 3
"""The rounds that are not counted."""
LETTERS = "aeiou "
MODEL, ROWS = "model", "prompts.jsonl"
"""The folder of the model and the file of the prompts, in the folder of the benchmark."""


def letters(response: str) -> float:
    """Returns the fraction of the characters of an answer that are vowels or spaces."""
    return sum(one in LETTERS for one in response) / max(1, len(response))


def arguments(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns component -> the arguments of its constructor."""
    model = str(folder / MODEL)
    return {
        "prompts": {"path": str(folder / ROWS), "tokenizer": "byte", "shuffle": False},
        "sampler": {
            "model": model,
            "tokenizer": "byte",
            "max_new_tokens": TOKENS,
            "group_size": GROUP,
            "batch_size": GROUP * PROMPTS,
        },
        "judge": {"function": f"{letters.__module__}.{letters.__name__}", "workers": 0},
        "actor": {
            "model": model,
            "loss": "grpo",
            "lr": LR,
            "clip": CLIP,
            "share_prompts": True,
            "optimizer_options": {"fused": True, "weight_decay": 0.0},
        },
    }


def recipe(folder: Path, steps: int, max_staleness: int) -> str:
    """Returns a recipe, as JSON, in which one group samples and another one trains.

    With `max_staleness` the actor also computes `old_logprobs`. Without them, the ratio to the probabilities
    of older weights would be clipped, and few tokens would have a gradient (docs/samplers.md).
    """
    targets = {
        "prompts": "meshctl.data.Prompts",
        "sampler": f"{__name__}.TimedSampler",
        "judge": "meshctl.rewards.Function",
        "actor": f"{__name__}.TimedModel",
    }
    components = {
        name: {"_target_": targets[name], "group": "train" if name == "actor" else "rollout", "args": given}
        for name, given in arguments(folder).items()
    }
    group = {"ranks": 1, "device_type": "cpu"}
    pipeline: dict[str, dict[str, Any]] = {
        "batch": {"call": "prompts.next", "samples": PROMPTS},
        "rollouts": {"call": "sampler.sample", "in": "batch"},
        "scored": {"call": "judge.score", "in": "rollouts"},
        **({"old": {"call": "actor.old_logprobs", "in": "scored"}} if max_staleness else {}),
        "metrics": {"call": "actor.update", "in": ["scored", "old"] if max_staleness else "scored"},
        "publish": {"sync": "actor", "to": "sampler", "max_staleness": max_staleness},
    }
    run = {"steps": steps, "dir": str(folder / f"runs-{max_staleness}")}
    groups = {"rollout": group, "train": group}
    whole = {"name": "grpo", "groups": groups, "components": components, "pipeline": pipeline, "run": run}
    return json.dumps(whole)


def times(folder: Path, name: str, step: int) -> None:
    """Appends (step, seconds, CPU seconds of this process) to a file of this folder."""
    row = [step, time.perf_counter(), time.process_time()]
    with open(folder / f"{name}.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")


class TimedSampler(Sampler):
    @endpoint
    def sample(self, batch: Batch) -> Batch:
        times(self.run_dir, "sampler", self.step)
        return super().sample(batch)


class TimedModel(Model):
    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        found = super().update(batch)
        times(self.run_dir, "actor", self.step)
        return found
