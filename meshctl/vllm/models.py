"""Finds the folder of a model or tokenizer, and writes that of a model of config values."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshctl.hub_cache import MODEL_FILES, TOKENIZER_FILES, local_folder
from meshctl.package import SHIPPED_TOKENIZERS


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
