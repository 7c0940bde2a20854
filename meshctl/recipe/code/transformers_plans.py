"""Reads as text how transformers divides an architecture: its plans for tp, ep and pp, and how tokens meet.

class LlamaConfig(PreTrainedConfig):              transformers/models/llama/configuration_llama.py
    model_type = "llama"
    base_model_tp_plan = {"layers.*.self_attn.q_proj": "colwise", ...}
    base_model_ep_plan = {"layers.*.mlp.experts": "ep_dispatch_experts", ...}      for models with experts
class LlamaPreTrainedModel(PreTrainedModel):      transformers/models/llama/modeling_llama.py
    _supports_attention_backend = True            its attention is a function of a table, and can be replaced
    _is_stateful = True                           in other architectures: a state passes from token to token
create_recurrent_attention_mask(...)              the same, in some of their layers
create_causal_mask(..., position_ids=...)         its mask has the borders of packed texts
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from meshctl.argument_limits import UNUSABLE
from meshctl.recipe.code.modules import (
    MAX_HOPS,
    Module,
    Sources,
    Unread,
    bound_names,
    dotted_name,
    statements,
)

LIBRARY = "transformers"
MODELS = f"{LIBRARY}.models"
SPECIAL_FOLDERS = f"{MODELS}.auto.auto_mappings.SPECIAL_MODEL_TYPE_TO_MODULE_NAME"
"""The pairs of a `model_type` and the folder of its class, where their names differ."""
TP_PLAN, EP_PLAN, PP_PLAN = "base_model_tp_plan", "base_model_ep_plan", "base_model_pp_plan"
PP_PARTS = {"embed_tokens", "layers", "norm"}
"""The modules in the plan of a model that pipeline stages can divide."""
BASES = ("PreTrainedConfig", "PretrainedConfig")
"""The names of the base class of all configs, which has no plan."""
Plan = Mapping[str, object]
"""Module -> the style in which it is split: `layers.*.mlp.up_proj` -> `colwise`."""
OF_PLANS = {TP_PLAN: "tp", EP_PLAN: "ep", PP_PLAN: "pp"}


def plan_of(sources: Sources, model_type: str, name: str = TP_PLAN) -> Plan | Unread:
    """Returns a plan of the installed transformers, which is empty if there is none that can be used, or why
    it is unknown."""
    if OF_PLANS.get(name) in UNUSABLE.get(model_type, ()):
        return {}
    for module in _modules(sources, model_type, "configuration"):
        if isinstance(module, Unread):
            return module
        for node in module.names.values():
            if isinstance(node, ast.ClassDef) and constant(class_value(node, "model_type")) == model_type:
                return _stated_plan(sources, module, node, name)
    return Unread(f"its config class was not found in {LIBRARY}")


def _modules(sources: Sources, model_type: str, kind: str) -> Iterator[Module | Unread]:
    """Yields the modules of a kind that may describe an architecture, or why there are none."""
    if sources.first_missing(MODELS) == LIBRARY:
        yield Unread(f"{LIBRARY} is not installed")
    for folder in folders(sources, model_type):
        module = sources.module(f"{MODELS}.{folder}.{kind}_{folder}")
        if isinstance(module, Module):
            yield module


def divides_layers(plan: Plan) -> bool:
    """Returns whether a plan divides modules inside of the children of layers only, as sequence parallelism
    needs."""
    inner = [
        key.split(".*.", 1)[1] for key, style in plan.items() if ".*." in key and style != "local_params"
    ]
    return bool(inner) and all("." in name and "*" not in name for name in inner)


def folders(sources: Sources, model_type: str) -> Iterator[str]:
    """Yields the folders that may contain the classes of an architecture."""
    if not re.fullmatch(r"[\w-]+", model_type, re.ASCII):
        return
    yield model_type.replace("-", "_")
    statement = sources.statement(SPECIAL_FOLDERS)
    for pair in ast.walk(statement) if statement else ():
        if isinstance(pair, ast.Tuple) and len(pair.elts) == 2 and constant(pair.elts[0]) == model_type:
            yield str(constant(pair.elts[1]))


def _stated_plan(
    sources: Sources, module: Module, node: ast.ClassDef, name: str, depth: int = 0
) -> Plan | Unread:
    """Returns the plan of a class or of its nearest base class that states one; empty if none states one."""
    value = class_value(node, name)
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return {str(constant(key)): constant(style) for key, style in pairs}
    if value is not None:
        is_none = isinstance(value, ast.Constant) and value.value is None
        return {} if is_none else Unread(f"`{name}` of `{node.name}` is not a literal")
    for base in node.bases:
        dotted = dotted_name(base) or ""
        absolute = sources.absolute(module, dotted) if dotted else None
        if absolute is None or dotted.rpartition(".")[2] in BASES or depth > MAX_HOPS:
            continue
        found = sources.follow(absolute)
        if not isinstance(found, str) and isinstance(found[1], ast.ClassDef):
            plan = _stated_plan(sources, found[0], found[1], name, depth + 1)
            if plan != {}:
                return plan
    return {}


def class_value(node: ast.ClassDef, name: str) -> ast.expr | None:
    """Returns the value of a class attribute; None if the class does not assign it."""
    found = [item for item in statements(node.body) if name in bound_names(item)]
    last = found[-1] if found else None
    return last.value if isinstance(last, (ast.Assign, ast.AnnAssign)) else None


def constant(value: ast.expr | None) -> object:
    return value.value if isinstance(value, ast.Constant) else None


REPLACEABLE = "_supports_attention_backend"
STATEFUL = "_is_stateful"
RECURRENT_MASK = "create_recurrent_attention_mask"
TWO_SIDED = "create_bidirectional"
"""The beginning of the names of functions whose masks are for images and encoders."""
MASK_ARGUMENTS = {"config", "attention_mask"}
"""Arguments by which a call is known to make a mask."""
POSITIONS = "position_ids"
SINKS = "s_aux"
"""The argument of attention functions with the sinks, which change the scores of all tokens."""
ATTENTION_LAYERS = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
"""The `layer_types` of a config that are layers without a state."""


def is_divisible(sources: Sources, model_type: str, layers: object = None) -> bool | Unread:
    """Returns whether tokens of an architecture meet only in attention that can be replaced, or why that is
    unknown. `layers` are the `layer_types` of the config, if it states them."""
    module = _modeling(sources, model_type)
    if isinstance(module, Unread):
        return module
    is_usable = "cp" not in UNUSABLE.get(model_type, ())
    is_replaceable = is_usable and any(_states(module, REPLACEABLE)) and not _adds_sinks(module)
    return is_replaceable and not _has_state(module, layers)


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
    found = _modules(sources, model_type, "modeling")
    return next(found, Unread(f"its model was not found in {LIBRARY}"))


def _has_state(module: Module, layers: object) -> bool:
    if isinstance(layers, list) and layers and ATTENTION_LAYERS.issuperset(map(str, layers)):
        return False
    return RECURRENT_MASK in module.names or any(_states(module, STATEFUL))


def _adds_sinks(module: Module) -> bool:
    """Returns whether a module passes learned sinks to its attention."""
    calls = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))
    return any(one.arg == SINKS for call in calls for one in call.keywords)


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
