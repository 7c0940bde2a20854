"""The arguments of an engine of vLLM and of its requests, as plain data, and their error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.runtime.component import ComponentError

DTYPES = ("float32", "bfloat16", "float16")


class SamplerError(ComponentError):
    """Raised if the engine, the model, the layout or a batch does not support what the arguments require."""


@dataclass(frozen=True)
class EngineOptions:
    """The arguments with which an engine is built."""

    model: str | Mapping[str, Any]
    """The folder of a model, a name of the hub, or config values. With config values, the weights are
    unspecified until the first update."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Values that replace those of the model's config."""
    dtype: str = "float32"
    tokenizer: str = ""
    """The folder or the name of the tokenizer with which stop texts are found; empty if there are none."""
    kv_cache_bytes: int | None = None
    """The size of the cache of keys and values; None for a share of the device's memory."""
    can_sleep: bool = False
    """True if the engine can release the memory of its device between calls."""
    further: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of `vllm.LLM`."""
    device_type: str = "cpu"
    device_index: int = 0
    """The number of this rank's device among the devices that the process can use."""
    rank: int = 0
    """The rank in torch's world."""
    tp_size: int = 1

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise SamplerError(f"`dtype` is {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, not {self.dtype}")


@dataclass(frozen=True)
class Sampling:
    """The distribution from which answers are drawn."""

    max_new_tokens: int
    temperature: float = 1.0
    """The divisor of the logits. With 0, the most likely token is taken."""
    top_p: float = 1.0
    """Only the most likely tokens, whose probabilities add up to at least this number, can be drawn."""
    top_k: int = 0
    """The number of most likely tokens that can be drawn; 0 for all."""
    stop_tokens: tuple[int, ...] = ()
    stop_texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One prompt, and the seed of its answer."""

    prompt: Sequence[int]
    seed: int
