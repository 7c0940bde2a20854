"""MC40x and MC41x: checks the sizes of a component against the workers of its group and the layouts of its
class, and finds the nearest layouts that models, samples and classes allow.

Rules propose such layouts if sizes do not fit the ranks, a model, the samples, or the class. Ulysses splits
attention by heads. If its size does not divide the heads, the rest of the split is ring attention, in which
each rank has a part of the sequence. That is slower, so layouts without a ring are proposed first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import TypeVar

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.classes import Code
from meshctl.recipe.code.declarations import LAYOUT_DIMS, SEQUENCE, Layouts
from meshctl.recipe.code.model_config import model_types_in, sizes_in
from meshctl.recipe.code.modules import Unread
from meshctl.recipe.code.tables import names_in
from meshctl.recipe.code.transformers_plans import PP_PARTS, PP_PLAN, Plan, plan_of
from meshctl.recipe.compose.yaml_tree import Node, plain
from meshctl.recipe.meshes import NoMesh, sizes_of
from meshctl.recipe.model import Component, Sizes
from meshctl.recipe.rules.facts import ALL_LINEAR, Facts, ModelSizes
from meshctl.text.english import counted, listed
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import DISPATCH, EXECUTE
from meshctl.topology.sizes import (
    DIMS,
    EXPERT_DIMS,
    MAX_PROPOSALS,
    Misfit,
    Needs,
    drawn,
    keeping,
    settle,
)

A = TypeVar("A")
UNLIMITED = 1 << 40
"""A number above any number of samples."""


def sequence_parts(layout: Mapping[str, int], sequence_parallel: bool) -> int:
    """Returns the number of equal parts into which a sequence is split. Each cp rank has two parts, so that
    all ranks have the same work under a causal mask."""
    cp, tp = layout.get("cp", 1), layout.get("tp", 1) if sequence_parallel else 1
    return (2 * cp if cp > 1 else 1) * layout.get("ulysses", 1) * tp


@dataclass(frozen=True)
class TpPlan:
    """The plan of a library that splits an architecture over tp ranks."""

    model_type: str
    span: Span
    plan: Plan | Unread
    """Empty if there is none; `Unread` if it is unknown."""

    @property
    def exists(self) -> bool | Unread:
        return self.plan if isinstance(self.plan, Unread) else bool(self.plan)

    def others_than(self, styles: Sequence[str], targets: Sequence[str] | None) -> dict[str, str]:
        """Returns layer or fused weight of experts -> style, for those whose style in the plan is none of
        `styles`: those called `targets`, or all linear layers. The style of fused weights is that of their
        module."""
        # Imported here, because most recipes have no adapters.
        from meshctl.recipe.code.architectures import fused_weights, linear_layers

        plan = {} if isinstance(self.plan, Unread) else self.plan
        known = linear_layers(self.model_type) or [*_split_layers(plan)]
        modules = {layer: layer for layer in known}
        if targets is not None:
            modules |= {weight: weight.rpartition(".")[0] for weight in fused_weights(self.model_type)}
        named = {layer: plan.get(f"layers.*.{module}") for layer, module in modules.items()}
        return {
            layer: style
            for layer, style in named.items()
            if isinstance(style, str)
            and style not in styles
            and (targets is None or any(f".{layer}".endswith(f".{target}") for target in targets))
        }


def _split_layers(plan: Mapping[str, object]) -> Iterator[str]:
    """Yields the linear layers of a layer that a plan for tp splits, without experts."""
    for key, style in plan.items():
        layer = key.removeprefix("layers.*.")
        if layer != key and "experts" not in layer and re.search("colwise|rowwise|mla_", str(style)):
            yield layer


@dataclass(frozen=True)
class Placed:
    """A component in a group, and the needs of the components that share its layout."""

    facts: Facts
    component: Component

    @property
    def name(self) -> str:
        return self.component.name

    @property
    def owner(self) -> str:
        """The component whose sizes it uses."""
        return sizes_of(self.facts.recipe, self.component)[0].name

    @cached_property
    def sizes(self) -> Sizes:
        return sizes_of(self.facts.recipe, self.component)[1]

    @property
    def mesh(self) -> DeviceMesh:
        return self.facts.meshes[self.name]

    @property
    def model(self) -> ModelSizes:
        return self.facts.models[self.name]

    @property
    def layouts(self) -> Layouts:
        """The layouts that its class declares."""
        return self.facts.declares(self.name).layouts

    @property
    def code(self) -> Code:
        return self.facts.code_of(self.name)

    @cached_property
    def config(self) -> Node | None:
        """The values of the config of its model."""
        return self.facts.config_values(self.name)

    def span(self, size: str) -> Span:
        """Returns the span of one of its sizes."""
        return self.facts.value("components", self.owner, "parallel", size)

    def lacks(self, ask: Callable[[str], A], is_right: Callable[[A], bool]) -> tuple[str, Span, A] | None:
        """Returns an architecture of its model, the place of the architecture, and the answer to a question
        about it; None if the answer is right for one of the architectures, or if they are unknown."""
        read = [(kind, at, ask(kind)) for kind, at in model_types_in(self.config)] if self.config else []
        return None if any(is_right(answer) for _, _, answer in read) else next(iter(read), None)

    @property
    def lacks_stages(self) -> tuple[str, Span, Plan | Unread] | None:
        """The architecture of a component whose class divides models by plans for pp of a library, if the
        library has none for it: its type, where that stands, and its plan."""
        if not self.layouts.pp_plan:
            return None
        return self.lacks(
            lambda kind: plan_of(self.code, kind, PP_PLAN),
            lambda plan: not isinstance(plan, Unread) and {*plan} == PP_PARTS,
        )

    @cached_property
    def tp_plan(self) -> TpPlan | None:
        """The plan for tp of its model's architecture, if its class declares that tp needs one, and if the
        architecture is known. One part of a multimodal model has the plan."""
        if not self.layouts.tp_plan or self.config is None:
            return None
        read = [TpPlan(kind, at, plan_of(self.code, kind)) for kind, at in model_types_in(self.config)]
        return next((plan for plan in read if plan.exists is True), read[0] if read else None)

    @cached_property
    def not_adapted(self) -> dict[str, str]:
        """Linear layer -> its style in the plan for tp, for the layers that `lora` names and cannot adapt on
        tp."""
        plan, lora = self.tp_plan, self.facts.memory_argument(self.name, "lora")
        kind = self.config.get("model_type") if self.config else None
        styles = names_in(self.facts.code, self.layouts.lora_styles) if self.layouts.lora_styles else ()
        is_known = plan is not None and kind is not None and kind.value == plan.model_type
        if plan is None or not (is_known and styles and lora and lora.is_mapping and lora.value):
            return {}
        target = lora.get("target")
        if target is None or target.value == ALL_LINEAR:
            return plan.others_than(styles, None)
        return plan.others_than(styles, [str(one) for one in plain(target)] if target.is_list else [])

    @cached_property
    def tied_rows(self) -> tuple[int, Span] | None:
        """The rows of its tied embedding, and their place, if its class declares that the shards of such an
        embedding on fsdp must have equal sizes."""
        if self.config is None or not self.layouts.tied_shards:
            return None
        # Imported here, because most recipes have no config of a model.
        from meshctl.recipe.code.architectures import is_tied

        is_own = is_tied(plain(self.config), self.facts.head(self.name))
        return sizes_in(self.config).get("vocab_size") if is_own else None

    @cached_property
    def needs(self) -> Needs:
        """The needs without ring attention if a layout satisfies them, otherwise those with it."""
        without = self.needs_if(with_ring=False)
        return without if self._keeping(without) else self.needs_if(with_ring=True)

    @cached_property
    def proposals(self) -> tuple[str, ...]:
        """Complete layouts that satisfy the needs, nearest first."""
        return tuple(map(drawn, self._keeping(self.needs)))

    @property
    def help(self) -> str:
        return nearest_that_fit(self.proposals)

    @cached_property
    def stated(self) -> dict[str, int]:
        """The sizes that the recipe states as numbers, by dim."""
        numbers = {size: number for size, number in self.sizes.given if isinstance(number, int)}
        return {size.removesuffix("_size"): number for size, number in numbers.items()}

    def fits_with(self, needs: Needs, **other: int) -> bool:
        """Returns whether the layout satisfies the needs after these sizes are replaced."""
        dims = {dim: self.mesh.size(dim) for dim in DIMS}
        return needs.size("tp", dims["tp"]) and needs.layout({**self.stated, **dims, **other})

    def _keeping(self, needs: Needs) -> list[dict[str, int]]:
        """Returns the nearest layouts that satisfy these needs, as sizes by dim."""
        given = dict(self.sizes.given)
        autos = [dim for dim in DIMS if given.get(f"{dim}_size") == "auto"]
        inferred = autos[0] if autos else None if "dp" in self.stated else "dp"
        workers = self.facts.recipe.groups[self.component.group].workers
        return keeping(self.stated, inferred, workers, needs)

    @cached_property
    def _sharing(self) -> list[Placed]:
        facts, owner = self.facts, _owner(self.facts, self.component)
        components = facts.recipe.components.values()
        return [Placed(facts, other) for other in components if _owner(facts, other) == owner]

    def needs_if(self, *, with_ring: bool) -> Needs:
        """Returns the needs with or without ring attention. Without it, ulysses must divide the heads of a tp
        rank."""
        sharing = self._sharing
        max_data_size = min_samples(self.facts, [one.name for one in sharing])
        with_ring = with_ring and not any(one.layouts.ulysses for one in sharing)

        def fits(layout: Mapping[str, int]) -> bool:
            data_size = layout.get("dp", 1) * layout.get("fsdp", 1) // layout.get("ulysses", 1)
            return data_size <= max_data_size and all(one._layout_fits(layout, with_ring) for one in sharing)

        return Needs(lambda dim, size: all(one._size_fits(dim, size, with_ring) for one in sharing), fits)

    def _size_fits(self, dim: str, size: int, with_ring: bool) -> bool:
        if size > 1 and not self.layouts.supports(dim):
            return False
        if dim == "pp":
            return size == 1 or not self.lacks_stages
        if dim == "tp":
            # The library may have no plan of an architecture, or `lora` cannot adapt a layer on tp.
            lacks_tp = (self.tp_plan is not None and self.tp_plan.exists is False) or self.not_adapted
            return not (size > 1 and lacks_tp) and not self.model.undivided_by_tp(size)
        if dim == "ep":
            return self.model.get("num_experts") % size == 0
        return dim != "ulysses" or with_ring or self.model.get("num_heads") % size == 0

    def _layout_fits(self, layout: Mapping[str, int], with_ring: bool) -> bool:
        model, along_tp, tp = self.model, self.sizes.sequence_parallel, layout.get("tp", 1)
        layers, stages = model.get("num_layers"), layout.get("pp", 1) * layout.get("vpp", 1)
        if (along_tp and tp == 1) or self.layouts.conflict(layout) or 0 < layers < stages:
            return False
        shards = layout.get("fsdp", 1) * layout.get("cp", 1)
        if self.tied_rows and shards > 1 and self.tied_rows[0] % (shards * tp):
            return False
        if not with_ring and model.get("num_heads") % (tp * layout.get("ulysses", 1)):
            return False
        if dict(self.sizes.given).get("ep_size") == "auto":
            stage_ranks = prod(layout.get(dim, 1) for dim in DIMS if dim != "pp")
            ep = max(1, stage_ranks // (layout.get("etp", 1) * layout.get("ep_fsdp", 1)))
            if model.get("num_experts") % ep:
                return False
        return model.get("sequence_length") % sequence_parts(layout, along_tp) == 0


def placed(facts: Facts) -> Iterator[Placed]:
    """Yields the components that have a mesh."""
    for name in facts.meshes:
        yield Placed(facts, facts.recipe.components[name])


def lacking(
    one: Placed,
    size: str,
    found: tuple[str, Span, object],
    whether: str,
    code: str,
    lacks: str,
    help: str = "",
) -> Diagnostic:
    """Returns the diagnostic about an architecture that a library cannot divide by a size, or a note if that
    is unknown. The default of `help` names layouts that fit."""
    kind, at, answer = found
    span, seconds = one.span(size), (at.with_word(f"`model_type` is {kind}"),)
    if isinstance(answer, Unread):
        message = f"whether {whether} is unknown: {answer.why}"
        return Diagnostic("MC440", message, span, seconds, severity="note")
    return Diagnostic(code, lacks, span, seconds, help or one.help)


def _owner(facts: Facts, component: Component) -> str:
    """Returns the name of the component whose sizes a component uses; empty if these are wrong."""
    try:
        return sizes_of(facts.recipe, component)[0].name
    except NoMesh:
        return ""


def min_samples(facts: Facts, components: Collection[str]) -> int:
    """Returns the smallest number of samples that a stage divides among the data ranks of these
    components."""
    fewest = UNLIMITED
    for name, stage in facts.recipe.pipeline.items():
        if stage.component not in components or stage.kind != "call" or not facts.is_valid("pipeline", name):
            continue
        first_input = stage.inputs[0] if stage.inputs else None
        dispatch = (first_input.dispatch if first_input else None) or stage.dispatch
        mode = DISPATCH.get(dispatch.with_default(facts.endpoint(stage).dispatch).mode)
        execute = EXECUTE.get(facts.modes[name].execute)
        source = facts.recipe.pipeline.get(first_input.stages[0]) if first_input else stage
        is_divided = mode is not None and mode.is_by_data_rank and execute is not None and execute.is_joint
        if is_divided and source and source.samples and not dispatch.allow_empty and not dispatch.home:
            fewest = min(fewest, source.samples)
    return fewest


def nearest_that_fit(options: Iterable[str]) -> str:
    shown = list(dict.fromkeys(options))[:MAX_PROPOSALS]
    return f"nearest that fit: {'; '.join(shown)}" if shown else ""


CODES = {
    "auto": "MC401",
    "product": "MC410",
    "ulysses": "MC411",
    "experts": "MC412",
    "vpp": "MC413",
    "sequence_parallel": "MC414",
}
"""Rule about sizes -> code."""
NEEDED_SIZES = {"vpp": "pp_size", "sequence_parallel": "tp_size"}
"""Rule about sizes -> the size that is missing if it is broken."""


def named_mesh_exists(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """`parallel: COMPONENT` names another component of the same group, and the chain of components is not a
    circle."""
    name, named, groups = component.name, component.parallel, facts.recipe.groups
    other = facts.recipe.components.get(named) if isinstance(named, str) else None
    if other is None:
        return
    span = facts.value("components", name, "parallel")
    if _takes_own_mesh(facts, component):
        yield Diagnostic("MC402", f"component `{name}` takes its mesh from itself", span, missing=True)
    elif other.group != component.group and other.group in groups and component.group in groups:
        runs = f"`{other.name}` runs on `{other.group}`"
        seconds = (facts.value("components", other.name, "group").with_word(runs),)
        message = f"`{name}` runs on `{component.group}` and cannot take the mesh of `{other.name}`"
        help = "write sizes: only components of one group can share a mesh"
        yield Diagnostic("MC403", message, span, seconds, help)


def _takes_own_mesh(facts: Facts, component: Component) -> bool:
    seen: set[str] = set()
    here: Component | None = component
    while here is not None and isinstance(here.parallel, str) and here.name not in seen:
        seen.add(here.name)
        here = facts.recipe.components.get(here.parallel)
    return here is not None and here.name == component.name


def _is_ordered(sizes: Sizes) -> bool:
    return not sizes.order or sorted(sizes.order) == sorted(DIMS)


def order_names_all_dims(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    name, sizes = component.name, component.parallel
    is_valid = facts.is_valid("components", name, "parallel")
    if isinstance(sizes, Sizes) and not _is_ordered(sizes) and is_valid:
        message = f"`order` must name {', '.join(DIMS)}, each once"
        span = facts.value("components", name, "parallel", "order")
        yield Diagnostic("MC404", message, span, help="remove it for this order")


def sizes_fit_group(facts: Facts) -> Iterator[Diagnostic]:
    """The product of the sizes is the number of workers, and carved sizes divide their dims. Those of a
    group that do not fit its ranks are reported together. Sizes of a group with more devices than the
    cluster, or the group of `colocate`, has are not checked."""
    unfit: dict[str, list[Diagnostic]] = {}
    for name, component in facts.recipe.components.items():
        group, sizes = facts.group_of(component), component.parallel
        if group is None or not group.workers or not isinstance(sizes, Sizes) or not _is_ordered(sizes):
            continue
        host = facts.recipe.groups.get(group.colocate)
        exceeds_host = isinstance(group.ranks, int) and host is not None and group.devices > host.devices > 0
        is_beyond = exceeds_host or (facts.allocation is not None and group.name in facts.allocation.beyond)
        given, along_tp = dict(sizes.given), sizes.sequence_parallel
        if is_beyond or not facts.is_valid("components", name, "parallel"):
            continue
        if not settle(given, group.workers, along_tp).misfits:
            continue
        needs = Placed(facts, component).needs
        for misfit in settle(given, group.workers, along_tp, needs).misfits:
            wrong = _diagnostic(facts, component, sizes, misfit)
            if misfit.rule == "product":
                unfit.setdefault(component.group, []).append(wrong)
            else:
                yield wrong
    for first, *others in unfit.values():
        yield replace(first, seconds=(*first.seconds, *(one.primary for one in others if one.primary)))


def _diagnostic(facts: Facts, component: Component, sizes: Sizes, misfit: Misfit) -> Diagnostic:
    message = misfit.message
    if misfit.rule == "product":
        ranks = counted(facts.recipe.groups[component.group].workers, "rank")
        stated = dict(sizes.given)[misfit.size]
        message = f"`{misfit.size}` {stated} does not fit the {ranks} of group `{component.group}`"
    if misfit.rule == "auto":
        message = "only one size can be `auto`"
    span = facts.value("components", component.name, "parallel", misfit.size).with_word(misfit.drawn)
    help = f"nearest that fit: {'; '.join(misfit.fits)}" if misfit.fits else ""
    seconds = (_contradicted(facts, component, sizes, misfit),)
    if (each := facts.recipe.groups[component.group].gpus_per_worker) > 1 and misfit.rule == "product":
        help = f"remove `gpus_per_worker`, with which a process drives {each} devices; {help}"
    return Diagnostic(CODES[misfit.rule], message, span, seconds, help)


def _contradicted(facts: Facts, component: Component, sizes: Sizes, misfit: Misfit) -> Span:
    """Returns the span that contradicts a wrong size: that of another size, of `parallel` if a size is
    missing, or of the group's ranks."""
    name, given = component.name, dict(sizes.given)
    if misfit.rule == "auto":
        family = DIMS if misfit.size.removesuffix("_size") in DIMS else EXPERT_DIMS
        other = next(f"{dim}_size" for dim in family if given.get(f"{dim}_size") == "auto")
        return facts.value("components", name, "parallel", other).with_word("this is also auto")
    if misfit.rule not in NEEDED_SIZES:
        return _ranks(facts, component.group)
    needed = NEEDED_SIZES[misfit.rule]
    if needed in given:
        return facts.value("components", name, "parallel", needed).with_word(f"`{needed}` is 1")
    return facts.key("components", name, "parallel").with_word(f"it has no `{needed}`")


