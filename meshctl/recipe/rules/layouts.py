"""The needs that models, samples and component classes have of a layout, and the nearest layouts that satisfy
them.

Rules propose such layouts if sizes do not fit the ranks, a model, the samples, or the class.

Ulysses splits attention by heads. If its size does not divide the heads, the rest of the split is ring
attention, in which each rank has a part of the sequence. That is slower, so layouts without a ring are
proposed first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from math import prod

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Span
from meshctl.recipe.code.layouts import Layouts
from meshctl.recipe.code.model_config import model_types_in
from meshctl.recipe.code.modules import Unread
from meshctl.recipe.code.tp_plans import PP_PARTS, PP_PLAN, plan_of
from meshctl.recipe.meshes import NoMesh, sizes_of
from meshctl.recipe.model import Component, Sizes
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.model_facts import ModelSizes
from meshctl.topology.modes import DISPATCH, EXECUTE
from meshctl.topology.sizes import DIMS, MAX_PROPOSALS, NO_NEEDS, Needs, drawn, keeping

UNLIMITED = 1 << 40
"""A number above any number of samples."""


def sequence_parts(layout: Mapping[str, int], sequence_parallel: bool) -> int:
    """Returns the number of equal parts into which a sequence is split. Each cp rank has two parts, so that
    all ranks have the same work under a causal mask."""
    cp, tp = layout.get("cp", 1), layout.get("tp", 1) if sequence_parallel else 1
    return (2 * cp if cp > 1 else 1) * layout.get("ulysses", 1) * tp


@dataclass(frozen=True)
class LayoutNeeds:
    """The needs of the components that share a layout."""

    facts: Facts
    component: Component
    sizes: Sizes

    @cached_property
    def without_ring(self) -> Needs:
        """The needs without ring attention: ulysses must divide the heads of a tp rank."""
        return self._needs(with_ring=False)

    @cached_property
    def with_ring(self) -> Needs:
        """The needs if ring attention is allowed."""
        return self._needs(with_ring=True)

    @cached_property
    def needs(self) -> Needs:
        """The needs without ring attention if a layout satisfies them, otherwise those with it."""
        return self.without_ring if self._keeping(self.without_ring) else self.with_ring

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

    def _keeping(self, needs: Needs) -> list[dict[str, int]]:
        """Returns the nearest layouts that satisfy these needs, as sizes by dim."""
        given = dict(self.sizes.given)
        autos = [dim for dim in DIMS if given.get(f"{dim}_size") == "auto"]
        if autos:
            inferred: str | None = autos[0]
        else:
            inferred = None if "dp" in self.stated else "dp"
        workers = self.facts.recipe.groups[self.component.group].workers
        return keeping(self.stated, inferred, workers, needs)

    @cached_property
    def _sharing(self) -> list[str]:
        """The names of the components that share this layout."""
        facts, owner = self.facts, _owner(self.facts, self.component)
        return [name for name, other in facts.recipe.components.items() if _owner(facts, other) == owner]

    @cached_property
    def _models(self) -> list[ModelSizes]:
        models = (self.facts.models[name] for name in self._sharing)
        return [model for model in models if model.sizes]

    @cached_property
    def _declared(self) -> list[Layouts]:
        classes = (self.facts.class_of(name) for name in self._sharing)
        return [found.declares.layouts for found in classes if found and found.declares.layouts != Layouts()]

    @cached_property
    def _lacks_tp(self) -> bool:
        """True if the library has no plan for tp of one of the architectures, or `lora` cannot adapt a layer
        on tp."""
        plans = (self.facts.tp_plans.get(name) for name in self._sharing)
        lacks_plan = any(plan is not None and plan.exists is False for plan in plans)
        return lacks_plan or any(name in self.facts.not_adapted for name in self._sharing)

    @cached_property
    def _tied_rows(self) -> list[int]:
        tied = self.facts.tied_rows
        return [tied[name][0] for name in self._sharing if name in tied]

    @cached_property
    def _max_data_size(self) -> int:
        """The maximum number of data ranks with which each receives a sample."""
        return min_samples(self.facts, self._sharing)

    def _needs(self, *, with_ring: bool) -> Needs:
        # carved sizes (ulysses, vpp, experts) restrict dims, but are no factors of the number of ranks
        has_carved = any(
            size.removesuffix("_size") not in DIMS for size, _ in self.sizes.given
        )  # e.g. ulysses
        is_limited = self._max_data_size < UNLIMITED
        with_ring = with_ring and not any(layouts.ulysses for layouts in self._declared)
        if not (self._models or self._declared or is_limited or has_carved or self.sizes.sequence_parallel):
            return NO_NEEDS

        def size_fits(dim: str, size: int) -> bool:
            if size > 1 and not all(layouts.supports(dim) for layouts in self._declared):
                return False
            if dim == "pp" and size > 1 and any(lacks_stages(self.facts, name) for name in self._sharing):
                return False
            if dim == "tp":
                return not (size > 1 and self._lacks_tp) and not any(
                    model.undivided_by_tp(size) for model in self._models
                )
            if dim == "ep":
                return all(model.get("num_experts") % size == 0 for model in self._models)
            if dim == "ulysses" and not with_ring:
                return all(model.get("num_heads") % size == 0 for model in self._models)
            return True

        return Needs(size_fits, lambda layout: self._layout_fits(layout, with_ring))

    def _layout_fits(self, layout: Mapping[str, int], with_ring: bool) -> bool:
        if self.sizes.sequence_parallel and layout.get("tp", 1) == 1:
            return False
        data_size = layout.get("dp", 1) * layout.get("fsdp", 1) // layout.get("ulysses", 1)
        if data_size > self._max_data_size or any(some.conflict(layout) for some in self._declared):
            return False
        shards, tp = layout.get("fsdp", 1) * layout.get("cp", 1), layout.get("tp", 1)
        if shards > 1 and any(rows % (shards * tp) for rows in self._tied_rows):
            return False
        return all(self._model_fits(model, layout, with_ring) for model in self._models)

    def _model_fits(self, model: ModelSizes, layout: Mapping[str, int], with_ring: bool) -> bool:
        layers, stages = model.get("num_layers"), layout.get("pp", 1) * layout.get("vpp", 1)
        if layers and stages > layers:
            return False
        if not with_ring and model.get("num_heads") % (layout.get("tp", 1) * layout.get("ulysses", 1)):
            return False
        if model.get("num_experts") % self._inferred_ep(layout):
            return False
        return model.get("sequence_length") % sequence_parts(layout, self.sizes.sequence_parallel) == 0

    def _inferred_ep(self, layout: Mapping[str, int]) -> int:
        """Returns the size of ep if the recipe leaves it to be inferred, otherwise 1."""
        if dict(self.sizes.given).get("ep_size") != "auto":
            return 1
        stage_ranks = prod(layout.get(dim, 1) for dim in DIMS if dim != "pp")
        return max(1, stage_ranks // (layout.get("etp", 1) * layout.get("ep_fsdp", 1)))


def lacks_stages(facts: Facts, component: str) -> tuple[str, Span, Unread | None] | None:
    """Returns the architecture of a component whose class divides models by plans for pp of a library, if the
    library has none for it: its type, where that stands, and why the plan is unknown, or None."""
    tree = facts.config_values(component) if facts.declares(component).layouts.pp_plan else None
    code = facts.code_of(component)
    read = [(kind, at, plan_of(code, kind, PP_PLAN)) for kind, at in model_types_in(tree)] if tree else []
    if not read or any(not isinstance(plan, Unread) and {*plan} == PP_PARTS for _, _, plan in read):
        return None
    kind, at, plan = read[0]
    return kind, at, plan if isinstance(plan, Unread) else None


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
        if mode is None or not mode.is_by_data_rank or execute is None or not execute.is_joint:
            continue
        if source and source.samples and not dispatch.allow_empty and not dispatch.home:
            fewest = min(fewest, source.samples)
    return fewest


def nearest_that_fit(options: Iterable[str]) -> str:
    shown = list(dict.fromkeys(options))[:MAX_PROPOSALS]
    return f"nearest that fit: {'; '.join(shown)}" if shown else ""
