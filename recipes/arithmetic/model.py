"""A small transformer that reads and writes characters: two layers, about 100,000 parameters.

    tokens [n, t] -> logits [n, t, len(ALPHABET)]

A problem is "37+25=". Its answer is written with the units first, "26" for 62, so that no digit depends on a
later one. All texts have the same width, so there is no padding, and the only mask is the causal one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALPHABET = "0123456789+="
QUESTION_LENGTH = 6
"""Characters of a question, with its `=`."""
DIGITS = 2
"""Digits of an answer."""


def encode_questions(questions: Sequence[str]) -> Tensor:
    """Returns tokens, int64 `[n, QUESTION_LENGTH]`."""
    return _encode([f"{question}=" for question in questions], QUESTION_LENGTH)


def encode_answers(answers: Sequence[str]) -> Tensor:
    """Returns tokens, int64 `[n, DIGITS]`, units first."""
    return _encode([answer[::-1] for answer in answers], DIGITS)


def _encode(texts: Sequence[str], width: int) -> Tensor:
    return torch.tensor(
        [ALPHABET.index(character) for text in texts for character in text], dtype=torch.int64
    ).view(-1, width)


class Block(nn.Module):
    """Attention and a multilayer perceptron, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_mix = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.mixed = nn.Linear(width, width, bias=False)
        self.before_think = nn.LayerNorm(width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            self.mix(self.before_mix(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mixed(attended.transpose(1, 2).flatten(2))
        return cast(Tensor, x + self.think(self.before_think(x)))


class Transformer(nn.Module):
    def __init__(
        self, width: int = 64, layers: int = 2, heads: int = 4, longest: int = QUESTION_LENGTH + DIGITS
    ) -> None:
        super().__init__()
        self.character = nn.Embedding(len(ALPHABET), width)
        self.position = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET), bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.character(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.head(self.norm(x)))


@torch.no_grad()
def answered(
    model: nn.Module, questions: Tensor, times: int = 1, *, greedy: bool = False
) -> tuple[Tensor, Tensor]:
    """Lets the model answer each question `times` times.

    Returns questions with answers, int64 `[n * times, QUESTION_LENGTH + DIGITS]`, and the log-probability of
    each written
    digit, `[n * times, DIGITS]`. The answers to a question are consecutive, and the question is processed
    once.
    """
    logits = model(questions)[:, -1].repeat_interleave(times, 0)
    tokens = questions.repeat_interleave(times, 0)
    written = []
    for position in range(DIGITS):
        if position:
            logits = model(tokens)[:, -1]
        choices = logits.log_softmax(-1)
        chosen = choices.argmax(-1, keepdim=True) if greedy else _drawn(choices)
        written.append(choices.gather(-1, chosen))
        tokens = torch.cat([tokens, chosen], 1)
    return tokens, torch.cat(written, 1)


def _drawn(choices: Tensor) -> Tensor:
    if not len(choices):
        return choices.new_empty((0, 1), dtype=torch.int64)
    return torch.multinomial(choices.exp(), 1)