def _ranks(facts: Facts, name: str) -> Span:
    group = facts.recipe.groups[name]
    has = f"`{name}` has {counted(group.workers, 'rank')}"
    if group.devices != group.workers:
        devices = f"`{name}` has {group.devices} devices, {group.gpus_per_worker} a worker"
        has = f"{devices}: {counted(group.workers, 'rank')}"
    return facts.value("groups", name, "ranks").with_word(has)


# The layouts of a class


def _sizes_of(mesh: DeviceMesh) -> dict[str, int]:
    """Returns the sizes that `LAYOUTS` may restrict."""
    carved = {"ulysses": mesh.ulysses_size, "ep": mesh.ep_size, "etp": mesh.etp_size, "vpp": mesh.vpp_size}
    return {dim: carved[dim] if dim in carved else mesh.size(dim) for dim in LAYOUT_DIMS}


def class_supports_layout(facts: Facts, one: Placed) -> Iterator[Diagnostic]:
    """The mesh of a component has only dims, and no excluded pair of dims, according to `LAYOUTS` of its
    class."""
    name, found = one.name, facts.class_of(one.name)
    if found is None or not found.is_component:
        return
    layouts, sizes = one.layouts, _sizes_of(one.mesh)
    supported = listed(layouts.dims or ()) or "no dim"
    target = (facts.value("components", name, "_target_").with_word(f"`LAYOUTS` of `{found.target}`"),)
    if wrong := [dim for dim, size in sizes.items() if size > 1 and not layouts.supports(dim)]:
        used = "" if one.owner == name else f", whose mesh `{name}` takes"
        what = f"`{wrong[0]}`, which is {sizes[wrong[0]]} in `{one.owner}`{used}"
        help = "; ".join(filter(None, (f"it supports {supported}", one.help)))
        message = f"`{found.target}` does not support {what}"
        yield Diagnostic("MC415", message, one.span(f"{wrong[0]}_size"), target, help)
    elif pair := layouts.conflict(sizes):
        first, span = (one.span(f"{dim}_size").with_word(f"`{dim}` is {sizes[dim]}") for dim in pair)
        message = f"`{found.target}` does not support `{pair[0]}` together with `{pair[1]}`"
        yield Diagnostic("MC416", message, span, (first, *target), one.help)


