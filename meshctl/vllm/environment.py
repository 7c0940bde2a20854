"""The settings that vLLM reads while it is imported, and the folders of models on this machine."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from meshctl.hub_cache import MODEL_FILES, TOKENIZER_FILES, local_folder
from meshctl.package import SHIPPED_TOKENIZERS


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
