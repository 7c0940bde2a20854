"""Finds files in the local cache of the Hugging Face hub. It imports no library and fetches nothing.

HF_HUB_CACHE/models--ORG--NAME/refs/main                     the commit of the latest download
HF_HUB_CACHE/models--ORG--NAME/snapshots/COMMIT/config.json
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from meshctl.recipe.compose.folders import contents, is_file, subfolders

HUB_NAME = re.compile(r"(?!.*(--|\.\.))(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
"""`ORG/NAME`, or `NAME` for the oldest models."""
MAX_REF_BYTES = 100


def hub_cache(environ: Mapping[str, str]) -> Path | None:
    """Returns the folder of the cache, which may not exist; None if the environment has no home folder."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(variable):
            return Path(os.path.expanduser(environ[variable]))
    if environ.get("HF_HOME"):
        return Path(os.path.expanduser(environ["HF_HOME"]), "hub")
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"], "huggingface", "hub")
    return Path(environ["HOME"], ".cache", "huggingface", "hub") if environ.get("HOME") else None


def is_hub_name(name: str) -> bool:
    return HUB_NAME.fullmatch(name) is not None


def cached_file(hub: Path, name: str, file: str) -> Path | None:
    """Returns the path of a model's file in the cache; None if it is not there. Without a latest download,
    any other one is used."""
    folder = hub / f"models--{name.replace('/', '--')}"
    snapshots = folder / "snapshots"
    commits = [_latest(folder), *subfolders(snapshots)]
    found = (snapshots / commit / file for commit in commits if commit)
    return next((path for path in found if is_file(path)), None)


def _latest(folder: Path) -> str:
    """Returns the commit of the latest download; empty if it is unknown."""
    try:
        text = contents(folder / "refs" / "main", MAX_REF_BYTES).decode().strip()
    except (OSError, ValueError):
        return ""
    return text if re.fullmatch(r"\w+", text, re.ASCII) else ""
