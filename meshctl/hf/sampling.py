"""The distribution from which a sampler draws tokens, and the random numbers that it draws with.

A token is the inverse of the cumulative distribution at a uniform random number. The number depends on the
seed, the step, the id of the sample and the position of the token alone. The answer to a sample is therefore
the same in every layout and in every batch, up to rounding of the logits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshctl.dataclass import dataclass

BITS = 48
"""The number of random bits of a uniform number. With fewer bits than a float64 has, a number below 1 times
the sum of all probabilities is below this sum."""
GAMMA, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of splitmix64 (Steele, Lea and Flood, 2014, doi:10.1145/2714064.2660195)."""


@dataclass(frozen=True)
class Sampling:
    """The distribution from which tokens are drawn, given logits."""

    temperature: float = 1.0
    """The divisor of the logits. With 0, the most likely token is taken."""
    top_k: int = 0
    """The number of most likely tokens that can be drawn; 0 for all."""
    top_p: float = 1.0
    """Only the most likely tokens, whose probabilities add up to at least this number, can be drawn."""

    def logprobs(self, logits: Tensor) -> Tensor:
        """Returns `[rows, vocabulary]` in float32 or float64: the log-probabilities of the distribution from
        which tokens are drawn. A token that cannot be drawn has minus infinity.

        With temperature 0, the result is the distribution of the model at temperature 1.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if not self.temperature:
            return logits.log_softmax(-1)
        if self.temperature != 1:
            logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p < 1:
            logits = logits.masked_fill(~_nucleus(logits, self.top_p), -torch.inf)
        return logits.log_softmax(-1)

    def draw(self, logprobs: Tensor, uniforms: Tensor) -> Tensor:
        """Returns int64 `[rows]`: one token for each row of `logprobs`. `uniforms` is float64 `[rows]`, from
        0 to below 1. It is not used with temperature 0."""
        if not self.temperature:
            return logprobs.argmax(-1)
        cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
        aims = uniforms[:, None] * cumulative[:, -1:]
        return torch.searchsorted(cumulative, aims, right=True)[:, 0]


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Returns booleans: true for the most likely tokens, whose probabilities add up to at least
    `top_p` (Holtzman et al., 2020, arXiv:1904.09751)."""
    ordered, order = logits.softmax(-1).sort(stable=True, dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, before < top_p)


def stream_keys(words: Sequence[Any], ids: Tensor) -> Tensor:
    """Returns int64 `[samples]`: the key of each sample's stream of random numbers. `ids` is int64
    `[samples, depth]`. Equal `words` and ids have equal keys, on any machine."""
    prefix = hashlib.blake2b(repr(tuple(words)).encode(), digest_size=8)
    keys = []
    for id in ids.tolist():
        one = prefix.copy()
        one.update(repr(tuple(id)).encode())
        keys.append(int.from_bytes(one.digest(), "big", signed=True))
    return torch.tensor(keys, dtype=torch.int64)


def uniforms(keys: Tensor, count: int) -> Tensor:
    """Returns float64 `[samples, count]`: the first numbers of each stream, from 0 to below 1. The numbers
    are those of splitmix64 with `keys` as its states."""
    numbers = torch.arange(1, count + 1, device=keys.device) * _signed(GAMMA)
    state = keys[:, None] + numbers
    state = (state ^ _shifted(state, 30)) * _signed(MIX_1)
    state = (state ^ _shifted(state, 27)) * _signed(MIX_2)
    state = state ^ _shifted(state, 31)
    return _shifted(state, 64 - BITS).double() * 2.0**-BITS


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Returns int64 values shifted to the right, with zeros from the left."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
