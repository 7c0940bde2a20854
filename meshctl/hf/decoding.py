"""Generates answers to prompts, token by token, with a cache of keys and values.

    prompts --one forward pass--> cache, one row for each prompt
            --copied for each answer--> one forward pass for each position, one row for each answer

Prompts are padded at their beginning. When a part of the answers has ended, their rows leave the cache, so
that long answers do not pay for short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.hf.sampling import Sampling
from meshctl.hf.transformers_cache import CachedForward

MAX_ENDED = 0.25
"""The fraction of ended answers in the cache from which on they are removed."""
TEXT_MARGIN = 4
"""The number of further tokens that are decoded to find a stop text, whose tokens may be parts of
characters."""


@dataclass(frozen=True)
class Stop:
    """The tokens and texts that end an answer. The one that ended it is its last part."""

    tokens: frozenset[int]
    texts: tuple[str, ...] = ()
    decode: Callable[[Sequence[Sequence[int]]], Sequence[str]] = lambda rows: [""] * len(rows)
    """Returns the texts of several rows of tokens."""

    @property
    def window(self) -> int:
        """The number of last tokens of an answer that can contain a stop text. A token is at least one
        byte."""
        return max(len(text.encode()) for text in self.texts) + TEXT_MARGIN

    def has_text(self, tails: Sequence[Sequence[int]]) -> list[bool]:
        """Returns for each row of last tokens whether it contains a stop text."""
        return [any(text in decoded for text in self.texts) for decoded in self.decode(tails)]


@dataclass(frozen=True, eq=False)
class Answers:
    """The generated tokens of several answers, in CPU memory."""

    tokens: Tensor
    """int64 `[answers, positions]`"""
    logprobs: Tensor
    """float32 or float64 `[answers, positions]`"""
    lengths: list[int]
    has_ended: list[bool]
    """True if each answer ended by itself. The others have the maximum length."""


class Decoder:
    """Generates answers with a model of transformers."""

    def __init__(self, model: Any, sampling: Sampling, stop: Stop, max_new_tokens: int) -> None:
        self._model, self._sampling, self._stop = model, sampling, stop
        self._max_new_tokens = max_new_tokens

    @torch.inference_mode()
    def answers(self, prompts: Sequence[Tensor], rows: Sequence[int], uniforms: Tensor) -> Answers:
        """Returns one answer for each element of `rows`, which is the number of its prompt in `prompts`.

        A prompt is int64 `[tokens]` with at least one token. `uniforms` is float64
        `[answers, max_new_tokens]` with the random numbers of each answer.
        """
        device = self._model.device
        ids, is_real = padded_left(prompts, device)
        forward = CachedForward(self._model, is_real)
        logits = forward(ids)[:, -1]
        if list(rows) != list(range(len(prompts))):
            index = torch.tensor(rows, device=device)
            forward.select(index)
            logits = logits[index]
        return self._decoded(forward, logits, uniforms.to(device))

    def _decoded(self, forward: CachedForward, logits: Tensor, uniforms: Tensor) -> Answers:
        found = _Found(len(logits), self._max_new_tokens, logits)
        present = torch.arange(len(logits), device=logits.device)
        is_open = torch.ones_like(present, dtype=torch.bool)
        ends = torch.tensor(sorted(self._stop.tokens), dtype=torch.int64, device=logits.device)
        for position in range(self._max_new_tokens):
            logprobs = self._sampling.logprobs(logits)
            tokens = self._sampling.draw(logprobs, uniforms[present, position])
            found.add(position, present, tokens, logprobs)
            has_ended = torch.isin(tokens, ends)
            if self._stop.texts:
                has_ended |= self._ends_with_text(found, present, is_open, position)
            has_ended &= is_open
            found.end(position, present[has_ended])
            is_open &= ~has_ended
            count = int(is_open.sum())
            if not count or position + 1 == self._max_new_tokens:
                break
            if count <= (1 - MAX_ENDED) * len(present):
                kept = is_open.nonzero()[:, 0]
                forward.select(kept)
                present, tokens, is_open = present[kept], tokens[kept], is_open[kept]
            logits = forward(tokens[:, None])[:, -1]
        return found.answers()

    def _ends_with_text(self, found: _Found, present: Tensor, is_open: Tensor, position: int) -> Tensor:
        """Returns whether each present answer ends with a stop text."""
        places = is_open.nonzero()[:, 0]
        start = max(0, position + 1 - self._stop.window)
        tails = found.tokens[present[places], start : position + 1].tolist()
        result = torch.zeros_like(is_open)
        result[places] = torch.tensor(self._stop.has_text(tails), device=is_open.device)
        return result


class _Found:
    """The tokens that were generated so far, on the model's device."""

    def __init__(self, answers: int, positions: int, logits: Tensor) -> None:
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        self.tokens = torch.zeros((answers, positions), dtype=torch.int64, device=logits.device)
        self._logprobs = torch.zeros((answers, positions), dtype=dtype, device=logits.device)
        self._lengths = torch.full((answers,), positions, device=logits.device)
        self._has_ended = torch.zeros(answers, dtype=torch.bool, device=logits.device)

    def add(self, position: int, answers: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
        self.tokens[answers, position] = tokens
        self._logprobs[answers, position] = logprobs.gather(-1, tokens[:, None])[:, 0]

    def end(self, position: int, answers: Tensor) -> None:
        self._lengths[answers] = position + 1
        self._has_ended[answers] = True

    def answers(self) -> Answers:
        return Answers(
            self.tokens.cpu(), self._logprobs.cpu(), self._lengths.tolist(), self._has_ended.tolist()
        )


def padded_left(prompts: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Returns the tokens, int64 `[prompts, longest]`, and whether each one is no padding; None if there is no
    padding."""
    longest = max(map(len, prompts))
    ids = torch.zeros((len(prompts), longest), dtype=torch.int64)
    is_real = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        is_real[row, longest - len(prompt) :] = 1
    has_padding = not bool(is_real.all())
    return ids.to(device), is_real.to(device) if has_padding else None
