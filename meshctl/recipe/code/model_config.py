"""A model's `config.json`, read as data: the few numbers of it that a layout must fit, each with its place in
the file.

Files are local: a name of a hub is not one, nothing is fetched. JSON is read as the YAML that it is, so it
has the limits of a recipe and every number knows its line and column. What is not there, or no number, is not
known, and nobody says anything about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose.folders import contents, is_dir, is_file
from meshctl.recipe.compose.yaml_reader import MAX_BYTES, read
from meshctl.recipe.compose.yaml_tree import Node

NAMES = {
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_query_groups", "n_kv_heads", "num_kv_heads"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "num_moe_experts"),
}
"""What a layout must fit -> what it is called in config files. How long sequences are is not a model's to
say."""
INNER = ("text_config", "llm_config", "language_config")
"""Where a model of several kinds of input has those of its language model."""
LATENT = "kv_lora_rank"
"""Whose keys and values are latent has no heads of them to share out."""
FILE = "config.json"
SURROGATE, SAME_WIDTH = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"), rb"\\u003f"
"""Half of a letter as JSON writes those beyond the first 65,536, which YAML does not read; no text of the
file is of interest."""


@dataclass(frozen=True)
class Config:
    """What was found in a file."""

    name: str
    """As the user would name it."""
    lines: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[int, Span]] = field(default_factory=dict)
    wrong: str = ""
    """Why nothing can be read from it."""
    at: Span | None = None
    """Where in the file that is seen."""
    missing: bool = False
    """Whether no such file exists."""


def config(path: str, folders: Sequence[str]) -> Config:
    """Of the file, or of the folder that holds it, looked for in `folders` where the path is relative."""
    for folder in folders:
        place = Path(folder, path)
        file = place / FILE if is_dir(place) else place
        if is_file(file):
            return _read(file, str(Path(path, FILE) if is_dir(place) else path))
    if any(is_dir(Path(folder, path)) for folder in folders):
        return Config(path, wrong=f"the folder `{path}` has no `{FILE}`", missing=True)
    return Config(path, wrong=f"there is no file `{path}`", missing=True)


def _read(file: Path, name: str) -> Config:
    try:
        text = read(SURROGATE.sub(SAME_WIDTH, contents(file, MAX_BYTES)), name)
    except (OSError, ValueError) as error:
        return Config(name, wrong=f"`{name}` cannot be read: {getattr(error, 'strerror', None) or error}")
    if text.tree is None:
        found = text.found[0]
        return Config(
            name,
            text.lines,
            wrong=_unread(name, found),
            at=found.primary.with_word("here") if found.primary else None,
        )
    if not text.tree.is_mapping or not text.lines:
        return Config(name, wrong=f"`{name}` is {'no mapping of keys' if text.lines else 'empty'}")
    return Config(name, text.lines, dict(_sizes(text.tree)))


def _unread(name: str, found: Diagnostic) -> str:
    """What the reader of recipes says, of a file that is none."""
    what = (
        found.message.removeprefix("this ")
        .removesuffix(", a recipe is not")
        .removesuffix(", a recipe needs less")
    )
    if found.code == "MC003":
        what = (
            "more follows after its end"
            if "document" in what
            else what.removeprefix("is not YAML: ").replace("in YAML", "in it")
        )
        return f"`{name}` is no JSON: {what}"
    return what if what.startswith(f"`{name}`") else f"`{name}` {what}"


def _sizes(tree: Node) -> Iterator[tuple[str, tuple[int, Span]]]:
    inner = next((node for key in INNER if (node := tree.get(key)) is not None and node.is_mapping), tree)
    for size, names in NAMES.items():
        said = (where.get(name) for where in (inner, tree) for name in names)
        node = next((node for node in said if node is not None and node.value is not None), None)
        if (
            node is not None
            and type(node.value) is int
            and node.value > 0
            and not (size == "num_kv_heads" and _latent(inner))
        ):
            yield size, (node.value, node.span)


def _latent(tree: Node) -> bool:
    rank = tree.get(LATENT)
    return rank is not None and rank.value is not None
