"""`hf.Sampler`: a model of transformers that generates answers to prompts.

    sampler: {_target_: meshctl.hf.Sampler, group: rollout,
              args: {model: Qwen/Qwen3-0.6B, max_new_tokens: 256, group_size: 8}}

Each rank has the whole model. The weights come from an actor by a sync. An answer depends on the weights, the
prompt, the recipe's seed, the step and the id of its sample, and not on the number of ranks. `decoding` says
how answers are generated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from meshctl.argument_limits import check_arguments
from meshctl.data.examples import PromptLimits
from meshctl.hf import peft_api, transformers_api, weights
from meshctl.hf.building import Build, build
from meshctl.hf.checks import SAMPLER
from meshctl.hf.decoding import HfStepper, logprobs_of
from meshctl.hf.options import ModelError, dtype_of
from meshctl.hf.peft_api import Lora
from meshctl.hf.texts import as_column, texts_of
from meshctl.hf.transformers_api import DiskFormat
from meshctl.hf.transformers_cache import check_cache
from meshctl.hf.weights import load_stored, stored_weights
from meshctl.labels import IGNORED
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.sampling.answers import AnswerSampler
from meshctl.sampling.continuous import Continuous, Sampling


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
        self.sampling = Sampling.of(max_new_tokens, temperature, top_p, top_k, stop)
        self.model, self.config, self.dtype = model, dict(config or {}), dtype_of(dtype)
        self.attention, self.experts, self.lora = attention, experts, Lora.of(lora) if lora else None
        self.tokenizer_name, self.tokens = tokenizer or str(model), tokens
        self.group_size = group_size
        self.batch_size, self.max_batch_tokens = batch_size, max_batch_tokens
        self.logprobs_dtype = torch.float64 if self.dtype == torch.float64 else torch.float32

    def setup(self) -> None:
        check_cache(self.module)
        self.generator  # noqa: B018

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
    def end_tokens(self) -> list[int]:
        return self._ends(lambda: transformers_api.end_tokens(self.module))

    @cached_property
    def generator(self) -> Continuous:
        """The thread that generates answers, made at the first access."""
        limits = self.batch_size, self.max_batch_tokens
        decode = self.tokenizer.decode_rows
        return Continuous(HfStepper(self.module, self._ended_sampling, decode, *limits))

    # Sampling

    @torch.no_grad()
    def _scores(self, texts: Batch) -> Ragged:
        """Returns the log-probabilities of the labels of whole texts after temperature. `top_k` and `top_p`
        are ignored, because other weights may exclude a token that was drawn."""
        whole, columns = replace(self.sampling, top_p=1.0, top_k=0), []
        for row in range(len(texts)):
            found = texts_of(texts.between(row, row + 1), "", self.device)
            logprobs = logprobs_of(whole, self.module(**found.inputs).logits[:, :-1])
            own = logprobs.gather(-1, found.targets.clamp(min=0)[..., None])[..., 0]
            columns += as_column(torch.where(found.targets == IGNORED, 0.0, own), found).rows()
        return Ragged.of(columns)

    @cached_property
    def limits(self) -> PromptLimits:
        embedding = self.module.get_input_embeddings()  # type: ignore[operator]
        positions = transformers_api.positions_of(self.module.config)
        return PromptLimits(embedding.weight.shape[0], positions, self.sampling.max_new_tokens, ModelError)

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
        with self._loading():
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

        with self._loading():
            load_stored(self._disk, self._base(), named())
        if missing := sorted(self._stored_names - arrived):
            raise ModelError(
                f"the sync does not send `{missing[0]}`"
                + (f" and {len(missing) - 1} more weights" if len(missing) > 1 else "")
                + ": the sampler and the sender have different models"
            )
