"""The files beside the weights of an exported model: tokenizer, chat template, generation config.

They are copies of the files of the folder that the model was read from, or of `tokenizer`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from meshctl.data.tokenizer import Tokenizer
from meshctl.hf.options import ModelError
from meshctl.hub_cache import MODEL_FILES, TOKENIZER_FILES, has_any, local_folder
from meshctl.package import SHIPPED_TOKENIZERS

COPIED = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "LICENSE*")
GENERATION = "generation_config.json"
CONFIG = "config.json"
WRITTEN = (CONFIG, "*.index.json", "adapter_config.json", GENERATION)
"""The files that an export writes itself, and those of an adapter, which is merged."""
TEMPLATES = "additional_chat_templates"


def copy_companions(
    model: str | Mapping[str, Any],
    tokenizer: str,
    changes: Mapping[str, Any],
    folder: Path,
    extended: Tokenizer | None = None,
) -> None:
    """Copies the files beside the weights of `model`, and the tokenizer, to `folder`.

    A model of config values has no such files. With `tokenizer`, which is a shipped one, a folder, or a name
    of the hub, its files replace those of the model. `changes` are the values of the config that the user has
    changed, and replace those of the generation config. `extended` is the tokenizer with added tokens. Raises
    `ModelError` if a file cannot be copied.
    """
    source = local_folder(model, sys.path, os.environ, MODEL_FILES) if isinstance(model, str) else None
    own = SHIPPED_TOKENIZERS.get(tokenizer) or local_folder(tokenizer, sys.path, os.environ, TOKENIZER_FILES)
    if tokenizer and own is None:
        raise ModelError(f"the export has no tokenizer: `{tokenizer}` is not on this machine")
    try:
        if own := own if tokenizer else source:
            _copy(own, folder)
        if extended:
            extended.save(folder)
        if source is not None and (source / GENERATION).is_file():
            values = json.loads((source / GENERATION).read_text(encoding="utf-8"))
            values |= {key: value for key, value in changes.items() if key in values}
            (folder / GENERATION).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
        if has_any(folder, TOKENIZER_FILES):
            given = {**changes, **model} if isinstance(model, Mapping) else changes
            _write_special_tokens(folder, source is None, given.keys())
    except (OSError, ValueError) as error:
        raise ModelError(f"the export to `{folder}` failed: {error}") from error


def _write_special_tokens(folder: Path, is_new: bool, given: Collection[str]) -> None:
    """Writes the padding token of the tokenizer to the config of a model with a head for whole texts, which
    finds the last token of each text of a batch by it. A model of config values, `is_new`, also gets its end
    token. Keys that the user has given stay."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    is_of_texts = any(one.endswith("ForSequenceClassification") for one in config.get("architectures") or ())
    if not (is_new or is_of_texts):
        return
    tokenizer = Tokenizer(str(folder))
    found = {"pad_token_id": tokenizer.padding} | ({"eos_token_id": tokenizer.end_token} if is_new else {})
    found = {key: id for key, id in found.items() if id is not None and key not in given}
    for file in (folder / CONFIG, folder / GENERATION):
        if found and file.is_file():
            values = {**json.loads(file.read_text(encoding="utf-8")), **found}
            file.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _copy(source: Path, folder: Path) -> None:
    for path in sorted(source.iterdir()):
        is_copied, is_written = (any(fnmatch(path.name, one) for one in some) for some in (COPIED, WRITTEN))
        if is_copied and not is_written and path.is_file():
            shutil.copyfile(path, folder / path.name)
    if (source / TEMPLATES).is_dir():
        shutil.copytree(source / TEMPLATES, folder / TEMPLATES, dirs_exist_ok=True)
