"""MC450: compares the bytes of models on a device with `cluster.device_memory`."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.rules.facts import Facts


def models_fit_device(facts: Facts) -> Iterator[Diagnostic]:
    """The models on a device need at most its memory."""
    if facts.recipe.cluster.device_memory and facts.is_valid("cluster"):
        # Imported here, because most recipes do not state the memory.
        from meshctl.recipe.rules.memory_needs import beyond_memory

        yield from beyond_memory(facts)


RULES = (models_fit_device,)
