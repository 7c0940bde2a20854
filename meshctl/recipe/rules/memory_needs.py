"""The warnings about models that do not fit a device, and the changes with which they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.meshes import sizes_of
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.rank_bytes import Model, memory_of, model_of
from meshctl.text.english import listed, size
from meshctl.topology.memory import Adapter, DeviceMemory, Memory, Split
from meshctl.topology.sizes import divisors

MAX_DOUBLINGS = 6
"""The number of times that the present number of ranks is doubled to find one that fits."""
PROPOSED_RANK = 16
"""The `r` of the adapter that is proposed."""


def beyond_memory(facts: Facts) -> Iterator[Diagnostic]:
    """Yields a warning for each set of models that needs more than the memory of its device."""
    memory = memory_of(facts)
    for device in memory.devices:
        if device.total > device.device_memory > 0:
            yield _too_large(facts, memory, device)


def _too_large(facts: Facts, memory: Memory, device: DeviceMemory) -> Diagnostic:
    totals = {one.component: one.total for one in memory.components}
    largest = max(device.components, key=lambda name: totals[name])
    names = listed(device.components)
    need = "needs" if len(device.components) == 1 else "need"
    has = size(device.device_memory)
    message = f"{names} {need} {size(device.total)} on each device, which has {has}"
    owner = sizes_of(facts.recipe, facts.recipe.components[largest])[0].name
    path = ("components", owner, "parallel")
    span = facts.value(*path) if facts.is_named(*path) else facts.key("components", owner)
    second = facts.value("cluster", "device_memory").with_word(f"{has} each")
    space = device.device_memory - (device.total - totals[largest])
    options = list(_that_fit(facts, largest, space))
    help = f"what fits: {'; '.join(options)}" if options else ""
    return Diagnostic("MC450", message, span, (second,), help, "warning")


def _that_fit(facts: Facts, component: str, space: int) -> Iterator[str]:
    """Yields changes of a component, each of which alone reduces its bytes to at most `space`."""
    model = model_of(facts, facts.recipe.components[component])
    found = facts.class_of(component)
    if model is None or found is None or found.declares.memory is None:
        return
    if found.declares.layouts.supports("fsdp"):
        yield from _layouts_that_fit(model, facts.meshes[component].data_size, space)
    is_argument = {key: isinstance(item, tuple) for key, item in found.declares.memory.items()}
    training = model.training
    is_whole = training.is_trained and training.adapter is None
    short = replace(model, training=replace(training, dtype="bfloat16"))
    if is_argument.get("dtype") and not is_whole and training.dtype == "float32" and _fits(short, space):
        yield "dtype: bfloat16"
    adapted = replace(model, training=replace(training, adapter=Adapter(PROPOSED_RANK)))
    if is_argument.get("lora") and is_whole and _fits(adapted, space):
        yield f"lora: {{r: {PROPOSED_RANK}}}"


def _layouts_that_fit(model: Model, data_size: int, space: int) -> Iterator[str]:
    """Yields the smallest fsdp size on the present ranks, or else on a multiple of them."""
    tp = model.split.tp
    sizes = [fsdp for fsdp in divisors(data_size) if fsdp > model.split.fsdp]
    multiples = [data_size << doubled for doubled in range(1, MAX_DOUBLINGS + 1)]
    for fsdp in [*sizes, *multiples]:
        if _fits(replace(model, split=Split(max(1, data_size // fsdp), fsdp, tp)), space):
            on = f" on {fsdp * tp} ranks" if fsdp > data_size else ""
            yield f"fsdp_size: {fsdp}{on}"
            return


def _fits(model: Model, space: int) -> bool:
    return model.rank_bytes.total <= space
