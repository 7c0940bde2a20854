"""MC450 and MC472: compares models with `cluster.device_memory`, and their dtypes with small updates."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.declarations import TRAINED_BY
from meshctl.recipe.rules.facts import Facts

SHORT = ("bfloat16", "float16", "half")


def models_fit_device(facts: Facts) -> Iterator[Diagnostic]:
    """The models on a device need at most its memory."""
    if facts.recipe.cluster.device_memory and facts.is_valid("cluster"):
        # Imported here, because most recipes do not state the memory.
        from meshctl.recipe.rules.memory_needs import beyond_memory

        yield from beyond_memory(facts)


def updates_are_not_rounded_away(facts: Facts) -> Iterator[Diagnostic]:
    """Weights that an optimizer of torch changes are stored in more than 16 bits."""
    for name in dict.fromkeys(stage.component for stage in facts.recipe.pipeline.values()):
        dtype, optimizer = (facts.memory_argument(name, key) for key in ("dtype", "optimizer"))
        memory = facts.declares(name).memory or {}
        is_own = optimizer and "." in str(optimizer.value) and not str(optimizer.value).startswith("torch.")
        calls = [one for one in facts.recipe.pipeline.values() if one.component == name]
        trains = any(one.kind == "call" and one.method in memory.get(TRAINED_BY, ()) for one in calls)
        if dtype is None or dtype.value not in SHORT or not trains or is_own:
            continue
        if facts.memory_argument(name, "lora") is None:
            message = f"`{name}` trains weights in {dtype.value}, which rounds most small updates away"
            help = "leave it out, and compute in 16 bits: compute_dtype: bfloat16"
            help = help if isinstance(memory.get("compute_dtype"), tuple) else "store them in float32"
            yield Diagnostic("MC472", message, dtype.span, help=help, severity="warning")


RULES = (models_fit_device, updates_are_not_rounded_away)
