"""The arguments of an engine of vLLM and of its requests, as plain data, and their error; the settings of
vLLM's import, and the folders of models on this machine.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from meshctl.dataclass import dataclass
from meshctl.hub_cache import MODEL_FILES, TOKENIZER_FILES, local_folder
from meshctl.package import SHIPPED_TOKENIZERS
from meshctl.runtime.component import ComponentError
from meshctl.sampling.continuous import Answer

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
    lora_rank: int = 0
    """The rank of the adapter that the engine loads; 0 without an adapter."""
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


class Sampled(NamedTuple):
    """An answer of the engine."""

    answer: Answer
    versions: Sequence[str]
    """The engine's name of the weights of each token."""


def prepare() -> None:
    """Sets the environment of vLLM. The engine runs in this process: a child process would import all
    libraries again, and would not end with the worker. Variables that the user has set are kept."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if not torch.cuda.is_available():
        # vLLM compiles one small function even if the model runs eagerly: half a minute on a CPU.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")


@contextmanager
def model_folder(model: str | Mapping[str, Any]) -> Iterator[str]:
    """Returns a context with the folder of a model on this machine, or its name for a model of the hub. For
    config values it is a temporary folder with the config alone."""
    if isinstance(model, str):
        yield str(local_folder(model, sys.path, os.environ, MODEL_FILES) or model)
        return
    with TemporaryDirectory(prefix="meshctl-model-") as folder:
        Path(folder, "config.json").write_text(json.dumps(dict(model)), encoding="utf-8")
        yield folder


def tokenizer_folder(name: str) -> str:
    """Returns the folder of a tokenizer on this machine, or `name` for a tokenizer of the hub."""
    shipped = SHIPPED_TOKENIZERS.get(name)
    return str(shipped or local_folder(name, sys.path, os.environ, TOKENIZER_FILES) or name)
