"""The facts about the model of a component: its sizes, and the plan that splits it over tp ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Span
from meshctl.recipe.code.modules import Unread
from meshctl.recipe.code.tp_plans import Plan


@dataclass(frozen=True)
class ModelSizes:
    """The known sizes of a component's model."""

    sizes: Mapping[str, int]
    spans: Mapping[str, Span]
    has_tp_plan: bool = False
    """True if a plan of a library splits it over tp ranks. Such a plan does not replicate kv heads, and the
    shards of a vocabulary may differ in size."""

    def get(self, size: str) -> int:
        """Returns a size; 0 if it is unknown."""
        return self.sizes.get(size, 0)

    def stated(self, *sizes: str) -> tuple[Span, ...]:
        """Returns the spans of those of the sizes that are known, each labelled with its number."""
        known = [size for size in sizes if size in self.sizes]
        return tuple(self.spans[size].with_word(f"`{size}` is {self.sizes[size]}") for size in known)

    def repeats_kv_heads(self, tp: int) -> bool:
        """Returns whether there are fewer kv heads than tp ranks, so that each kv head is on several
        ranks."""
        kv_heads = self.get("num_kv_heads")
        return 0 < kv_heads < tp and tp % kv_heads == 0

    def undivided_by_tp(self, tp: int) -> list[str]:
        """Returns the sizes that tp does not divide. If there are fewer kv heads than ranks, and they can be
        replicated, their number must divide tp instead."""
        kv_heads = self.get("num_kv_heads")
        undivided = [size for size in ("num_heads", "num_kv_heads", "hidden_size") if self.get(size) % tp]
        can_repeat = kv_heads and tp % kv_heads == 0 and not self.has_tp_plan
        if can_repeat and "num_kv_heads" in undivided:
            undivided.remove("num_kv_heads")
        return undivided


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
        modules = {layer: layer for layer in linear_layers(self.model_type)}
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
