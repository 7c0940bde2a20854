"""Reads as text how the tokens of an architecture of transformers meet.

class LlamaPreTrainedModel(PreTrainedModel):      transformers/models/llama/modeling_llama.py
    _supports_attention_backend = True            its attention is a function of a table, and can be replaced
    _is_stateful = True                           in other architectures: a state passes from token to token
create_recurrent_attention_mask(...)              the same, in some of their layers
create_causal_mask(..., position_ids=...)         its mask has the borders of packed texts
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from meshctl.recipe.code.modules import Module, Sources, Unread, dotted_name
from meshctl.recipe.code.tp_plans import LIBRARY, MODELS, class_value, constant, folders

REPLACEABLE = "_supports_attention_backend"
STATEFUL = "_is_stateful"
RECURRENT_MASK = "create_recurrent_attention_mask"
TWO_SIDED = "create_bidirectional"
"""The beginning of the names of functions whose masks are for images and encoders."""
MASK_ARGUMENTS = {"config", "attention_mask"}
"""Arguments by which a call is known to make a mask."""
POSITIONS = "position_ids"
ATTENTION_LAYERS = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
"""The `layer_types` of a config that are layers without a state."""


def is_divisible(sources: Sources, model_type: str, layers: object = None) -> bool | Unread:
    """Returns whether tokens of an architecture meet only in attention that can be replaced, or why that is
    unknown. `layers` are the `layer_types` of the config, if it states them."""
    module = _modeling(sources, model_type)
    if isinstance(module, Unread):
        return module
    return any(_states(module, REPLACEABLE)) and not _has_state(module, layers)


def has_state(sources: Sources, model_type: str, layers: object = None) -> bool | Unread:
    """Returns whether a state passes from token to token beside attention, or why that is unknown."""
    module = _modeling(sources, model_type)
    return module if isinstance(module, Unread) else _has_state(module, layers)


def masks_borders(sources: Sources, model_type: str) -> bool | Unread:
    """Returns whether all causal masks of an architecture are made from positions, in which transformers
    finds the borders of packed texts, or why that is unknown."""
    module = _modeling(sources, model_type)
    if isinstance(module, Unread):
        return module
    made = [*_mask_arguments(module.tree)]
    return bool(made) and all(POSITIONS in names for names in made)


def _modeling(sources: Sources, model_type: str) -> Module | Unread:
    if sources.first_missing(MODELS) == LIBRARY:
        return Unread(f"{LIBRARY} is not installed")
    for folder in folders(sources, model_type):
        module = sources.module(f"{MODELS}.{folder}.modeling_{folder}")
        if isinstance(module, Module):
            return module
    return Unread(f"its model was not found in {LIBRARY}")


def _has_state(module: Module, layers: object) -> bool:
    if isinstance(layers, list) and layers and ATTENTION_LAYERS.issuperset(map(str, layers)):
        return False
    return RECURRENT_MASK in module.names or any(_states(module, STATEFUL))


def _states(module: Module, attribute: str) -> Iterator[bool]:
    """Yields the values that the classes of a module state for an attribute."""
    for node in module.names.values():
        if isinstance(node, ast.ClassDef):
            yield constant(class_value(node, attribute)) is True


def _mask_arguments(tree: ast.AST) -> Iterator[set[object]]:
    """Yields the names of the arguments of each causal mask: those of a call, or the keys of a mapping that
    several calls get."""
    for node in ast.walk(tree):
        names: Iterable[object] = ()
        if isinstance(node, ast.Call) and not (dotted_name(node.func) or "").startswith(TWO_SIDED):
            names = (one.arg for one in node.keywords)
        elif isinstance(node, ast.Dict):
            names = map(constant, node.keys)
        if (found := {*names}) >= MASK_ARGUMENTS:
            yield found
