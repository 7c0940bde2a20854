"""Applies the head of a model to a few tokens at a time. The logits of a whole batch are never in memory.

    hidden states --chunk--> head --> logits of the chunk --> log-probabilities of its labels

All chunks are computed inside one call of the head's module. FSDP therefore gathers the weights of the head
and reduces their gradients once, and tensor parallelism treats each chunk as it treats a whole batch. The
backward pass computes the logits of a chunk again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from meshctl.hf.errors import ModelError
from meshctl.losses.logprobs import token_logprobs


class ChunkedHead:
    """Computes log-probabilities of labels with a model whose head is applied to a few tokens at a time."""

    def __init__(self, model: Any, tokens: int, temperature: float = 1.0) -> None:
        """Replaces the `forward` of the model's head. `tokens` is the number of tokens whose logits are in
        memory at the same time. `temperature` divides the logits."""
        self._model, self._tokens, self._temperature = model, tokens, temperature
        head = model.get_output_embeddings()
        self._logits = head.forward
        self._targets: Tensor | None = None
        self._found: Tensor | None = None
        head.forward = self._forward

    def logprobs(self, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Returns `[rows, targets]`: the log-probability of each target, and 0 where it is -100.

        `inputs` are the arguments of the model, and `targets`, int64 `[rows, targets]`, are those of its
        first positions. Raises `ModelError` for a model that changes the logits after its head.
        """
        self._targets = targets
        try:
            found = self._model(**inputs).logits
        finally:
            self._targets, own, self._found = None, self._found, None
        if own is None or not torch.equal(found.nan_to_num(), own.nan_to_num()):
            raise ModelError(
                "`logits_chunk_tokens` needs a model whose head computes its logits; "
                f"`{type(self._model).__name__}` changes them after its head"
            )
        return found[..., 0]  # type: ignore[no-any-return]

    def _forward(self, hidden: Tensor) -> Tensor:
        """Replaces the head's `forward`. Inside `logprobs`, it returns the log-probabilities of the targets,
        `[rows, targets, 1]`, and otherwise the logits."""
        if self._targets is None:
            return self._logits(hidden)  # type: ignore[no-any-return]
        tokens = hidden[:, : self._targets.shape[1]].flatten(0, 1)
        labels = self._targets.flatten()
        chunks = zip(torch.split(tokens, self._tokens), torch.split(labels, self._tokens), strict=True)
        parts = [
            checkpoint(self._chunk, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks
        ]
        self._found = torch.cat(parts).view(*self._targets.shape, 1)
        return self._found

    def _chunk(self, hidden: Tensor, labels: Tensor) -> Tensor:
        return token_logprobs(self._logits(hidden[None])[0], labels, self._temperature)
