"""The generation of answers with a model of transformers: the distribution of tokens, the ends of answers,
and a stepper whose prompts join the rows that are running.

    prompts --one forward pass--> cache, one row for each prompt
            --copied for each answer--> joins the cache of the running answers, padded at its beginning
            --one forward pass for each token, of all running answers

When a part of the answers has ended, their rows leave the cache, so that long answers do not pay for short
ones. A token is the inverse of the cumulative distribution at a uniform random number, which depends on the
seed of the answer and the position of the token alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.hf.transformers_cache import CachedForward, padded_left
from meshctl.sampling.continuous import UNKNOWN, Answer, Request, Sampling

MAX_ENDED = 0.25
"""The fraction of ended answers in the cache from which on they are removed."""
TEXT_MARGIN = 4
"""The number of further tokens that are decoded to find a stop text, whose tokens may be parts of
characters."""
BITS = 48
"""The number of random bits of a uniform number. With fewer bits than a float64 has, a number below 1 times
the sum of all probabilities is below this sum."""
GAMMA, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of splitmix64 (Steele, Lea and Flood, 2014, doi:10.1145/2714064.2660195)."""


def logprobs_of(sampling: Sampling, logits: Tensor) -> Tensor:
    """Returns `[rows, vocabulary]` in float32 or float64: the log-probabilities of the distribution from
    which tokens are drawn. A token that cannot be drawn has minus infinity.

    With temperature 0, the result is the distribution of the model at temperature 1.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if not sampling.temperature:
        return logits.log_softmax(-1)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1:  # the nucleus (Holtzman et al., 2020, arXiv:1904.09751)
        ordered, order = logits.softmax(-1).sort(stable=True, dim=-1, descending=True)
        is_outside = (ordered.cumsum(-1) - ordered) >= sampling.top_p
        logits = logits.masked_fill(is_outside.scatter(-1, order, is_outside), -torch.inf)
    return logits.log_softmax(-1)


def draw(sampling: Sampling, logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Returns int64 `[rows]`: one token for each row of `logprobs`. `uniforms` is float64 `[rows]`, from
    0 to below 1. It is not used with temperature 0."""
    if not sampling.temperature:
        return logprobs.argmax(-1)
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    aims = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, aims, right=True)[:, 0]


@dataclass(eq=False)
class Waiting:
    """Answers that have not begun."""

    key: Any
    prompt: Tensor
    left: list[tuple[int, int]]
    """The index and the seed of each answer."""
    sampling: Sampling


class Running(NamedTuple):
    """An answer that has begun."""

    request: Waiting
    number: int
    """Its index among the answers of the request."""
    changes: list[tuple[int, int]]
    """The versions of the weights, as (position of the first token, version)."""


@dataclass(eq=False)
class Rows:
    """The answers that are running, and of those that have ended some that are still in the cache."""

    forward: CachedForward
    answers: list[Running]
    logits: Tensor
    """`[rows, vocabulary]`: those of the next token."""
    random: Tensor
    """float64 `[rows, max_new_tokens]`"""
    tokens: Tensor
    """int64 `[rows, max_new_tokens]`"""
    logprobs: Tensor
    """`[rows, max_new_tokens]`"""
    position: Tensor
    """int64 `[rows]`: the number of tokens of each row."""
    most: Tensor
    """int64 `[rows]`: the most tokens of each row."""
    is_open: Tensor
    """bool `[rows]`: False for an answer that has ended."""

    def __post_init__(self) -> None:
        self.numbers = torch.arange(len(self.answers), device=self.logits.device)

    def select(self, kept: Tensor) -> None:
        """Keeps these of the rows. `kept` is int64."""
        self.forward.select(kept)
        self.forward.trim()
        self.answers = [self.answers[row] for row in kept.tolist()]
        for name in TENSORS:
            setattr(self, name, getattr(self, name)[kept])
        self.numbers = self.numbers[: len(self.answers)]

    def join(self, other: Rows) -> None:
        """Adds the rows of `other`."""
        self.forward.join(other.forward)
        self.answers += other.answers
        for name in TENSORS:
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        self.numbers = torch.arange(len(self.answers), device=self.logits.device)


def _versions(changes: Sequence[tuple[int, int]], length: int) -> list[int]:
    """Returns the version of the weights of each token of an answer with `length` tokens."""
    found = list[int]()
    for position, version in changes:
        found[position:] = [version] * (length - position)
    return found


