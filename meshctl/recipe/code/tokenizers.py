"""Finds a tokenizer and reads whether it has a chat template, and how many tokens it has. Only local files
are read, also those in the cache of the hub.

chat_template.jinja                                in the folder of a tokenizer
tokenizer_config.json    {"chat_template": ...}    of older tokenizers
tokenizer.json           {"model": {"vocab": {"a": 0, ...}}, "added_tokens": [{"id": 256, ...}, ...]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.hub_cache import TOKENIZER_FILES, cached_folder, has_any, is_hub_name
from meshctl.package import SHIPPED_TOKENIZERS
from meshctl.recipe.compose.folders import contents, is_dir, is_file

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template"
VOCABULARY = "tokenizer.json"
MAX_CONFIG_BYTES = 1 << 24
MAX_VOCABULARY_BYTES = 1 << 26


@dataclass(frozen=True)
class Tokenizer:
    """The result of looking for a tokenizer."""

    wrong: str = ""
    """The reason why there is no usable tokenizer; empty if there is one."""
    is_remote: bool = False
    """True if it has the name of a tokenizer of the hub that is not in the cache."""
    has_template: bool = True
    folder: Path | None = None
    """The folder of its files."""


def tokenizer(name: str, folders: Sequence[str], hub: Path | None) -> Tokenizer:
    """Finds a tokenizer by the name that a source accepts: a shipped one, a folder in one of `folders`, or a
    name of the hub, which is searched in the folder `hub`."""
    if name in SHIPPED_TOKENIZERS:
        return Tokenizer(folder=SHIPPED_TOKENIZERS[name])
    places = [Path(folder, name) for folder in folders]
    found = next((place for place in places if has_any(place, TOKENIZER_FILES)), None)
    if found is None and hub and is_hub_name(name):
        found = cached_folder(hub, name, TOKENIZER_FILES)
    if found is not None:
        return _read(found, name)
    if any(map(is_dir, places)):
        return Tokenizer(f"the folder `{name}` has no tokenizer: none of {', '.join(TOKENIZER_FILES)}")
    if is_hub_name(name):
        why = f"tokenizer `{name}` is neither a local folder nor in the cache of the hub"
        return Tokenizer(why, is_remote=True)
    return Tokenizer(f"tokenizer `{name}` does not exist on this machine")


def _read(folder: Path, name: str) -> Tokenizer:
    if any(is_file(folder / file) for file in TEMPLATE_FILES):
        return Tokenizer(folder=folder)
    if not is_file(folder / CONFIG):
        return Tokenizer(has_template=False, folder=folder)
    try:
        values = json.loads(contents(folder / CONFIG, MAX_CONFIG_BYTES))
    except OSError as error:
        return Tokenizer(f"`{name}/{CONFIG}` cannot be read: {error.strerror or error}")
    except (ValueError, RecursionError) as error:
        return Tokenizer(f"`{name}/{CONFIG}` is not JSON: {error}")
    if not isinstance(values, dict):
        return Tokenizer(f"`{name}/{CONFIG}` is not a mapping")
    return Tokenizer(has_template=bool(values.get(TEMPLATE)), folder=folder)


def token_count(folder: Path) -> int:
    """Returns the highest token id of the tokenizer in a folder, plus 1; 0 if it is unknown, as it is for
    older formats."""
    try:
        values = json.loads(contents(folder / VOCABULARY, MAX_VOCABULARY_BYTES))
        vocabulary = values["model"]["vocab"]
        is_listed = isinstance(vocabulary, list)  # a list contains (token, score) in the order of the ids
        ids = [len(vocabulary) - 1] if is_listed else list(vocabulary.values())
        ids += [token["id"] for token in values.get("added_tokens") or ()]
        return int(max(ids, default=-1)) + 1
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return 0
