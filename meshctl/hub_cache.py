"""Finds models, tokenizers and datasets on this machine: in folders, and in the local caches of the Hugging
Face hub. It imports no library and downloads nothing.

HF_HUB_CACHE/models--ORG--NAME/refs/main                     the commit of the latest download
HF_HUB_CACHE/models--ORG--NAME/snapshots/COMMIT/config.json
HF_DATASETS_CACHE/ORG___NAME/CONFIG/VERSION/COMMIT/dataset_info.json
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

HUB_NAME = re.compile(r"(?!.*(--|\.\.))(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
"""`ORG/NAME`, or `NAME` for the oldest models."""
MODEL_FILES = ("config.json",)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""A folder with one of these files contains a model, or a tokenizer."""
DATASET_FILES = ("dataset_dict.json", "state.json")
"""Each folder of `datasets.save_to_disk` has one of these files."""
DATASET_INFO = "dataset_info.json"
"""The file of a dataset in the cache."""
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""The file of a model's weights. Weights in several files have an index, `FILE.index.json`."""
TRUE = ("1", "on", "yes", "true")
MAX_REF_BYTES = 100
WORD_STARTS = (re.compile(r"([A-Z]+)([A-Z][a-z])"), re.compile(r"([a-z\d])([A-Z])"))
"""The places in the name of a dataset where its folder in the cache has an underscore."""


def hub_cache(environ: Mapping[str, str]) -> Path | None:
    """Returns the folder of the cache, which may not exist; None if the environment has no home folder."""
    return _cache(environ, "hub", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")


def datasets_cache(environ: Mapping[str, str]) -> Path | None:
    """Returns the folder in which the library `datasets` stores datasets, which may not exist; None if the
    environment has no home folder."""
    return _cache(environ, "datasets", "HF_DATASETS_CACHE")


def _cache(environ: Mapping[str, str], folder: str, *variables: str) -> Path | None:
    for variable in variables:
        if environ.get(variable):
            return Path(os.path.expanduser(environ[variable]))
    if environ.get("HF_HOME"):
        return Path(os.path.expanduser(environ["HF_HOME"]), folder)
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"], "huggingface", folder)
    return Path(environ["HOME"], ".cache", "huggingface", folder) if environ.get("HOME") else None


def offline_variable(environ: Mapping[str, str]) -> str:
    """Returns the variable that forbids downloads from the hub; empty if they are allowed."""
    found = next((name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if environ.get(name)), "")
    return found if environ.get(found, "").lower() in TRUE else ""


def dataset_offline_variable(environ: Mapping[str, str]) -> str:
    """Returns the variable that forbids `datasets` to download; empty if downloads are allowed."""
    own = "HF_DATASETS_OFFLINE"
    return own if environ.get(own, "").lower() in TRUE else offline_variable(environ)


def is_hub_name(name: str) -> bool:
    """Returns whether a text has the form of a name of the hub. The hub may not have such a model."""
    return HUB_NAME.fullmatch(name) is not None


def cached_folder(hub: Path, name: str, files: Iterable[str]) -> Path | None:
    """Returns the folder of a model's snapshot in the cache that has one of these files; None if there is
    none. The snapshot of the latest download comes first."""
    folder = hub / f"models--{name.replace('/', '--')}"
    names = tuple(files)
    return next((snapshot for snapshot in _snapshots(folder) if has_any(snapshot, names)), None)


def local_folder(
    name: str, folders: Iterable[str], environ: Mapping[str, str], files: Sequence[str]
) -> Path | None:
    """Returns the folder of a model or tokenizer that has one of these files: the folder `name` in one of
    `folders`, or else the snapshot of a hub name in the cache. Returns None if it is not on this machine."""
    places = (Path(folder, name) for folder in folders)
    found = next((place for place in places if has_any(place, files)), None)
    hub = hub_cache(environ) if found is None and is_hub_name(name) else None
    return cached_folder(hub, name, files) if hub else found


def has_dataset(name: str, environ: Mapping[str, str]) -> bool:
    """Returns whether the library `datasets` has stored a dataset of the hub on this machine."""
    cache = datasets_cache(environ)
    *owner, last = name.split("/")
    for pattern in WORD_STARTS:
        last = pattern.sub(r"\1_\2", last)
    folder = "___".join((*owner, last.lower()))
    found = cache.glob(f"{folder}/*/*/*/{DATASET_INFO}") if cache else ()
    return any(not file.parent.name.endswith(".incomplete") for file in found)


def has_any(folder: Path, files: Iterable[str]) -> bool:
    return any(os.path.isfile(folder / file) for file in files)


def missing_weights(folder: Path) -> list[str]:
    """Returns the names of the weight files that the folder of a model lacks; empty if it has all of them."""
    for file in WEIGHTS:
        index = folder / f"{file}.index.json"
        if os.path.isfile(index):
            return [shard for shard in _shards(index) if not os.path.isfile(folder / shard)]
    return [] if has_any(folder, WEIGHTS) else [WEIGHTS[0]]


def _shards(index: Path) -> list[str]:
    """Returns the names of the files that an index lists; empty for an index that cannot be read, which the
    library reports when it loads the model."""
    try:
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted({str(shard) for shard in shards})
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def _snapshots(folder: Path) -> Iterator[Path]:
    """Yields the snapshots of a model, that of the latest download first."""
    with suppress(OSError, ValueError):
        with open(folder / "refs" / "main", "rb") as file:
            latest = file.read(MAX_REF_BYTES).decode().strip()
        if re.fullmatch(r"\w+", latest, re.ASCII):
            yield folder / "snapshots" / latest
    with suppress(OSError, ValueError):
        yield from (folder / "snapshots" / commit for commit in sorted(os.listdir(folder / "snapshots")))