TENSORS = ("logits", "random", "tokens", "logprobs", "position", "most", "is_open")
"""The fields of `Rows` with an element for each row."""


class HfStepper:
    """Generates answers with a model of transformers."""

    def __init__(
        self,
        model: Any,
        sampling: Sampling,
        decode: Callable[[Sequence[Sequence[int]]], Sequence[str]],
        max_rows: int,
        max_tokens: int | None = None,
    ) -> None:
        """`decode` returns the texts of several rows of tokens. `max_rows` is the most answers that run at
        the same time, and `max_tokens` the most tokens that they can have together, prompts included."""
        self._model, self._sampling, self._decode = model, sampling, decode
        self._max_rows, self._max_tokens = max_rows, max_tokens
        self._ends = torch.tensor(sampling.stop_tokens, dtype=torch.int64, device=model.device)
        self._waiting: deque[Waiting] = deque()
        self._rows: Rows | None = None
        self._open = 0
        """The number of answers that are running."""
        self._version: int | None = None
        self._is_stale = False
        """True if the cache was computed with other weights."""

    def add(self, key: Any, request: Request) -> None:
        prompt = torch.as_tensor(request.prompt, dtype=torch.int64)
        seeds = list(enumerate(request.seeds))
        self._waiting.append(Waiting(key, prompt, seeds, self._sampling.within(request)))

    @torch.inference_mode()
    def abort(self, key: Any) -> None:
        self._waiting = deque(one for one in self._waiting if one.key != key)
        if rows := self._rows:
            is_other = [one.request.key != key for one in rows.answers]
            rows.is_open &= torch.tensor(is_other, device=rows.is_open.device)
            self._open = int(rows.is_open.sum())
        if not self._open:
            self._rows, self._is_stale = None, False

    def reload(self, version: int) -> None:
        self._version, self._is_stale = version, self._rows is not None
        if rows := self._rows:
            for one, position in zip(rows.answers, rows.position.tolist(), strict=True):
                one.changes.append((position, version))

    def drop(self) -> None:
        self._waiting.clear()
        self._rows, self._open = None, 0

    @torch.inference_mode()
    def step(self) -> list[tuple[Any, int, Answer]]:
        """Samples a token of each running answer, and returns the answers that have ended."""
        if self._is_stale and self._rows is not None:
            self._compute_again(self._rows)
        if admitted := self._admitted():
            new = self._begun(admitted)
            self._open += len(new.answers)
            if self._rows is None:
                self._rows = new
            else:
                self._remove_ended()
                self._rows.join(new)
        rows = self._rows
        assert rows is not None
        at = rows.numbers, rows.position
        if self._open < len(rows.answers):  # an ended answer may have all of its tokens
            at = rows.numbers, rows.position.clamp(max=self._sampling.max_new_tokens - 1)
        logprobs = logprobs_of(self._sampling, rows.logits)
        tokens = draw(self._sampling, logprobs, rows.random[at])
        rows.tokens[at], rows.logprobs[at] = tokens, logprobs.gather(-1, tokens[:, None])[:, 0]
        rows.position += rows.is_open
        has_stopped = torch.isin(tokens, self._ends)
        if any(one.request.sampling.stop_texts for one in rows.answers):
            has_stopped |= self._ends_with_text(rows)
        has_ended = rows.is_open & (has_stopped | (rows.position == rows.most))
        ended = self._ended(rows, has_ended, has_stopped)
        self._open -= len(ended)
        if not self._open:
            self._rows = None
        else:
            if self._open <= (1 - MAX_ENDED) * len(rows.answers):
                tokens = tokens[rows.is_open]
                self._remove_ended()
            rows.logits = rows.forward(tokens[:, None])[:, -1]
        return ended

    def _ended(self, rows: Rows, has_ended: Tensor, has_stopped: Tensor) -> list[tuple[Any, int, Answer]]:
        """Returns the answers that have ended in this step, and closes their rows."""
        numbers = [row for row, is_over in enumerate(has_ended.tolist()) if is_over]
        if not numbers:
            return []
        rows.is_open &= ~has_ended
        columns = (rows.tokens, rows.logprobs, rows.position, has_stopped)
        found = []
        for row, tokens, logprobs, length, stopped in zip(
            numbers, *(column[has_ended].tolist() for column in columns), strict=True
        ):
            one = rows.answers[row]
            versions = _versions(one.changes, length) if self._version is not None else []
            reason = "stop" if stopped else "length"
            answer = Answer(tokens[:length], logprobs[:length], reason, versions)
            found.append((one.request.key, one.number, answer))
        return found

    def _compute_again(self, rows: Rows) -> None:
        """Computes the cache and the logits of the running answers with new weights."""
        self._is_stale = False
        self._remove_ended()
        lengths = rows.position.tolist()
        sampled = [row[:length].cpu() for row, length in zip(rows.tokens, lengths, strict=True)]
        texts = [torch.cat([one.request.prompt, own]) for one, own in zip(rows.answers, sampled, strict=True)]
        ids, is_real = padded_left(texts, self._model.device)
        rows.forward = CachedForward(self._model, is_real)
        rows.logits = rows.forward(ids)[:, -1]

    def _remove_ended(self) -> None:
        if self._rows is not None and self._open < len(self._rows.answers):
            self._rows.select(self._rows.is_open.nonzero()[:, 0])

    def _ends_with_text(self, rows: Rows) -> Tensor:
        """Returns bool `[rows]`: whether the last tokens of a running answer have a stop text."""
        places = rows.is_open.nonzero()[:, 0]
        stops = [rows.answers[place].request.sampling.stop_texts for place in places.tolist()]
        # A token is at least one byte.
        windows = [max((len(text.encode()) for text in some), default=0) + TEXT_MARGIN for some in stops]
        texts, lengths = rows.tokens[places].tolist(), rows.position[places].tolist()
        tails = [
            row[max(0, end - window) : end] for row, end, window in zip(texts, lengths, windows, strict=True)
        ]
        found = self._decode(tails)
        ended = [any(one in tail for one in some) for some, tail in zip(stops, found, strict=True)]
        result = torch.zeros_like(rows.is_open)
        result[places] = torch.tensor(ended, device=result.device)
        return result

    # Prompts

    def _admitted(self) -> list[tuple[Waiting, list[tuple[int, int]]]]:
        """Returns the answers that begin now, by their requests. While others run, some must have room
        together, so that each step does not copy the cache."""
        found = list[tuple[Waiting, list[tuple[int, int]]]]()
        room = self._max_rows - self._open
        least = min(len(self._waiting[0].left), MAX_ENDED * self._max_rows) if self._waiting else 0
        if not self._waiting or (self._open and room < least):
            return []
        running = self._rows.answers if self._rows and self._open else []
        longest = max((len(one.request.prompt) for one in running), default=0)
        count = self._open
        while self._waiting and room:
            first = self._waiting[0]
            longest = max(longest, len(first.prompt))
            fitting = room
            if self._max_tokens is not None:
                most = self._max_tokens // (longest + self._sampling.max_new_tokens)
                fitting = min(room, max(most - count, int(not count)))
            if fitting <= 0:
                break
            begun, first.left = first.left[:fitting], first.left[fitting:]
            found.append((first, begun))
            room, count = room - len(begun), count + len(begun)
            if not first.left:
                self._waiting.popleft()
        return found

    def _begun(self, admitted: Sequence[tuple[Waiting, list[tuple[int, int]]]]) -> Rows:
        """Returns new rows, with the logits of their first tokens."""
        device, most = self._model.device, self._sampling.max_new_tokens
        ids, is_real = padded_left([one.prompt for one, _ in admitted], device)
        forward = CachedForward(self._model, is_real)
        logits = forward(ids)[:, -1]
        owners = [number for number, (_, begun) in enumerate(admitted) for _ in begun]
        if owners != list(range(len(admitted))):
            index = torch.tensor(owners, device=device)
            forward.select(index)
            logits = logits[index]
        seeds = torch.tensor([seed for _, begun in admitted for _, seed in begun], dtype=torch.int64)
        count, dtype = len(owners), torch.float64 if logits.dtype == torch.float64 else torch.float32
        version = UNKNOWN if self._version is None else self._version
        return Rows(
            forward,
            [Running(one, index, [(0, version)]) for one, begun in admitted for index, _ in begun],
            logits,
            random=uniforms(seeds, most).to(device),
            tokens=torch.zeros((count, most), dtype=torch.int64, device=device),
            logprobs=torch.zeros((count, most), dtype=dtype, device=device),
            position=torch.zeros(count, dtype=torch.int64, device=device),
            most=torch.tensor(
                [admitted[owner][0].sampling.max_new_tokens for owner in owners], device=device
            ),
            is_open=torch.ones(count, dtype=torch.bool, device=device),
        )


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
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
