"""Divides the tokens of texts over the ranks of cp and ulysses, which compute on the same samples.

    cp 2        the tokens of a row are cut into four pieces. One rank has the pieces 0 and 3, the other 1
                and 2: under a causal mask, both compute the same number of products.
    ulysses 2   each of two ranks has half of these tokens.

Outside attention, a model computes each token by itself. In attention, ulysses exchanges tokens for heads:
each rank has all tokens of its cp rank for a part of the heads (an all-to-all before, and one after it). Then
cp gathers the keys and values of all its ranks. The mask is the one that transformers makes for the positions
of these tokens, so it includes sliding windows, chunks, and the borders of packed texts.

The results of all tokens are gathered, and every rank computes the loss of whole texts. The gradient of its
own tokens is then complete, and the sum over all ranks is that of the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn

from meshctl.hf import transformers_api
from meshctl.hf.options import ModelError
from meshctl.hf.outputs import Outputs
from meshctl.hf.texts import Texts
from meshctl.labels import IGNORED
from meshctl.runtime.collectives.collective import Collective

UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments of attention functions of transformers that change its scores."""
_numbers = count()


@dataclass(frozen=True, eq=False)
class Division:
    """The division of the tokens of some texts."""

    whole: Texts
    length: int
    """The number of tokens in each row, with the padding that makes all parts equal."""
    order: Tensor
    """int64 `[cp, ulysses, tokens]`, on the CPU: the tokens of each rank."""
    cp: Collective
    ulysses: Collective

    @staticmethod
    def of(whole: Texts, cp: Collective, ulysses: Collective, multiple: int = 1) -> Division:
        """Returns the division of `whole`. The number of tokens of each rank is divisible by `multiple`."""
        pieces = 2 * cp.size if cp.size > 1 else 1
        parts = pieces * ulysses.size * multiple
        length = -(-whole.input_ids.shape[1] // parts) * parts
        tokens = torch.arange(length).view(pieces, -1)
        ranks = [torch.cat([tokens[one], tokens[pieces - 1 - one]]) for one in range(cp.size)]
        order = torch.stack(ranks) if cp.size > 1 else tokens
        return Division(whole, length, order.view(cp.size, ulysses.size, -1), cp, ulysses)

    @cached_property
    def part(self) -> Texts:
        """The tokens of this rank as the inputs of the model. Its labels predict nothing."""
        ids = self.own(self.whole.input_ids, 0)
        return Texts(
            ids, torch.full_like(ids, IGNORED), self.whole.lengths, self._at(self._own), is_part=True
        )

    def own(self, values: Tensor, fill: int) -> Tensor:
        """Returns the values of this rank's tokens, `[rows, tokens, ...]`. `values` has at most one for each
        token of the rows, and `fill` is that of the others."""
        missing = self.length - values.shape[1]
        padded = nn.functional.pad(values, (*[0] * 2 * (values.ndim - 2), 0, missing), value=fill)
        return padded[:, self._own.to(values.device)]

    def whole_of(self, own: Tensor) -> Tensor:
        """Returns the values of all tokens, `[rows, longest, ...]`. `own` are those of this rank. All ranks
        of cp and ulysses call this together."""
        gathered = _gathered(self.cp, _gathered(self.ulysses, own))
        place = self.order.flatten().argsort()[: self.whole.input_ids.shape[1]]
        return gathered[:, place.to(own.device)]

    def allowed(self, mask_function: Callable[..., Tensor], device: torch.device) -> Tensor:
        """Returns bool `[rows, 1, queries, keys]`: the keys that each query attends to. The queries are the
        tokens of this cp rank, and the keys are those of all, in the order of `order`."""
        places = self.order[self.cp.rank].flatten(), self.order.flatten()
        query, key = (self._at(place)[:, None].to(device) for place in places)
        rows = torch.arange(len(query), device=device)[:, None, None, None]
        allowed = mask_function(rows, torch.zeros_like(rows), query[..., None], key[:, :, None])
        if self.whole.position_ids is None:
            return allowed
        texts = (self._positions.diff(dim=1, prepend=self._positions[:, :1] - 1) != 1).cumsum(1)
        query, key = (texts[:, place.to(texts.device)][:, None] for place in places)
        return allowed & (query[..., None] == key[:, :, None]).to(device)

    @cached_property
    def _own(self) -> Tensor:
        return self.order[self.cp.rank, self.ulysses.rank]

    @cached_property
    def _positions(self) -> Tensor:
        """int64 `[rows, length]`. They continue in the padding."""
        given, ids = self.whole.position_ids, self.whole.input_ids
        if given is None:
            return torch.arange(self.length, device=ids.device).expand(len(ids), -1)
        further = torch.arange(1, self.length - given.shape[1] + 1, device=given.device)
        return torch.cat([given, given[:, -1:] + further], 1)

    def _at(self, places: Tensor) -> Tensor:
        return self._positions[:, places.to(self._positions.device)]


class DividedOutputs(Outputs):
    """The outputs of a model whose raw output is that of this rank's tokens."""

    def __init__(self, raw: Tensor, texts: Texts, temperature: float, head: str, division: Division) -> None:
        super().__init__(raw, texts, temperature, head)
        self._division = division

    def rows(self, kept: slice) -> DividedOutputs:
        texts = self.texts.rows(kept)
        return DividedOutputs(self._raw[kept], texts, self._temperature, self._head, self._division)

    def of_raw(self, of_targets: Tensor, fill: int) -> Tensor:
        return self._division.own(of_targets, fill)

    def of_targets(self, of_raw: Tensor) -> Tensor:
        return self._division.whole_of(of_raw)[:, :-1]

    @cached_property
    def _positions(self) -> Tensor:
        return self._division.whole_of(self._raw)


class ContextParallel:
    """Attention of a model over the ranks of cp and ulysses."""

    def __init__(self, cp: Collective, ulysses: Collective, multiple: int = 1) -> None:
        """The number of tokens of each rank is divisible by `multiple`."""
        self._cp, self._ulysses, self._multiple = cp, ulysses, multiple
        self._division: Division | None = None
        self._calls = 0
        self.name = f"meshctl_sequence_{next(_numbers)}"
        """The name of the implementation of attention in transformers."""
        transformers_api.register_attention(self.name, self._attention, self._mask)

    def divide(self, texts: Texts) -> Division:
        """Returns the division of texts for the next forward pass."""
        self._division = Division.of(texts, self._cp, self._ulysses, self._multiple)
        self._calls = 0
        return self._division

    def check(self, model: Any) -> None:
        """Raises `ModelError` after a forward pass of a model in which a layer does not call this attention.
        Such a layer would have mixed the tokens of this rank only."""
        layers = model.config.get_text_config().num_hidden_layers
        if self._calls != layers or not transformers_api.mixes_tokens_in_attention(model):
            raise ModelError(
                f"`{type(model).__name__}` cannot be divided over cp or ulysses, because it does not pass "
                "information between tokens in attention functions of transformers alone"
            )

    def _mask(
        self, *args: Any, mask_function: Callable[..., Tensor], device: torch.device, **kwargs: Any
    ) -> Tensor:
        assert self._division
        return self._division.allowed(mask_function, device)

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Returns `[rows, tokens, heads, dims]` for this rank's tokens. `query`, `key` and `value` are
        `[rows, heads, tokens, dims]`, and `attention_mask` is `Division.allowed`."""
        if given := [name for name in UNSUPPORTED if kwargs.get(name) is not None]:
            raise ModelError(
                f"`{type(module).__name__}` cannot be divided over cp or ulysses: it uses `{given[0]}`"
            )
        self._calls += 1
        size = self._ulysses.size
        for_ranks = size // gcd(key.shape[1], size)  # so many copies of a head that the ranks can divide them
        key, value = (one.repeat_interleave(for_ranks, 1) for one in (key, value))
        query, key, value = (self._exchanged(one, split=1, joined=2) for one in (query, key, value))
        if self._cp.size > 1:
            by_token = torch.cat([key, value], -1).movedim(2, 0).contiguous()
            gathered: Tensor = self._cp.differentiable.all_gather(by_token).movedim(0, 2)
            key, value = torch.split(gathered, [key.shape[-1], value.shape[-1]], -1)
        times = query.shape[1] // key.shape[1]
        key, value = (one.repeat_interleave(times, 1) for one in (key, value))
        found = nn.functional.scaled_dot_product_attention(
            query, key, value, attention_mask, dropout, scale=scaling
        )
        return self._exchanged(found, split=2, joined=1).transpose(1, 2).contiguous(), None

    def _exchanged(self, tensor: Tensor, split: int, joined: int) -> Tensor:
        """Exchanges a part of one dim on each rank of ulysses for a part of another: tokens, heads."""
        if self._ulysses.size == 1:
            return tensor
        parts = [part.contiguous() for part in tensor.chunk(self._ulysses.size, split)]
        return torch.cat(self._ulysses.differentiable.all_to_all(parts), joined)


def _gathered(group: Collective, own: Tensor) -> Tensor:
    """Returns the tensors of all ranks, concatenated along dim 1. The gradient of this rank's own tensor is
    its part of the gradient of the result, because all ranks compute the same with it."""
    if group.size == 1:
        return own
    parts = group.all_gather(own.detach().contiguous())
    parts[group.rank] = own
    return torch.cat(parts, 1)