def arguments_support_layout(facts: Facts, one: Placed) -> Iterator[Diagnostic]:
    """No argument is set that the class supports without some dims only, according to `LAYOUTS`."""
    mesh = one.mesh
    sizes = {**_sizes_of(mesh), SEQUENCE: mesh.size("tp") if mesh.sequence_parallel else 1}
    for path, dims in one.layouts.without.items():
        node = facts.argument(one.name, path) if facts.is_valid("components", one.name, *path) else None
        dim = next((dim for dim in dims if sizes[dim] > 1), "")
        if node is None or not plain(node) or not dim:
            continue
        argument = ".".join(path[1:])
        message = f"`{argument}` of `{one.name}` cannot be used with `{dim}`"
        key, word, other = f"{dim}_size", f"`{dim}` is {sizes[dim]}", f"use {dim} 1"
        if dim == SEQUENCE:
            key, word, other = dim, f"`{dim}` is true", f"`{dim}`"
        seconds = (one.span(key).with_word(word),)
        yield Diagnostic("MC417", message, node.span, seconds, f"leave out `{argument}`, or {other}")


def declarations_are_readable(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """The declarations of a class are valid literals."""
    found = facts.class_of(component.name)
    if found is None or not found.is_component:
        return
    for attribute, why in found.declares.wrong:
        span = facts.value("components", component.name, "_target_")
        message = f"`{attribute}` of `{found.target}` is not used: {why}"
        yield Diagnostic("MC526", message, span, severity="note")
