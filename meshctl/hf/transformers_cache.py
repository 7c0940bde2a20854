"""Forward passes with a cache of keys and values: a part of transformers that meshctl uses."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from meshctl.hf.errors import ModelError

PLAIN = (DynamicLayer, DynamicSlidingWindowLayer)
"""The classes of the caches of layers that keep keys and values only."""


def check_cache(model: Any) -> None:
    """Raises `ModelError` if texts cannot be continued from a cache of keys and values alone."""
    layers = DynamicCache(config=model.config).layers
    is_unknown = model._is_stateful and not getattr(model.config.get_text_config(), "layer_types", None)
    if is_unknown or not all(type(layer) in PLAIN for layer in layers):
        raise ModelError(
            f"`{type(model).__name__}` has a state beside its cache of keys and values: it supports neither "
            "`hf.Sampler` nor `share_prompts`"
        )


class CachedForward:
    """Forward passes of a causal model that continue earlier ones, with a cache of keys and values."""

    def __init__(self, model: Any, is_real: torch.Tensor | None) -> None:
        """`is_real` is int64 `[rows, length]` for the first pass: 0 in the padding at the beginning of a row,
        and 1 elsewhere. It is None without padding."""
        check_cache(model)
        self._model, self._is_real = model, is_real
        self._cache, self._is_first = DynamicCache(config=model.config), True
        self._next = None if is_real is None else is_real.sum(1, keepdim=True)
        """`[rows, 1]`: the position of each row's next token."""
        has_option = "logits_to_keep" in signature(model.forward).parameters
        self._of_last = {"logits_to_keep": 1} if has_option else {}

    def __call__(self, ids: torch.Tensor, *, all_logits: bool = False) -> torch.Tensor:
        """Returns the logits after the last token of each row, `[rows, 1, vocabulary]`, or with `all_logits`
        those after each token, `[rows, length, vocabulary]`. `ids` is int64 `[rows, length]` and continues
        the rows of the earlier passes."""
        options = {} if all_logits else self._of_last
        made = self._model(
            input_ids=ids, past_key_values=self._cache, use_cache=True, **self._padding(ids), **options
        )
        logits = made.logits if all_logits else made.logits[:, -1:]
        assert isinstance(logits, torch.Tensor)
        return logits

    def _padding(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        if self._is_real is None or self._next is None:
            return {}
        if self._is_first:
            self._is_first = False
            positions = (self._is_real.cumsum(1) - 1).clamp(min=0)
            return {"attention_mask": self._is_real, "position_ids": positions}
        self._is_real = torch.cat([self._is_real, torch.ones_like(ids)], 1)
        positions = self._next + torch.arange(ids.shape[1], device=ids.device)
        self._next = self._next + ids.shape[1]
        return {"attention_mask": self._is_real, "position_ids": positions}

    def select(self, rows: torch.Tensor) -> None:
        """Replaces the rows of the cache by these of its rows. `rows` is int64 and may name a row several
        times, or not at all."""
        self._cache.batch_select_indices(rows)
        if self._is_real is not None and self._next is not None:
            self._is_real, self._next = self._is_real[rows], self._next[rows]
