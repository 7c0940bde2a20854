"""Sampled answers for tests of `hf.Model`, and a loop written by hand that trains on them with GRPO."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from meshctl.hf import Model, building, transformers_api, weights
from meshctl.runtime.batch.batch import Batch, Ragged
from tests.hf import parity
from tests.hf.parity import CLIP, LR, MODELS, Trained

PROMPTS, GROUP, STEPS = 4, 2, 2
KL, CLIP_RATIO, CAP = 0.1, 0.2, 2.0
BY_TOKEN = ("old_logprobs", "sampled_logprobs", "ref_logprobs", "values", "teacher_logprobs")


def rollouts_of(step: int, group: int = GROUP) -> Batch:
    """Returns the answers of a step: `group` answers to each prompt, with all columns of rollouts."""
    draw = torch.Generator().manual_seed(step)
    prompts = Batch({"number": torch.arange(PROMPTS)}, ids=torch.arange(PROMPTS) + PROMPTS * step)
    answers = prompts.repeat(group)
    sizes = [(2 + row % 3, 1 + (row * 3 + step) % 6) for row in range(len(answers))]
    rows = [torch.randint(1, 96, (prompt + answer,), generator=draw) for prompt, answer in sizes]
    labels = [row.clone() for row in rows]
    for row, (prompt, _) in zip(labels, sizes, strict=True):
        row[:prompt] = -100
    columns: dict[str, Any] = {"input_ids": Ragged.of(rows), "labels": Ragged.of(labels)}
    for name in BY_TOKEN:
        logs = [-5.0 + torch.rand(len(row), generator=draw, dtype=torch.float64) for row in rows]
        columns[name] = Ragged.of(
            [torch.where(own == -100, 0.0, log) for log, own in zip(logs, labels, strict=True)]
        )
    columns["rewards"] = torch.rand(len(answers), generator=draw, dtype=torch.float64)
    return answers.with_columns(**columns)


def trained(model: Model) -> Trained:
    return parity.trained(model, map(rollouts_of, range(1, STEPS + 1)))


def on_mesh(sizes: dict[str, int], micro_batch: int | None = None, **arguments: Any) -> Trained:
    return trained(parity.component(parity.Case("llama", micro_batch=micro_batch), sizes, **arguments))


@cache
def by_hand() -> Trained:
    """Trains with GRPO in one process, one answer at a time."""
    config = transformers_api.read_config(MODELS["llama"], "lm", {})
    model = building.new_model(config, building.Build("", dtype=torch.float64))
    trained = list(model.parameters())
    optimizer = torch.optim.AdamW(parity.decayed(model), lr=LR, weight_decay=0.1, eps=1e-8)
    found = Trained()
    for step in range(1, STEPS + 1):
        batch = rollouts_of(step)
        total = torch.zeros((), dtype=torch.float64)
        for first in range(0, len(batch), GROUP):
            rewards = batch["rewards"][first : first + GROUP]
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            for row, advantage in zip(range(first, first + GROUP), advantages, strict=True):
                total = total + answer_loss(model, batch, row, advantage)
        loss = total / len(batch)
        loss.backward()
        found.norms.append(float(torch.nn.utils.clip_grad_norm_(trained, CLIP)))
        found.losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    found.weights = {name: tensor.clone() for name, tensor in weights.merged_weights(model)}
    return found


def answer_loss(model: Any, batch: Batch, row: int, advantage: Tensor) -> Tensor:
    """Returns the mean loss of the tokens of an answer."""
    ids, labels = batch["input_ids"][row], batch["labels"][row]
    logs = model(input_ids=ids[None]).logits[0].log_softmax(-1)
    losses = []
    for token in range(1, len(ids)):
        if labels[token] == -100:
            continue
        own = logs[token - 1, ids[token]]
        old, sampled, ref = (batch[f"{name}_logprobs"][row][token] for name in ("old", "sampled", "ref"))
        ratio = (own - old).exp()
        worst = min(ratio * advantage, ratio.clamp(1 - CLIP_RATIO, 1 + CLIP_RATIO) * advantage)
        k3 = (ref - own).exp() - (ref - own) - 1
        losses.append(-worst * (old - sampled).exp().clamp(max=CAP) + KL * k3)
    return torch.stack(losses).mean()
