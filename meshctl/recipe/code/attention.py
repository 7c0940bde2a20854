"""Reads as text whether the tokens of an architecture of transformers can be divided over ranks.

class LlamaPreTrainedModel(PreTrainedModel):      transformers/models/llama/modeling_llama.py
    _supports_attention_backend = True            its attention is a function of a table, and can be replaced
    _is_stateful = True                           in other architectures: a state passes from token to token
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from meshctl.recipe.code.modules import Module, Sources, Unread
from meshctl.recipe.code.tp_plans import LIBRARY, MODELS, class_value, constant, folders

REPLACEABLE = "_supports_attention_backend"
STATEFUL = "_is_stateful"


def is_divisible(sources: Sources, model_type: str) -> bool | Unread:
    """Returns whether tokens of an architecture meet only in attention that can be replaced, or why that is
    unknown."""
    if sources.first_missing(MODELS) == LIBRARY:
        return Unread(f"{LIBRARY} is not installed")
    for folder in folders(sources, model_type):
        module = sources.module(f"{MODELS}.{folder}.modeling_{folder}")
        if isinstance(module, Module):
            return any(_states(module, REPLACEABLE)) and not any(_states(module, STATEFUL))
    return Unread(f"its model was not found in {LIBRARY}")


def _states(module: Module, attribute: str) -> Iterator[bool]:
    """Yields the values that the classes of a module state for an attribute."""
    for node in module.names.values():
        if isinstance(node, ast.ClassDef):
            yield constant(class_value(node, attribute)) is True
