"""Texts that a model of transformers continues from a cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from meshctl.hf.options import ModelError

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


def padded_left(
    prompts: Sequence[torch.Tensor], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the tokens, int64 `[prompts, longest]`, and a mask of them with 0 for padding; None if there is
    no padding."""
    longest = max(map(len, prompts))
    ids = torch.zeros((len(prompts), longest), dtype=torch.int64)
    is_real = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        is_real[row, longest - len(prompt) :] = 1
    has_padding = not bool(is_real.all())
    return ids.to(device), is_real.to(device) if has_padding else None


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
        known = signature(model.forward).parameters
        self._of_last = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        self._name = "cache" if "cache" in known else "past_key_values"  # before transformers 5.24

    def __call__(self, ids: torch.Tensor, *, all_logits: bool = False) -> torch.Tensor:
        """Returns the logits after the last token of each row, `[rows, 1, vocabulary]`, or with `all_logits`
        those after each token, `[rows, length, vocabulary]`. `ids` is int64 `[rows, length]` and continues
        the rows of the earlier passes."""
        options = {} if all_logits else self._of_last
        inputs = {"input_ids": ids, self._name: self._cache, "use_cache": True}
        made = self._model(**inputs, **self._padding(ids), **options)
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

    @property
    def _layers(self) -> list[Any]:
        """The layers of the cache; those that share the keys and values of others are left out."""
        return [layer for layer in self._cache.layers if layer.is_initialized]

    def join(self, other: CachedForward) -> None:
        """Adds the rows of `other` behind these rows. The shorter ones are padded at their beginning."""
        widths = [one._cache.get_seq_length() for one in (self, other)]
        masks = [one._is_real for one in (self, other)]
        if widths[0] != widths[1] or any(mask is not None for mask in masks):
            rows = [one._layers[0].keys.shape[0] for one in (self, other)]
            device = self._layers[0].keys.device
            given = [
                torch.ones((count, width), dtype=torch.int64, device=device) if mask is None else mask
                for mask, count, width in zip(masks, rows, widths, strict=True)
            ]
            self._is_real = torch.cat([_widened(mask, -1, max(widths)) for mask in given])
            self._next = self._is_real.sum(1, keepdim=True)
        self._is_first = False
        for mine, new in zip(self._layers, other._layers, strict=True):
            width = max(one.keys.shape[-2] for one in (mine, new))
            mine.keys = torch.cat([_widened(one.keys, -2, width) for one in (mine, new)])
            mine.values = torch.cat([_widened(one.values, -2, width) for one in (mine, new)])
            if mine.is_sliding:
                mine.cumulative_length = max(widths)

    def trim(self) -> None:
        """Removes the columns that are padding in all rows."""
        if self._is_real is None:
            return
        excess = int(self._is_real.any(0).int().argmax())
        self._is_real = self._is_real[:, excess:]
        for layer in self._layers if excess else ():
            kept = min(layer.keys.shape[-2], self._is_real.shape[1])
            layer.keys, layer.values = layer.keys[..., -kept:, :], layer.values[..., -kept:, :]
            if layer.is_sliding:
                layer.cumulative_length -= excess
        if bool(self._is_real.all()):
            self._is_real = self._next = None

    def select(self, rows: torch.Tensor) -> None:
        """Replaces the rows of the cache by these of its rows. `rows` is int64 and may name a row several
        times, or not at all."""
        self._cache.batch_select_indices(rows)
        if self._is_real is not None and self._next is not None:
            self._is_real, self._next = self._is_real[rows], self._next[rows]


def _widened(tensor: torch.Tensor, dim: int, width: int) -> torch.Tensor:
    """Returns a tensor with zeros at the beginning of a dim, which is -1 or -2, up to `width`."""
    padding = (0, 0) * (-dim - 1)
    return nn.functional.pad(tensor, (*padding, width - tensor.shape[dim], 0))
