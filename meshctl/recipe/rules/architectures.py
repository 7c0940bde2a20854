"""MC418, MC419, MC439, MC440, MC451 to MC453, MC467, MC470 and MC471: compares the architecture of a model
with its layout and its inputs.

A class declares `LAYOUTS = {"tp_plan": "transformers"}` if it splits a model over tp ranks by the plan that
the library has for the architecture. `lora_styles` and `tied_shards` of `LAYOUTS` are limits of such plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

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
from meshctl.recipe.fixes import renamed
from meshctl.recipe.meshes import sizes_of
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.meshes import LayoutNeeds
from meshctl.text.english import did_you_mean, listed
from meshctl.topology.memory import HEADS, are_divisible
from meshctl.topology.mesh import DeviceMesh


def architecture_has_tp_plan(facts: Facts) -> Iterator[Diagnostic]:
    """The library has a plan for tp of the architecture. Each architecture is reported once for a mesh."""
    reported: set[tuple[str, str]] = set()
    for name, mesh in facts.meshes.items():
        tp = mesh.size("tp")
        plan = facts.tp_plans.get(name) if tp > 1 else None
        if plan is None or plan.exists is True:
            continue
        component, kind = facts.recipe.components[name], plan.model_type
        owner, sizes = sizes_of(facts.recipe, component)
        if (owner.name, kind) in reported:
            continue
        reported.add((owner.name, kind))
        span = facts.value("components", owner.name, "parallel", "tp_size")
        seconds = (plan.span.with_word(f"`model_type` is {kind}"),)
        if isinstance(plan.exists, Unread):
            message = f"whether `{kind}` of `{name}` can be split over tp ranks is unknown: {plan.exists.why}"
            yield Diagnostic("MC440", message, span, seconds, severity="note")
        else:
            message = f"`tp_size` is {tp}, but transformers has no plan that splits `{kind}` over tp ranks"
            yield Diagnostic("MC439", message, span, seconds, LayoutNeeds(facts, component, sizes).help)


def tokens_can_be_divided(facts: Facts) -> Iterator[Diagnostic]:
    """Tokens meet in attention only, if cp, ulysses or sequence parallelism divides them."""
    for name, mesh in facts.meshes.items():
        keys = {f"{dim}_size": dim for dim in ("cp", "ulysses") if mesh.size(dim) > 1}
        plan = facts.tp_plans.get(name)
        keys |= {SEQUENCE: SEQUENCE} if mesh.sequence_parallel and plan and plan.exists is True else {}
        tree = facts.config_values(name) if keys else None
        if tree is None or not facts.declares(name).layouts.attention:
            continue
        code = facts.code_of(name)
        layers = layer_types(tree)
        read = [(kind, at, _are_divisible(code, kind, mesh, layers)) for kind, at in model_types_in(tree)]
        if not read or any(found is True for _, _, found in read):
            continue
        (kind, at, found), (key, dim) = read[0], next(iter(keys.items()))
        owner, _ = sizes_of(facts.recipe, facts.recipe.components[name])
        span = facts.value("components", owner.name, "parallel", key)
        seconds = (at.with_word(f"`model_type` is {kind}"),)
        if isinstance(found, Unread):
            message = f"whether {dim} can divide the tokens of `{kind}` in `{name}` is unknown: {found.why}"
            yield Diagnostic("MC440", message, span, seconds, severity="note")
        else:
            why = "which do not meet in attention alone" if found is False else found
            message = f"{dim} cannot divide the tokens of `{kind}`, {why}"
            left_out = [f"leave out `{one}`" if one == SEQUENCE else f"use {one} 1" for one in keys.values()]
            help = " and ".join(left_out)
            yield Diagnostic("MC418", message, span, seconds, help)


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
        for source in (
            facts.recipe.pipeline[name].component for name in stage.takes if name in facts.recipe.pipeline
        ):
            node = facts.argument(source, ("args", "pack"))
            if (
                node
                and facts.declares(source).shipped.longest
                and node.value
                and stage.kind == "call"
                and facts.declares(stage.component).layouts.attention
            ):
                packed.add((stage.component, node.span))
    for name, span in sorted(packed, key=lambda one: one[0]):
        tree, code = facts.config_values(name), facts.code_of(name)
        kinds = model_types_in(tree) if tree else []
        masked, state = {masks_borders(code, kind) for kind, _ in kinds}, _state(facts, name)
        if state or (False in masked and True not in masked):
            kind, at = state or kinds[0]
            why = (
                "a state passes from token to token" if state else "its masks do not depend on `position_ids`"
            )
            message = f"`{kind}` of `{name}` does not keep packed texts apart: {why}"
            seconds = (at.with_word(f"`model_type` is {kind}"),)
            yield Diagnostic("MC470", message, span, seconds, "leave out `pack`")


def _state(facts: Facts, component: str) -> tuple[str, Span] | None:
    """Returns the architecture of a component, and its place, if a state passes from token to token."""
    tree, code = facts.config_values(component), facts.code_of(component)
    kinds = model_types_in(tree) if tree else []
    return next((one for one in kinds if tree and has_state(code, one[0], layer_types(tree)) is True), None)


def cached_texts_have_no_state(facts: Facts) -> Iterator[Diagnostic]:
    """A model that continues texts from a cache of keys and values has no other state."""
    for name in facts.recipe.components:
        path = facts.declares(name).layouts.cache
        node, is_whole = facts.argument(name, path), path == ("args",)
        state = _state(facts, name) if node and node.value else None
        if node and state:
            what = f"`{name}`" if is_whole else f"`{path[-1]}` of `{name}`"
            message = f"{what} needs a cache of keys and values, and `{state[0]}` also has a state"
            help = "sample with meshctl.vllm.Sampler" if is_whole else f"leave out `{path[-1]}`"
            span = facts.value("components", name, "_target_") if is_whole else node.span
            yield Diagnostic(
                "MC471", message, span, (state[1].with_word(f"`model_type` is {state[0]}"),), help
            )


def experts_can_be_divided(facts: Facts) -> Iterator[Diagnostic]:
    """ep is a multiple of tp, and the library has a plan that divides the experts of the architecture."""
    for name, mesh in facts.meshes.items():
        ep, tp, tree = mesh.ep_size, mesh.size("tp"), facts.config_values(name)
        if ep == 1 or not facts.declares(name).layouts.experts:
            continue
        owner, _ = sizes_of(facts.recipe, facts.recipe.components[name])
        spans = [facts.value("components", owner.name, "parallel", f"{dim}_size") for dim in ("ep", "tp")]
        if ep % tp:
            message = f"`ep_size` {ep} of `{name}` must be a multiple of `tp_size`, which is {tp}"
            yield Diagnostic("MC419", message, spans[0], (spans[1].with_word(f"`tp` is {tp}"),))
            continue
        kinds = model_types_in(tree) if tree is not None else []
        read = [(kind, at, plan_of(facts.code_of(name), kind, EP_PLAN)) for kind, at in kinds]
        if not read or any(plan and not isinstance(plan, Unread) for _, _, plan in read):
            continue
        kind, at, plan = read[0]
        seconds = (at.with_word(f"`model_type` is {kind}"),)
        if isinstance(plan, Unread):
            message = f"whether ep can divide experts of `{kind}` in `{name}` is unknown: {plan.why}"
            yield Diagnostic("MC440", message, spans[0], seconds, severity="note")
        else:
            message = f"`ep_size` is {ep}, but transformers has no plan that divides experts of `{kind}`"
            yield Diagnostic("MC419", message, spans[0], seconds, "leave out `ep_size`")


def lora_adapts_layers_on_tp(facts: Facts) -> Iterator[Diagnostic]:
    """`lora` can adapt the layers that it names as tp splits them."""
    for name, layers in facts.not_adapted.items():
        mesh, plan = facts.meshes.get(name), facts.tp_plans[name]
        tp = mesh.size("tp") if mesh else 1
        if tp == 1:
            continue
        component, declared = facts.recipe.components[name], facts.declares(name)
        owner, sizes = sizes_of(facts.recipe, component)
        layout = LayoutNeeds(facts, component, sizes)
        called = listed(layer.rpartition(".")[2] for layer in layers)
        styles = listed(sorted({*layers.values()}))
        message = f"`lora` of `{name}` cannot adapt {called} on tp {tp}"
        usable = listed(names_in(facts.code, declared.layouts.lora_styles), "or")
        help = f"the plan splits these layers as {styles}, and adapters need {usable}"
        lora = facts.memory_argument(name, "lora")
        span = (lora.key or lora.span) if lora else facts.value("components", name)
        seconds = (
            facts.value("components", owner.name, "parallel", "tp_size").with_word(f"`tp_size` is {tp}"),
            plan.span.with_word(f"`model_type` is {plan.model_type}"),
        )
        yield Diagnostic("MC451", message, span, seconds, "; ".join(filter(None, (help, layout.help))))


def lora_adapts_no_experts_on_ep(facts: Facts) -> Iterator[Diagnostic]:
    """No target of `lora` is a fused weight of experts that ep divides."""
    for name, mesh in facts.meshes.items():
        lora, values = facts.memory_argument(name, "lora"), facts.config_values(name)
        kind = values.get("model_type") if values else None
        target = lora.get("target") if lora and lora.is_mapping else None
        if mesh.ep_size == 1 or kind is None or target is None or not target.is_list:
            continue
        # Imported here, because most recipes have no experts.
        from meshctl.recipe.code.architectures import fused_weights

        fused = [f".{weight}" for weight in fused_weights(str(kind.value))]
        for one in target.value:
            if any(weight.endswith(f".{one.value}") for weight in fused):
                message = (
                    f"`lora` of `{name}` cannot adapt the experts, which ep divides over {mesh.ep_size} ranks"
                )
                seconds = (kind.span.with_word(f"`{one.value}` of {kind.value} has all experts of a layer"),)
                help = f"leave `{one.value}` out of the targets, or use fsdp in place of ep"
                yield Diagnostic("MC451", message, one.span, seconds, help)


def lora_targets_exist(facts: Facts) -> Iterator[Diagnostic]:
    """Each target of `lora` is a linear layer or a fused weight of experts of the architecture."""
    for name in facts.recipe.components:
        lora, values = facts.memory_argument(name, "lora"), facts.config_values(name)
        targets = lora.get("target") if lora and lora.is_mapping else None
        kind = values.get("model_type") if values else None
        if kind is None or targets is None or not targets.is_list:
            continue
        # Imported here, because most recipes have no adapters.
        from meshctl.recipe.code.architectures import fused_weights, linear_layers

        layers = [*linear_layers(str(kind.value)), *fused_weights(str(kind.value))]
        known = [*dict.fromkeys(layer.rpartition(".")[2] for layer in layers)]
        for target in targets.value if layers else ():
            word = str(target.value)
            if word not in known and "." not in word and word not in HEADS:
                message = f"`lora.target` of `{name}` has `{word}`, and `{kind.value}` has no such layer"
                seconds = (kind.span.with_word(f"`model_type` is {kind.value}"),)
                help, fixes = did_you_mean(word, known), renamed(target.span, word, known)
                yield Diagnostic("MC453", message, target.span, seconds, help, fixes=fixes)


def tied_embeddings_have_equal_shards(facts: Facts) -> Iterator[Diagnostic]:
    """fsdp x cp x tp divides the rows of a tied embedding, unless only tp shards it."""
    for name, (rows, at) in facts.tied_rows.items():
        mesh = facts.meshes.get(name)
        sizes_of_dims = {dim: mesh.size(dim) for dim in ("fsdp", "cp", "tp")} if mesh else {"tp": 1}
        shards, sharding = (
            prod(sizes_of_dims.values()),
            [dim for dim, size in sizes_of_dims.items() if size > 1],
        )
        if set(sharding) <= {"tp"} or rows % shards == 0:
            continue
        component = facts.recipe.components[name]
        owner, sizes = sizes_of(facts.recipe, component)
        product = " x ".join(f"{dim} {sizes_of_dims[dim]}" for dim in sharding)
        product += f" = {shards}" if len(sharding) > 1 else ""
        span = facts.value("components", owner.name, "parallel", f"{sharding[0]}_size").with_word(product)
        message = f"the tied embedding of `{name}` has {rows} rows, which {shards} ranks cannot share equally"
        help = f"of a new model, a vocabulary of {-(-rows // shards) * shards} fits"
        if layouts := LayoutNeeds(facts, component, sizes).help:
            help = f"{layouts}; {help}"
        yield Diagnostic("MC452", message, span, (at.with_word(f"`vocab_size` is {rows}"),), help)


def vocabulary_has_shards(facts: Facts) -> Iterator[Diagnostic]:
    """FSDP can shard the parts of an output layer that tp has divided unevenly."""
    for name, mesh in facts.meshes.items():
        tp, shards, tree = mesh.size("tp"), mesh.size("fsdp") * mesh.size("cp"), facts.config_values(name)
        declared = facts.declares(name).layouts
        if tree is None or not declared.tied_shards or tp == 1 or facts.head(name) == HEADS[1]:
            continue
        rows, at = sizes_in(tree).get("vocab_size") or (0, tree.span)
        if name in facts.tied_rows or are_divisible(rows, tp, shards):
            continue
        component = facts.recipe.components[name]
        owner, sizes = sizes_of(facts.recipe, component)
        span = facts.value("components", owner.name, "parallel", "tp_size")
        message = f"tp {tp} divides the {rows} rows of the output layer of `{name}` unevenly, and "
        message += f"{shards} ranks of fsdp cannot shard these parts"
        help = f"of a new model, a vocabulary of {-(-rows // tp) * tp} fits"
        if layouts := LayoutNeeds(facts, component, sizes).help:
            help = f"{layouts}; {help}"
        yield Diagnostic("MC467", message, span, (at.with_word(f"`vocab_size` is {rows}"),), help)
