"""Sampled answers for tests of losses of policies: as lists of Python's floats, and as the inputs of a loss."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from meshctl.losses.advantages import group_sizes, group_sums

BY_TOKEN = ("logprobs", "old_logprobs", "sampled_logprobs", "ref_logprobs", "advantages")
BY_TOKEN += ("predicted_values", "values", "returns", "teacher_logprobs")
TOP = 3
"""The number of a teacher's likeliest tokens."""


@dataclass
class Answer:
    """An answer with one value of each input for each token."""

    group: int
    mask: list[float]
    tokens: dict[str, list[float]] = field(default_factory=dict)
    top: list[list[float]] = field(default_factory=list)
    teacher_top: list[list[float]] = field(default_factory=list)

    @property
    def labels(self) -> list[int]:
        """The indices of the tokens with a label."""
        return [index for index, weight in enumerate(self.mask) if weight]


def answers_of(seed: int, sizes: Sequence[int] = (3, 1, 2)) -> list[Answer]:
    """Returns the answers of groups of these sizes."""
    draw = random.Random(seed)
    found = []
    for group, size in enumerate(sizes):
        for _ in range(size):
            length = draw.randint(1, 5)
            mask = [float(draw.random() < 0.8) for _ in range(length)]
            mask[draw.randrange(length)] = 1.0
            near = [draw.uniform(-3, -0.2) for _ in range(length)]
            tokens = {name: [one + draw.uniform(-0.6, 0.1) for one in near] for name in BY_TOKEN}
            tokens["advantages"] = [draw.uniform(-2, 2)] * length
            top, teacher_top = ([_distribution(draw) for _ in range(length)] for _ in range(2))
            found.append(Answer(group, mask, tokens, top, teacher_top))
    return found


def _distribution(draw: random.Random) -> list[float]:
    """Returns log-probabilities of some tokens of a larger vocabulary."""
    weights = [draw.uniform(0.1, 1) for _ in range(TOP + 2)]
    return torch.tensor(weights, dtype=torch.float64).div(sum(weights)).log()[:TOP].tolist()


def inputs_of(answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns all inputs of losses, for the answers of a whole batch."""
    tokens = {name: _joined([one.tokens[name] for one in answers]) for name in BY_TOKEN}
    lengths = torch.tensor([len(one.mask) for one in answers])
    labels = torch.tensor([sum(one.mask) for one in answers], dtype=torch.float64)
    groups = torch.tensor([one.group for one in answers])
    return tokens | {
        "mask": _joined([one.mask for one in answers]),
        "sample_index": torch.repeat_interleave(torch.arange(len(answers)), lengths),
        "sequence_tokens": labels,
        "group_tokens": group_sums(labels, groups),
        "group_samples": group_sizes(labels, groups),
        "top_logprobs": _joined([one.top for one in answers]),
        "teacher_top_logprobs": _joined([one.teacher_top for one in answers]),
    }


def _joined(rows: Sequence[Sequence[Any]]) -> torch.Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)


def part_of(inputs: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    """Returns the inputs of a micro-batch: the samples from `start` to before `stop`."""
    index = inputs["sample_index"]
    is_here = (index >= start) & (index < stop)
    found = {}
    for name, one in inputs.items():
        by_sample = name in ("sequence_tokens", "group_tokens", "group_samples")
        found[name] = one[start:stop] if by_sample else one[is_here]
    return found | {"sample_index": index[is_here] - start}
