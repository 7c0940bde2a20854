"""Reads a model's `config.json`: the sizes that a layout must fit, each with its place in the file.

Only local files are read, also those in the cache of the hub; nothing is fetched. The JSON is parsed as YAML,
so that the limits on recipes apply and each number has a line and a column. A size that is missing or not a
number is unknown and not reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Span
from meshctl.hub_cache import MODEL_FILES, cached_folder, is_hub_name
from meshctl.recipe.compose.folders import contents, is_dir, is_file
from meshctl.recipe.compose.yaml_reader import MAX_BYTES, read
from meshctl.recipe.compose.yaml_tree import Node, leaves, plain

POSITIONS = "max_position_embeddings"
"""The size that limits the length of a sequence."""
NAMES = {
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_query_groups", "n_kv_heads", "num_kv_heads"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "num_moe_experts"),
    POSITIONS: ("max_position_embeddings", "n_positions"),
}
"""Size -> its names in config files. Without the sequence length, which is not a property of the model."""
ROPE = ("rope_scaling", "rope_parameters")
"""The keys with the scaling of positions. Some configs include its factor in the number of positions and
others do not, so this number is unknown if there is a factor."""
INNER = ("text_config", "llm_config", "language_config")
"""The keys under which a multimodal model has the config of its language model."""
LATENT = "kv_lora_rank"
"""A key of models with multi-head latent attention, which have no kv heads to divide."""
FILE = "config.json"
SURROGATE, SAME_WIDTH = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"), rb"\\u003f"
"""A surrogate escape, which is valid in JSON but not in YAML, and a replacement of the same width. Only
numbers of the file are used, so the text may change."""


@dataclass(frozen=True)
class Config:
    """The result of reading a config file."""

    name: str
    """The file's path as shown to the user."""
    lines: tuple[str, ...] = ()
    tree: Node | None = None
    """The values; None if the file cannot be read."""
    wrong: str = ""
    """The reason why the file cannot be read; empty if it can."""
    at: Span | None = None
    """The place of the error in the file."""
    missing: bool = False
    """True if the file does not exist."""

    @cached_property
    def sizes(self) -> dict[str, tuple[int, Span]]:
        """Size -> (number, span)."""
        return sizes_in(self.tree) if self.tree else {}


def config(path: str, folders: Sequence[str]) -> Config:
    """Reads the file at a path, or `config.json` in the folder at that path. Relative paths are searched in
    `folders`."""
    for folder in folders:
        place = Path(folder, path)
        file = place / FILE if is_dir(place) else place
        if is_file(file):
            return _read(file, str(Path(path, FILE) if is_dir(place) else path))
    if any(is_dir(Path(folder, path)) for folder in folders):
        return Config(path, wrong=f"the folder `{path}` has no `{FILE}`", missing=True)
    return Config(path, wrong=f"file `{path}` does not exist", missing=True)


def config_of_name(name: str, folders: Sequence[str], hub: Path | None) -> Config | None:
    """Reads the config of a model by the name that a library accepts: the path of a config file or of its
    folder, or a name of the hub, which is searched in the folder `hub`. Returns None for the path of another
    file or folder, whose format is unknown."""
    file = config(name if name.endswith(".json") else f"{name}/{FILE}", folders)
    if not file.missing:
        return file
    places = [Path(folder, name) for folder in folders]
    if any(is_file(place) or is_dir(place) for place in places):
        return None
    wrong = f"`{name}` does not exist on this machine"
    if not name.endswith(".json") and is_hub_name(name):
        if hub and (cached := cached_folder(hub, name, MODEL_FILES)):
            return _read(cached / FILE, f"{name}/{FILE}")
        wrong = f"`{name}` is neither a local folder nor in the cache of the hub"
    return Config(name, wrong=wrong, missing=True)


def _read(file: Path, name: str) -> Config:
    try:
        text = read(SURROGATE.sub(SAME_WIDTH, contents(file, MAX_BYTES)), name)
    except (OSError, ValueError) as error:
        return Config(name, wrong=f"`{name}` cannot be read: {getattr(error, 'strerror', None) or error}")
    if text.tree is None:  # the diagnostic of the reader of recipes, as one about a JSON file
        found = text.found[0]
        what = found.message.removeprefix("this ").removesuffix(", the limit for a recipe")
        if found.code == "MC003":
            what = "is not JSON"
        wrong = what if what.startswith(f"`{name}`") else f"`{name}` {what}"
        return Config(name, text.lines, wrong=wrong, at=found.primary and found.primary.with_word("here"))
    if not text.tree.is_mapping or not text.lines:
        return Config(name, wrong=f"`{name}` is {'not a mapping' if text.lines else 'empty'}")
    return Config(name, text.lines, text.tree)


def sizes_in(tree: Node) -> dict[str, tuple[int, Span]]:
    """Returns size -> (number, span) for the values of a config that are positive integers, of the language
    model for a multimodal model."""
    places, sizes = [*_inner(tree), tree], dict[str, tuple[int, Span]]()
    scalings = [node for place in places for key in ROPE if (node := place.get(key)) is not None]
    has_factor = any(path[-1:] == ("factor",) for node in scalings for path, _ in leaves(node))
    unknown = {"num_kv_heads"} if _is_stated(places[0].get(LATENT)) else set()
    for size, names in NAMES.items():
        if size in unknown or (size == POSITIONS and has_factor):
            continue
        found = [node for place in places for name in names if _is_stated(node := place.get(name))]
        node = found[0] if found else None
        if node is not None and type(node.value) is int and node.value > 0 and not node.from_environment:
            sizes[size] = node.value, node.span
    return sizes


def model_types_in(tree: Node) -> list[tuple[str, Span]]:
    """Returns (`model_type`, span) of a config, and for a multimodal model also of its language model. Empty
    if one of them is unknown."""
    nodes = [place.get("model_type") for place in (tree, *_inner(tree))]
    found = [(node.value, node.span) for node in nodes if node and isinstance(node.value, str)]
    return found if len(found) == len(nodes) else []


def layer_types(tree: Node) -> object:
    """Returns the list of the types of layers that a config states; None if it states none."""
    stated = [node for place in (*_inner(tree), tree) if (node := place.get("layer_types")) is not None]
    return plain(stated[0]) if stated else None


def _inner(tree: Node) -> list[Node]:
    """Returns the config of a multimodal model's language model, if there is one."""
    return [node for key in INNER if (node := tree.get(key)) is not None and node.is_mapping][:1]


def _is_stated(node: Node | None) -> bool:
    return node is not None and node.value is not None
