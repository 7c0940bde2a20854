"""The settings that vLLM reads while it is imported."""

from __future__ import annotations

import logging
import os
import warnings

import torch


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
