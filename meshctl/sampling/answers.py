"""The base class of samplers: the check of their prompts, the columns of their answers, and a few answers
that they score again after each sync.

A sampler that made samples before the actor changed its weights scores these held answers with the weights
that it has since then. `meshctl.hf.parity` compares the scores with the actor's.

    step 3    the sampler holds its first answers
    step 5    the actor sends weights, and scores the held answers with them
    step 7    the sampler has these weights, and scores the same answers
              its samples, @version 5, @held_logprobs --> the actor compares both scores

The held answers travel with the first samples of a batch, as marks: columns that stages pass on and users do
not see. The actor knows them from an earlier batch.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from meshctl.data.examples import COLUMN, PromptLimits
from meshctl.data.tokenizer import Tokenizer
from meshctl.labels import IGNORED
from meshctl.runtime.batch.batch import MARK, Batch, Column, Ragged
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.event_loop import PASS_CALL
from meshctl.sampling.continuous import UNKNOWN, Answer, Continuous, Request, Sampling

MAX_ANSWERS = 4
"""The number of answers that each rank of a sampler holds."""
MAX_TOKENS = 2048
"""The maximum length of a held text. It bounds the memory for the probabilities of all tokens."""
IDS, LABELS, LOGPROBS = (MARK + f"held_{name}" for name in ("ids", "labels", "logprobs"))
HELD_VERSION, UNSCORED = MARK + "held_version", -1
"""The mark with the version of the weights that computed the scores; `UNSCORED` before the first ones."""
EPISODE = MARK + "episode"
"""The mark of the rows of an agent's episodes: all rows whose ids differ in the last number alone are one
episode."""
VERSION, VERSIONS = MARK + "version", MARK + "versions"
"""The marks with the version of the weights of each token, -1 in the prompt, and with the oldest of a
sample."""
Score = Callable[[Batch], Ragged]
"""A function of the columns `input_ids` and `labels`. It returns the log-probability of each label, and 0
where the label is -100."""
log = logging.getLogger(__name__)


def with_answers(
    batch: Batch,
    answers: Sequence[Answer],
    tokenizer: Tokenizer,
    dtype: torch.dtype = torch.float32,
    *,
    has_versions: bool = False,
) -> Batch:
    """Returns the samples of `batch`, one for each answer, with the columns of the answers, which `sample` of
    a sampler lists. The prompts are the column `prompt_ids`, and `dtype` is that of the log-probabilities.
    `has_versions` is whether the answers have the versions of their weights."""
    prompts = [row.cpu().long() for row in batch[COLUMN].rows()]
    tokens = [torch.tensor(one.tokens, dtype=torch.int64) for one in answers]
    logprobs = [torch.tensor(one.logprobs, dtype=dtype) for one in answers]
    ignored = [torch.full_like(prompt, IGNORED) for prompt in prompts]
    zeros = [torch.zeros(len(prompt), dtype=dtype) for prompt in prompts]

    def joined(first: list[Tensor], second: list[Tensor], dtype: torch.dtype = torch.int64) -> Ragged:
        return Ragged.of([torch.cat(pair) for pair in zip(first, second, strict=True)], dtype)

    columns: dict[str, Column] = {
        "input_ids": joined(prompts, tokens),
        "labels": joined(ignored, tokens),
        "sampled_logprobs": joined(zeros, logprobs, dtype),
        "finish_reason": [one.finish_reason for one in answers],
        "response": tokenizer.decode_rows([one.tokens for one in answers], is_plain=True),
    }
    if has_versions:
        listed = [one.versions or [UNKNOWN] * len(one.tokens) for one in answers]
        versions = [torch.tensor(one, dtype=torch.int64) for one in listed]
        columns[VERSIONS] = joined([torch.full_like(prompt, UNKNOWN) for prompt in prompts], versions)
        columns[VERSION] = torch.tensor([min(one) for one in listed], dtype=torch.int64)
    kept = {name: column for name, column in batch.columns.items() if name not in columns}
    # The tokens come first, because the first ragged column determines the lengths of samples.
    return Batch({**columns, **kept}, ids=batch.known_ids, group_depth=batch.group_depth, most=batch.most)


def seeds_of(words: Sequence[Any], ids: Tensor) -> list[int]:
    """Returns a seed of 64 bits, as a signed number, for each sample. `ids` is int64 `[samples, depth]`.
    Equal `words` and ids have equal seeds, on any machine."""
    prefix = hashlib.blake2b(repr(tuple(words)).encode(), digest_size=8)
    seeds = []
    for id in ids.tolist():
        one = prefix.copy()
        one.update(repr(tuple(id)).encode())
        seeds.append(int.from_bytes(one.digest(), "big", signed=True))
    return seeds


class HeldBySampler:
    """The answers that a rank of a sampler holds."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        """`max_tokens` is the maximum length of a text that can be scored. Longer texts are truncated."""
        self._max_tokens = min(max_tokens, MAX_TOKENS)
        self._texts: Batch | None = None
        self._version, self._scores = UNSCORED, Ragged(torch.empty(0), torch.zeros(1, dtype=torch.int64))
        self._is_new = False
        """True if the texts or their scores were in no marks yet."""

    def load(self, version: int, score: Score) -> None:
        """Scores the held answers with new weights, those of `version`."""
        if self._texts is not None:
            self._version, self._scores, self._is_new = version, score(self._texts), True

    def marks(self, answers: Batch) -> dict[str, Column]:
        """Returns the marks of `answers`, whose weights may have changed before they are trained. The first
        call with answers holds some of them."""
        if self._texts is None and len(answers):
            self._texts, self._is_new = self._first(answers), True
            self._scores = Ragged(
                torch.zeros(len(self._texts["labels"].values)), self._texts["labels"].offsets
            )
        count = len(answers) if self._texts is not None and self._is_new else 0
        texts, scores = (self._texts, self._scores) if count and self._texts else (answers[:0], self._scores)
        self._is_new = self._is_new and not count
        found = {IDS: texts["input_ids"], LABELS: texts["labels"], LOGPROBS: scores}
        marks: dict[str, Column] = {
            name: _of_first(column, count, len(answers)) for name, column in found.items()
        }
        return {**marks, HELD_VERSION: torch.full((len(answers),), self._version)}

    def _first(self, answers: Batch) -> Batch:
        first = answers.between(0, min(MAX_ANSWERS, len(answers)))
        columns = {name: first[name].rows() for name in ("input_ids", "labels")}
        return Batch(
            {name: Ragged.of([row[: self._max_tokens] for row in rows]) for name, rows in columns.items()}
        )


def _of_first(column: Column, count: int, rows: int) -> Ragged:
    """Returns a ragged column of `rows` rows: up to `count` of those of `column`, and then empty ones."""
    assert isinstance(column, Ragged)
    own = column.rows()[:count]
    return Ragged.of([*own, *[column.values[:0]] * (rows - len(own))], column.values.dtype)


class AnswerSampler(Component):
    """Generates answers to prompts. A subclass sets the attributes in its constructor."""

    model: str | Mapping[str, Any]
    config: Mapping[str, Any]
    tokenizer_name: str
    tokens: Sequence[str] = ()
    group_size: int
    sampling: Sampling
    logprobs_dtype = torch.float32

    @property
    @abstractmethod
    def limits(self) -> PromptLimits:
        """The prompts that the model can continue."""

    @property
    @abstractmethod
    def generator(self) -> Continuous:
        """The thread that generates the answers."""

    @abstractmethod
    def _scores(self, texts: Batch) -> Ragged:
        """Returns the log-probability of each label of whole texts, and 0 where the label is -100."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.tokenizer_name, tokens=self.tokens)

    @cached_property
    def _held(self) -> HeldBySampler | None:
        """The held answers; None if the sampler cannot score given answers."""
        return HeldBySampler()

    @property
    @abstractmethod
    def end_tokens(self) -> Sequence[int]:
        """The tokens that end an answer, without those of the argument `stop`."""

    @property
    def _ended_sampling(self) -> Sampling:
        """The sampling with all tokens that end an answer."""
        ends = {*self.sampling.stop_tokens, *self.end_tokens}
        return replace(self.sampling, stop_tokens=tuple(sorted(ends)))

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Returns a context in which the sampler generates and scores."""
        yield

    @endpoint
    async def sample(self, batch: Batch) -> Batch:
        """Returns `group_size` answers to each prompt, as children of the prompt's sample.

        The prompts are the ragged int64 column `prompt_ids`. All columns are kept, and these are added:

            input_ids         ragged int64     prompt and answer, with the token that ended the answer
            labels            ragged int64     the answer's tokens, and -100 in the prompt
            sampled_logprobs  ragged           log-probability of each token of the answer, 0 in the prompt
            response          list of texts    the answer without special tokens
            finish_reason     list of texts    `stop`, or `length` for an answer of `max_new_tokens`

        The log-probabilities are those of the distribution from which the tokens were drawn: after
        temperature, `top_k` and `top_p`. With temperature 0 they are those of the model at temperature 1.
        Their dtype is float32, or float64 for a model in float64. Raises a `ComponentError` for prompts that
        do not fit, with the ids of their samples.
        """
        prompts = self.limits.prompts_of(batch)
        samples = batch.repeat(self.group_size)
        with self.awake():
            answers = await self._answers(prompts, samples)
        has_versions = self.generator.version is not None
        result = with_answers(
            samples, answers, self.tokenizer, self.logprobs_dtype, has_versions=has_versions
        )
        if answers:
            count = len(answers)
            cut = sum(one.finish_reason == "length" for one in answers) / count
            self.log({"length": sum(len(one.tokens) for one in answers) / count, "cut": cut}, weight=count)
        return self.marked(result)

    def marked(self, answers: Batch) -> Batch:
        """Returns answers with the marks of the held ones, if their weights may have changed before they are
        trained."""
        version, in_pass = self.generator.version, PASS_CALL.get()
        is_old = in_pass.has_old_weights if in_pass else version is not None and version < self.step - 1
        if self._held is None or version is None or not is_old:
            return answers
        return answers.with_columns(**self._held.marks(answers))

    async def _answers(self, prompts: list[Tensor], samples: Batch) -> list[Answer]:
        """Returns an answer for each of `samples`, of which each prompt has `group_size`."""
        seeds = seeds_of((self.seed, self.place.name, self.step), samples.ids)
        size = self.group_size
        requests = [
            Request(prompt.tolist(), seeds[number * size : (number + 1) * size])
            for number, prompt in enumerate(prompts)
        ]
        return await asyncio.wrap_future(self.generator.submit(requests))

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Returns a context in which the weights may be changed. Running answers go on with the new ones, and
        the held answers are scored."""
        with self.generator.loading(version := self.place.version):
            yield
            if self._held and version is not None and self._can_score():
                self._held.load(version, self._scores)

    def _can_score(self) -> bool:
        """Returns whether texts can be scored while answers are running."""
        return True

    def close(self) -> None:
        if "generator" in self.__dict__:
            self.generator.close()

    def _ends(self, of_model: Callable[[], Sequence[int]]) -> list[int]:
        """Returns the tokens that end an answer: those of the tokenizer and of the model. A config of values
        has those of its architecture's first model if it names none, and they belong to another
        tokenizer."""
        is_stated = isinstance(self.model, str) or "eos_token_id" in {**self.model, **self.config}
        ends = {*(of_model() if is_stated else ())}
        if self.tokenizer.end_token is not None:
            ends.add(self.tokenizer.end_token)
        return sorted(ends)
