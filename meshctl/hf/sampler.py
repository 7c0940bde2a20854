"""`hf.Sampler`: a model of transformers that generates answers to prompts.

    sampler: {_target_: meshctl.hf.Sampler, group: rollout,
              args: {model: Qwen/Qwen3-0.6B, max_new_tokens: 256, group_size: 8}}

Each rank has the whole model. The weights come from an actor by a sync. An answer depends on the weights, the
prompt, the recipe's seed, the step and the id of its sample, and not on the number of ranks.

    prompts --one forward pass--> cache, one row for each prompt
            --copied for each answer--> one forward pass for each position, one row for each answer

Prompts are padded at their beginning. When a part of the answers has ended, their rows leave the cache, so
that long answers do not pay for short ones. A token is the inverse of the cumulative distribution at a
uniform random number, which depends on the seed, the step, the id of the sample and the position of the token
alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from meshctl.argument_limits import check_arguments
from meshctl.data.samplers import Answer, AnswerSampler, PromptLimits
from meshctl.dataclass import dataclass
from meshctl.hf import peft_api, transformers_api, weights
from meshctl.hf.building import Build, build
from meshctl.hf.checks import SAMPLER
from meshctl.hf.options import ModelError, dtype_of
from meshctl.hf.peft_api import Lora
from meshctl.hf.texts import as_column, texts_of
from meshctl.hf.transformers_api import CachedForward, DiskFormat, check_cache, padded_left
from meshctl.hf.weights import load_stored, stored_weights
from meshctl.labels import IGNORED
from meshctl.runtime.batch.batch import Batch, Ragged


class Sampler(AnswerSampler):
    """Generates answers to prompts."""

    EXTRA = "hf"
    MODEL: ClassVar = ("args.model", "args.config")
    LAYOUTS: ClassVar = {"dims": ("dp",), "cache": "args"}
    RETURNS: ClassVar = {
        "sample": ("*", "input_ids", "labels", "sampled_logprobs", "response", "finish_reason")
    }

    def __init__(
        self,
        model: str | Mapping[str, Any],
        *,
        max_new_tokens: int,
        tokenizer: str = "",
        tokens: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
        dtype: str = "float32",
        attention: str | None = None,
        experts: str | None = None,
        lora: Mapping[str, Any] | None = None,
        group_size: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: Sequence[int | str] = (),
        batch_size: int = 128,
        max_batch_tokens: int | None = None,
    ) -> None:
        """Stores and checks the arguments. Raises `ModelError` for invalid arguments.

        model: the folder of a model, a name of the hub, or config values with `model_type`. Config values
            produce random weights.
        max_new_tokens: the most tokens of an answer.
        tokenizer: `byte`, a folder, or a name of the hub; by default that of the model.
        tokens: tokens that are added to the tokenizer and to the embeddings, as in `hf.Model`.
        config: values that replace those of the model's config.
        dtype: the dtype of the weights.
        attention, experts: the names of the implementations of attention and of experts in transformers.
        lora: the adapter of the model whose weights a sync sends to `load_adapter`, as in `hf.Model`.
        group_size: the number of answers to each prompt.
        temperature: the divisor of the logits. With 0, the most likely token is taken.
        top_p, top_k: the least sum of the probabilities, and the number, of the most likely tokens that can
            be drawn.
        stop: ids of tokens and texts that end an answer, beside the end tokens of the tokenizer and of the
            model. They stay a part of the answer.
        batch_size: the most answers that are generated at the same time.
        max_batch_tokens: the most tokens, prompts included, that these answers can have together; None for
            no limit. One answer is always generated.
        """
        check_arguments(SAMPLER, locals(), ModelError)
        if not tokenizer and not isinstance(model, str):
            raise ModelError("`tokenizer` is needed with a model of config values")
        self.sampling = Sampling(temperature, top_k, top_p)
        self.model, self.config, self.dtype = model, dict(config or {}), dtype_of(dtype)
        self.attention, self.experts, self.lora = attention, experts, Lora.of(lora) if lora else None
        self.tokenizer_name, self.tokens = tokenizer or str(model), tokens
        self.max_new_tokens, self.group_size = max_new_tokens, group_size
        self.stop_tokens = [one for one in stop if not isinstance(one, str)]
        self.stop_texts = tuple(one for one in stop if isinstance(one, str))
        self.batch_size, self.max_batch_tokens = batch_size, max_batch_tokens
        self.logprobs_dtype = torch.float64 if self.dtype == torch.float64 else torch.float32

    def setup(self) -> None:
        check_cache(self.module)
        self.decoder  # noqa: B018

    @cached_property
    def module(self) -> nn.Module:
        """The whole model, built at the first access."""
        module = build(
            Build(
                self.model,
                config=self.config,
                dtype=self.dtype,
                attention=self.attention,
                experts=self.experts,
                lora=self.lora,
                seed=self.seed,
                added=self.tokenizer.added,
                device=self.device,
            )
        )
        return module.eval().requires_grad_(False)

    @cached_property
    def decoder(self) -> Decoder:
        ends = self._end_tokens(self.stop_tokens, lambda: transformers_api.end_tokens(self.module))
        stop = Stop(frozenset(ends), self.stop_texts, self.tokenizer.decode_rows)
        return Decoder(self.module, self.sampling, stop, self.max_new_tokens)

    # Sampling

    def _answers(self, prompts: list[Tensor], samples: Batch) -> list[Answer]:
        owners = [row // self.group_size for row in range(len(samples))]
        words = (self.seed, self.place.name, self.step)
        random = uniforms(stream_keys(words, samples.ids), self.max_new_tokens)
        found: dict[int, Answer] = {}
        for rows in self._generated_together([len(prompts[owner]) for owner in owners]):
            own = sorted({owners[row] for row in rows})
            places = [own.index(owners[row]) for row in rows]
            answers = self.decoder.answers([prompts[owner] for owner in own], places, random[rows])
            found |= dict(zip(rows, answers, strict=True))
        return [found[row] for row in range(len(samples))]

    @torch.no_grad()
    def _scores(self, texts: Batch) -> Ragged:
        """Returns the log-probabilities of the labels of whole texts after temperature. `top_k` and `top_p`
        are ignored, because other weights may exclude a token that was drawn."""
        of, columns = Sampling(self.sampling.temperature), []
        for row in range(len(texts)):
            found = texts_of(texts.between(row, row + 1), "", self.device)
            logprobs = of.logprobs(self.module(**found.inputs).logits[:, :-1])
            own = logprobs.gather(-1, found.targets.clamp(min=0)[..., None])[..., 0]
            columns += as_column(torch.where(found.targets == IGNORED, 0.0, own), found).rows()
        return Ragged.of(columns)

    @cached_property
    def limits(self) -> PromptLimits:
        embedding = self.module.get_input_embeddings()  # type: ignore[operator]
        positions = transformers_api.positions_of(self.module.config)
        return PromptLimits(embedding.weight.shape[0], positions, self.max_new_tokens, ModelError)

    def _generated_together(self, prompt_lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yields the numbers of the answers that are generated together. Prompts of similar length are
        together, because shorter ones are padded."""
        rows: list[int] = []
        for row in sorted(range(len(prompt_lengths)), key=lambda row: prompt_lengths[row]):
            tokens = (len(rows) + 1) * (prompt_lengths[row] + self.max_new_tokens)
            is_full = len(rows) == self.batch_size or tokens > (self.max_batch_tokens or tokens)
            if rows and is_full:
                yield rows
                rows = []
            rows.append(row)
        if rows:
            yield rows

    # Weights

    @cached_property
    def _disk(self) -> DiskFormat:
        return DiskFormat(self.module.config, "lm", self.dtype)

    @cached_property
    def _stored_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in stored_weights(self._disk, self._base().items()))

    def _base(self) -> dict[str, Tensor]:
        """Returns the weights of the model without those of its adapter, by their names in memory."""
        held = weights.held(self.module).items()
        return {peft_api.plain_name(name): one for name, one in held if not peft_api.is_adapter(name)}

    def load_adapter(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Copies the tensors of `stream` into the adapter, as `hf.Model.adapter` yields them. Raises
        `ModelError` for an unknown name or another shape."""
        weights.copy_named(dict(weights.adapter_of(self.module)), stream)

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Copies the tensors of `stream` into the weights. The names are those of the model's files, as
        `hf.Model.weights` yields them. Raises `ModelError` for an unknown name, a wrong shape, or a weight
        that does not arrive."""
        arrived: set[str] = set()

        def named() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in stream:
                arrived.add(name)
                yield name, tensor

        load_stored(self._disk, self._base(), named())
        if missing := sorted(self._stored_names - arrived):
            raise ModelError(
                f"the sync does not send `{missing[0]}`"
                + (f" and {len(missing) - 1} more weights" if len(missing) > 1 else "")
                + ": the sampler and the sender have different models"
            )


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
        if self.top_p < 1:  # the nucleus (Holtzman et al., 2020, arXiv:1904.09751)
            ordered, order = logits.softmax(-1).sort(stable=True, dim=-1, descending=True)
            is_outside = (ordered.cumsum(-1) - ordered) >= self.top_p
            logits = logits.masked_fill(is_outside.scatter(-1, order, is_outside), -torch.inf)
        return logits.log_softmax(-1)

    def draw(self, logprobs: Tensor, uniforms: Tensor) -> Tensor:
        """Returns int64 `[rows]`: one token for each row of `logprobs`. `uniforms` is float64 `[rows]`, from
        0 to below 1. It is not used with temperature 0."""
        if not self.temperature:
            return logprobs.argmax(-1)
        cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
        aims = uniforms[:, None] * cumulative[:, -1:]
        return torch.searchsorted(cumulative, aims, right=True)[:, 0]


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


class Decoder:
    """Generates answers with a model of transformers."""

    def __init__(self, model: Any, sampling: Sampling, stop: Stop, max_new_tokens: int) -> None:
        self._model, self._sampling, self._stop = model, sampling, stop
        self._max_new_tokens = max_new_tokens

    @torch.inference_mode()
    def answers(self, prompts: Sequence[Tensor], rows: Sequence[int], uniforms: Tensor) -> list[Answer]:
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

    def _decoded(self, forward: CachedForward, logits: Tensor, uniforms: Tensor) -> list[Answer]:
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
        places = is_open.nonzero()[:, 0]
        start = max(0, position + 1 - self._stop.window)
        tails = found.tokens[present[places], start : position + 1].tolist()
        result = torch.zeros_like(is_open)
        ended = [any(text in tail for text in self._stop.texts) for tail in self._stop.decode(tails)]
        result[places] = torch.tensor(ended, device=is_open.device)
        return result


class _Found:
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

    def answers(self) -> list[Answer]:
        rows = (self.tokens, self._logprobs, self._lengths, self._has_ended)
        return [
            Answer(tokens[:length], logprobs[:length], "stop" if has_ended else "length")
            for tokens, logprobs, length, has_ended in zip(*(one.tolist() for one in rows), strict=True)
        ]


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
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
