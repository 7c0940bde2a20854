"""Reads the names and shapes of tensors in files of safetensors. A file begins with the length of a header (8
bytes, little-endian), which is JSON: {"model.norm.weight": {"dtype": "BF16", "shape": [4096], ...}, ...}.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meshctl.hub_cache import cached_folder, has_any, is_hub_name
from meshctl.recipe.compose.folders import contents, is_file

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""Maximum length of a header, as the format defines it."""
LENGTH_BYTES = 8
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""The ends of names of tensors that old models saved and that are no parameters."""


def shapes_of(name: str, folders: tuple[str, ...], hub: Path | None) -> dict[str, tuple[int, ...]] | None:
    """Returns tensor -> shape for the model in a folder, or with a name of the hub in the local cache; None
    if its files are not there or cannot be read."""
    files = FILE, INDEX
    cached = cached_folder(hub, name, files) if hub and is_hub_name(name) else None
    places = (Path(folder, name) for folder in folders)
    folder = next((place for place in places if has_any(place, files)), cached)
    if folder is None:
        return None
    try:
        if is_file(folder / FILE):
            return _shapes(folder / FILE)
        listed = json.loads(contents(folder / INDEX, MAX_HEADER_BYTES))["weight_map"].values()
        parts = [_shapes(folder / Path(str(file)).name) for file in sorted(set(listed))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return {tensor: shape for part in parts for tensor, shape in part.items()}


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Returns tensor -> shape for one file. Raises `ValueError`, or another error of what the header lacks,
    if it is not of this format."""
    length = int.from_bytes(contents(file, LENGTH_BYTES)[:LENGTH_BYTES], "little")
    if not 0 < length <= MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    text = contents(file, LENGTH_BYTES + length)[LENGTH_BYTES : LENGTH_BYTES + length]
    header: dict[str, Any] = json.loads(text)
    tensors = {name: one["shape"] for name, one in header.items() if name != "__metadata__"}
    return {
        name: tuple(int(size) for size in shape)
        for name, shape in tensors.items()
        if not name.endswith(BUFFERS)
    }
