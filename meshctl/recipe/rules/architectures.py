"""MC418, MC419, MC439, MC440, MC451 to MC453, MC467, MC470 and MC471: compares the architecture of a model
with its layout and its inputs.

A class declares `LAYOUTS = {"tp_plan": "transformers"}` if it splits a model over tp ranks by the plan that
the library has for the architecture. `lora_styles` and `tied_shards` of `LAYOUTS` are limits of such plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from meshctl.argument_limits import UNUSABLE
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.declarations import SEQUENCE
from meshctl.recipe.code.model_config import layer_types, model_types_in, sizes_in
from meshctl.recipe.code.modules import Sources, Unread
from meshctl.recipe.code.tables import names_in
from meshctl.recipe.code.transformers_plans import (
    EP_PLAN,
    divides_layers,
    has_state,
    is_divisible,
    masks_borders,
    plan_of,
)
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.recipe.fixes import renamed
from meshctl.recipe.model import Component
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.meshes import Placed, lacking, placed
from meshctl.text.english import did_you_mean, listed
from meshctl.topology.memory import HEADS, are_divisible
from meshctl.topology.mesh import DeviceMesh


def architecture_has_tp_plan(facts: Facts) -> Iterator[Diagnostic]:
    """The library has a plan for tp of the architecture. Each architecture is reported once for a mesh."""
    reported: set[tuple[str, str]] = set()
    for one in placed(facts):
        tp = one.mesh.size("tp")
        plan = one.tp_plan if tp > 1 else None
        if plan is None or plan.exists is True or (one.owner, plan.model_type) in reported:
            continue
        kind = plan.model_type
        reported.add((one.owner, kind))
        whether = f"`{kind}` of `{one.name}` can be split over tp ranks"
        message = f"`tp_size` is {tp}, but transformers has no plan that splits `{kind}` over tp ranks"
        yield lacking(one, "tp_size", (kind, plan.span, plan.exists), whether, "MC439", message)


def tokens_can_be_divided(facts: Facts, one: Placed) -> Iterator[Diagnostic]:
    """Tokens meet in attention only, if cp, ulysses or sequence parallelism divides them."""
    mesh, plan = one.mesh, one.tp_plan
    keys = {f"{dim}_size": dim for dim in ("cp", "ulysses") if mesh.size(dim) > 1}
    keys |= {SEQUENCE: SEQUENCE} if mesh.sequence_parallel and plan and plan.exists is True else {}
    if not keys or one.config is None or not one.layouts.attention:
        return
    layers, (key, dim) = layer_types(one.config), next(iter(keys.items()))
    found = one.lacks(lambda kind: _are_divisible(one.code, kind, mesh, layers), lambda one: one is True)
    if found is not None:
        kind, _, answer = found
        whether = f"{dim} can divide the tokens of `{kind}` in `{one.name}`"
        why = answer if isinstance(answer, str) else "which do not meet in attention alone"
        left_out = [f"leave out `{one}`" if one == SEQUENCE else f"use {one} 1" for one in keys.values()]
        message = f"{dim} cannot divide the tokens of `{kind}`, {why}"
        yield lacking(one, key, found, whether, "MC418", message, " and ".join(left_out))


def _are_divisible(code: Sources, kind: str, mesh: DeviceMesh, layers: object) -> bool | str | Unread:
    """Returns whether the dims of a mesh can divide the tokens of an architecture, why sequence parallelism
    cannot, or why that is unknown."""
    found = is_divisible(code, kind, layers)
    plan = plan_of(code, kind) if found is True and mesh.sequence_parallel else {}
    if plan and not isinstance(plan, Unread) and not divides_layers(plan):
        return "whose plan for tp divides more than the parts of layers"
    return found


def packed_texts_have_borders(facts: Facts) -> Iterator[Diagnostic]:
    """A model that gets packed texts keeps them apart."""
    packed: set[tuple[str, Span]] = set()
    for stage in facts.recipe.pipeline.values():
        takes = stage.kind == "call" and facts.declares(stage.component).layouts.attention
        for name in stage.takes if takes else ():
            source = facts.recipe.pipeline.get(name)
            node = facts.argument(source.component, ("args", "pack")) if source else None
            if source and node and node.value and facts.declares(source.component).shipped.longest:
                packed.add((stage.component, node.span))
    for name, span in sorted(packed, key=lambda one: one[0]):
        tree, code = facts.config_values(name), facts.code_of(name)
        kinds = model_types_in(tree) if tree else []
        masked, state = {masks_borders(code, kind) for kind, _ in kinds}, _state(facts, name)
        if state or (False in masked and True not in masked):
            kind, at = state or kinds[0]
            why = "its masks do not depend on `position_ids`"
            if state:
                why = "a state passes from token to token"
            message = f"`{kind}` of `{name}` does not keep packed texts apart: {why}"
            seconds = (at.with_word(f"`model_type` is {kind}"),)
            yield Diagnostic("MC470", message, span, seconds, "leave out `pack`")


def _state(facts: Facts, component: str, *, or_own_cache: bool = False) -> tuple[str, Span] | None:
    """Returns the architecture of a component, and its place, if a state passes from token to token or, with
    `or_own_cache`, if its cache has more than keys and values."""
    tree, code = facts.config_values(component), facts.code_of(component)
    for kind, at in model_types_in(tree) if tree else []:
        has_own_cache = or_own_cache and "cache" in UNUSABLE.get(kind, ())
        if tree and (has_own_cache or has_state(code, kind, layer_types(tree)) is True):
            return kind, at
    return None


def cached_texts_have_no_state(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """A model that continues texts from a cache of keys and values has no other state."""
    name = component.name
    path = facts.declares(name).layouts.cache
    node, is_whole = facts.argument(name, path), path == ("args",)
    state = _state(facts, name, or_own_cache=True) if node and node.value else None
    if node and state:
        what = f"`{name}`" if is_whole else f"`{path[-1]}` of `{name}`"
        message = f"{what} needs a cache of keys and values, and `{state[0]}` also has a state"
        help = "sample with meshctl.vllm.Sampler" if is_whole else f"leave out `{path[-1]}`"
        span = facts.value("components", name, "_target_") if is_whole else node.span
        yield Diagnostic("MC471", message, span, (state[1].with_word(f"`model_type` is {state[0]}"),), help)


def experts_can_be_divided(facts: Facts, one: Placed) -> Iterator[Diagnostic]:
    """ep is a multiple of tp, and the library has a plan that divides the experts of the architecture."""
    ep, tp = one.mesh.ep_size, one.mesh.size("tp")
    if ep == 1 or not one.layouts.experts:
        return
    if ep % tp:
        message = f"`ep_size` {ep} of `{one.name}` must be a multiple of `tp_size`, which is {tp}"
        yield Diagnostic(
            "MC419", message, one.span("ep_size"), (one.span("tp_size").with_word(f"`tp` is {tp}"),)
        )
        return
    found = one.lacks(
        lambda kind: plan_of(one.code, kind, EP_PLAN),
        lambda plan: bool(plan) and not isinstance(plan, Unread),
    )
    if found is not None:
        whether = f"ep can divide experts of `{found[0]}` in `{one.name}`"
        message = f"`ep_size` is {ep}, but transformers has no plan that divides experts of `{found[0]}`"
        yield lacking(one, "ep_size", found, whether, "MC419", message, "leave out `ep_size`")


def lora_adapts_layers_on_tp(facts: Facts, one: Placed) -> Iterator[Diagnostic]:
    """`lora` can adapt the layers that it names as tp splits them."""
    tp, layers, plan = one.mesh.size("tp"), one.not_adapted, one.tp_plan
    if tp == 1 or not layers or plan is None:
        return
    lora = facts.memory_argument(one.name, "lora")
    called = listed(layer.rpartition(".")[2] for layer in layers)
    message = f"`lora` of `{one.name}` cannot adapt {called} on tp {tp}"
    usable = listed(names_in(facts.code, one.layouts.lora_styles), "or")
    help = f"the plan splits these layers as {listed(sorted({*layers.values()}))}, and adapters need {usable}"
    span = (lora.key or lora.span) if lora else facts.value("components", one.name)
    seconds = (
        one.span("tp_size").with_word(f"`tp_size` is {tp}"),
        plan.span.with_word(f"`model_type` is {plan.model_type}"),
    )
    yield Diagnostic("MC451", message, span, seconds, "; ".join(filter(None, (help, one.help))))


def lora_adapts_no_experts_on_ep(facts: Facts, one: Placed) -> Iterator[Diagnostic]:
    """No target of `lora` is a fused weight of experts that ep divides."""
    kind, targets = _lora_targets(facts, one.name) if one.mesh.ep_size > 1 else (None, [])
    if kind is None or not targets:
        return
    # Imported here, because most recipes have no experts.
    from meshctl.recipe.code.architectures import fused_weights

    fused = [f".{weight}" for weight in fused_weights(str(kind.value))]
    for target in targets:
        if any(weight.endswith(f".{target.value}") for weight in fused):
            over = f"which ep divides over {one.mesh.ep_size} ranks"
            message = f"`lora` of `{one.name}` cannot adapt the experts, {over}"
            seconds = (kind.span.with_word(f"`{target.value}` of {kind.value} has all experts of a layer"),)
            help = f"leave `{target.value}` out of the targets, or use fsdp in place of ep"
            yield Diagnostic("MC451", message, target.span, seconds, help)


def _lora_targets(facts: Facts, component: str) -> tuple[Node | None, list[Node]]:
    """Returns the `model_type` of a component, and the layers that its `lora` lists."""
    lora, values = facts.memory_argument(component, "lora"), facts.config_values(component)
    targets = lora.get("target") if lora and lora.is_mapping else None
    kind = values.get("model_type") if values else None
    return kind, targets.value if targets is not None and targets.is_list else []


def lora_targets_exist(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """Each target of `lora` is a linear layer or a fused weight of experts of the architecture."""
    kind, targets = _lora_targets(facts, component.name)
    if kind is None or not targets:
        return
    # Imported here, because most recipes have no adapters.
    from meshctl.recipe.code.architectures import fused_weights, linear_layers

    layers = [*linear_layers(str(kind.value)), *fused_weights(str(kind.value))]
    known = [*dict.fromkeys(layer.rpartition(".")[2] for layer in layers)]
    for target in targets if layers else ():
        word = str(target.value)
        if word not in known and "." not in word and word not in HEADS:
            message = (
                f"`lora.target` of `{component.name}` has `{word}`, and `{kind.value}` has no such layer"
            )
            seconds = (kind.span.with_word(f"`model_type` is {kind.value}"),)
            help, fixes = did_you_mean(word, known), renamed(target.span, word, known)
            yield Diagnostic("MC453", message, target.span, seconds, help, fixes=fixes)


def tied_embeddings_have_equal_shards(facts: Facts, one: Placed) -> Iterator[Diagnostic]:
    """fsdp x cp x tp divides the rows of a tied embedding, unless only tp shards it."""
    rows, at = one.tied_rows or (0, None)
    sizes = {dim: one.mesh.size(dim) for dim in ("fsdp", "cp", "tp")}
    shards, sharding = prod(sizes.values()), [dim for dim, size in sizes.items() if size > 1]
    if at is None or {*sharding} <= {"tp"} or rows % shards == 0:
        return
    product = " x ".join(f"{dim} {sizes[dim]}" for dim in sharding)
    product += f" = {shards}" if len(sharding) > 1 else ""
    message = f"the tied embedding of `{one.name}` has {rows} rows, which {shards} ranks cannot share equally"
    span = one.span(f"{sharding[0]}_size").with_word(product)
    yield _of_rows("MC452", message, span, one, rows, at, shards)


def _of_rows(
    code: str, message: str, span: Span, one: Placed, rows: int, at: Span, shards: int
) -> Diagnostic:
    fits = f"of a new model, a vocabulary of {-(-rows // shards) * shards} fits"
    help = "; ".join(filter(None, (one.help, fits)))
    return Diagnostic(code, message, span, (at.with_word(f"`vocab_size` is {rows}"),), help)


def vocabulary_has_shards(facts: Facts, one: Placed) -> Iterator[Diagnostic]:
    """FSDP can shard the parts of an output layer that tp has divided unevenly."""
    tp, shards, tree = one.mesh.size("tp"), one.mesh.size("fsdp") * one.mesh.size("cp"), one.config
    if tree is None or not one.layouts.tied_shards or tp == 1 or facts.head(one.name) not in (None, "lm"):
        return
    rows, at = sizes_in(tree).get("vocab_size") or (0, tree.span)
    if one.tied_rows is None and not are_divisible(rows, tp, shards):
        message = f"tp {tp} divides the {rows} rows of the output layer of `{one.name}` unevenly, and "
        message += f"{shards} ranks of fsdp cannot shard these parts"
        yield _of_rows("MC467", message, one.span("tp_size"), one, rows, at, tp)
