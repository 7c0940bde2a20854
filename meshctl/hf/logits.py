"""Forward passes that do not keep the logits of all tokens.

`shared_logits`: texts with the same beginning, such as the answers to one prompt, compute it once. A text's
beginning ends before its first label. The logits of all other positions are not computed.

    texts         p q r a b      p q r c d e        the labels begin at a and c
    beginnings    p q r                             one row for all texts that begin so
    endings             a              c d          continue copies of its keys and values; e predicts nothing
    logits          r a            r c d            those that predict the labels a b, c d e

`ChunkedHead`: the head is applied to a few tokens at a time, inside one call of its module. FSDP therefore
gathers its weights and reduces their gradients once, and tensor parallelism treats each chunk as it treats a
whole batch. The backward pass computes the logits of a chunk again.

    hidden states --chunk--> head --> logits of the chunk --> log-probabilities of its labels
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from meshctl.hf.options import ModelError
from meshctl.hf.outputs import Outputs
from meshctl.hf.texts import Texts
from meshctl.hf.transformers_cache import CachedForward, padded_left
from meshctl.labels import IGNORED
from meshctl.losses.loss import token_logprobs

NEEDS_LOGITS = "`{}` needs the logits of all tokens; leave out `logits_chunk_tokens`"


def shared_logits(model: Any, texts: Texts) -> tuple[Tensor, Tensor]:
    """Returns the logits at the last token of each row's beginning and at the tokens of its ending, `[rows,
    longest ending + 1, vocabulary]`, and the place of each among the targets of `texts`, int64 `[rows,
    longest ending + 1]`; their number where a row has no further target.

    The model runs twice: over the different beginnings, and over the endings. Raises `ModelError` for packed
    texts.
    """
    if texts.position_ids is not None:
        raise ModelError("`share_prompts` needs one text in each row; these are packed")
    ids, is_label = texts.input_ids.cpu(), texts.labels[:, 1:].cpu() != IGNORED
    rows, longest = ids.shape
    lengths = [*texts.lengths.tolist(), *[1] * (rows - texts.samples)]
    firsts = torch.where(is_label.any(1), is_label.int().argmax(1) + 1, longest).tolist()
    starts = [min(first, max(1, length)) for first, length in zip(firsts, lengths, strict=True)]
    numbers: dict[tuple[int, ...], int] = {}
    owners = [
        numbers.setdefault(tuple(ids[row, :start].tolist()), len(numbers)) for row, start in enumerate(starts)
    ]
    width = max(1, *(length - start - 1 for length, start in zip(lengths, starts, strict=True)))
    begin, length = torch.tensor(starts)[:, None], torch.tensor(lengths)[:, None]
    positions = begin + torch.arange(width)  # of the tokens after the beginning, without the last one
    endings = torch.where(positions < length - 1, ids.gather(1, positions.clamp(max=longest - 1)), 0)
    places = begin - 1 + torch.arange(width + 1)
    places = torch.where(places < length - 1, places, longest - 1)
    device = texts.input_ids.device
    beginnings, is_real = padded_left([torch.tensor(one) for one in numbers], device)
    forward = CachedForward(model, is_real)
    first = forward(beginnings)
    index = torch.tensor(owners, device=device)
    forward.select(index)
    logits = torch.cat([first[index], forward(endings.to(device), all_logits=True)], 1)
    return logits, places.to(device)


class SharedOutputs(Outputs):
    """The outputs of a model for divided texts. They are those of `Outputs`, and 0 outside the endings."""

    def __init__(self, raw: Tensor, texts: Texts, temperature: float, places: Tensor) -> None:
        """`raw` and `places` are the results of `shared_logits`."""
        super().__init__(raw, texts, temperature)
        self._places = places[: texts.samples]

    def rows(self, kept: slice) -> SharedOutputs:
        return SharedOutputs(self._raw[kept], self.texts.rows(kept), self._temperature, self._places[kept])

    def of_raw(self, of_targets: Tensor, fill: int) -> Tensor:
        return super().of_raw(of_targets, fill).gather(1, self._index(of_targets))

    def of_targets(self, of_raw: Tensor) -> Tensor:
        samples, longest = self.texts.samples, self.texts.input_ids.shape[1]
        found = of_raw.new_zeros((samples, longest, *of_raw.shape[2:]))
        return found.scatter(1, self._index(of_raw), of_raw)[:, :-1]

    def _index(self, like: Tensor) -> Tensor:
        """Returns the place of each logit in its text, with the further dims of `like`."""
        further = like.shape[2:]
        return self._places.reshape(*self._places.shape, *[1] * len(further)).expand(-1, -1, *further)


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


class OutputsWithoutLogits(Outputs):
    """The outputs of a model that computes log-probabilities without keeping its logits."""

    @cached_property
    def token_logprobs(self) -> Tensor:
        return self._raw

    @property
    def entropy(self) -> Tensor:
        raise ModelError(NEEDS_LOGITS.format("entropy"))

    def _log_softmax(self) -> Tensor:
        raise ModelError(NEEDS_LOGITS.format("top_logprobs"))
