"""MC4xx: whether a component's sizes make up the workers of its group."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from meshctl.diagnostics import Diagnostic, Span
from meshctl.mesh import DIMS, MeshError
from meshctl.recipe.model import Component, Sizes
from meshctl.recipe.placement import mesh
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.words import counted, did_you_mean

Dims = dict[str, int]
SHOWN = 2
"""How many layouts that fit are proposed."""


def known_layout(facts: Facts) -> Iterator[Diagnostic]:
    """`parallel: sampler` names another component of the same group, without a circle."""
    components = facts.recipe.components
    for name, component in components.items():
        if not isinstance(component.parallel, str):
            continue
        span = facts.value("components", name, "parallel")
        other = components.get(component.parallel)
        if other is None and facts.names("components", component.parallel):
            continue
        if other is None:
            same = [other.name for other in components.values() if other.group == component.group and other.name != name]
            help = did_you_mean(component.parallel, same) or "write sizes: {dp_size: 2}"
            yield Diagnostic("MC402", f"there is no component `{component.parallel}` whose mesh `{name}` could take", span, help=help)
        elif _leads_back(facts, component):
            yield Diagnostic("MC402", f"component `{name}` takes its own mesh", span)
        elif other.group != component.group and other.group in facts.recipe.groups and component.group in facts.recipe.groups:
            says = facts.value("components", other.name, "group").with_word(f"`{other.name}` runs on `{other.group}`")
            message = f"`{name}` runs on `{component.group}`, it cannot take the mesh of `{other.name}`"
            yield Diagnostic("MC403", message, span, (says,), "a mesh is shared within one group; write sizes")


def _leads_back(facts: Facts, component: Component) -> bool:
    seen: list[str] = []
    here: Component | None = component
    while here is not None and isinstance(here.parallel, str) and here.name not in seen:
        seen.append(here.name)
        here = facts.recipe.components.get(here.parallel)
    return here is not None and here.name == component.name and isinstance(here.parallel, str)


def known_order(facts: Facts) -> Iterator[Diagnostic]:
    for name, component in facts.recipe.components.items():
        order = component.parallel.order if isinstance(component.parallel, Sizes) else ()
        if order and sorted(order) != sorted(DIMS) and facts.right("components", name, "parallel"):
            message = f"`order` must name {', '.join(DIMS)}, each once"
            yield Diagnostic("MC404", message, facts.value("components", name, "parallel", "order"))


def fits(facts: Facts) -> Iterator[Diagnostic]:
    """The sizes multiply to the workers of the group."""
    for name, component in facts.recipe.components.items():
        group = facts.group_of(component)
        sizes = component.parallel
        if group is None or not group.workers or not isinstance(sizes, Sizes) or not facts.right("components", name, "parallel"):
            continue
        if sizes.order and sorted(sizes.order) != sorted(DIMS):
            continue
        autos = [key for key, size in sizes.given if size == "auto"]
        if len(autos) > 1:
            one, other = (facts.value("components", name, "parallel", key) for key in autos[:2])
            yield Diagnostic("MC401", "only one size can be auto", other, (one.with_word("this one is auto too"),))
            continue
        try:
            mesh(sizes, group.workers, group.device_type)
        except MeshError:
            yield _misfit(facts, component, sizes, group.workers)


def _misfit(facts: Facts, component: Component, sizes: Sizes, workers: int) -> Diagnostic:
    """The size to change is the one that the nearest layout changes."""
    said = {key.removesuffix("_size"): size for key, size in sizes.given if isinstance(size, int)}
    ulysses = said.pop("ulysses", 1)
    inferred = next((key.removesuffix("_size") for key, size in sizes.given if size == "auto"), None if "dp" in said else "dp")
    ranks = _ranks(facts, component.group, workers)
    if _product_fits(said, inferred, workers):
        return _bad_ulysses(facts, component, said, inferred, ulysses, workers, ranks)
    options = list(nearest_fits(said, inferred, ulysses, workers))
    wrong = next((dim for dim in reversed(said) if options and options[0][dim] != said[dim]), next(reversed(said), "dp"))
    span = facts.value("components", component.name, "parallel", f"{wrong}_size")
    drawn = _drawn(_filled(said, inferred, workers))
    message = f"`{wrong}_size` {said[wrong]} does not fit the {counted(workers, 'rank')} of group `{component.group}`"
    total = prod(_filled(said, inferred, workers).values())
    product = f"{drawn} = {total}"
    if total == said[wrong]:
        product = f"{drawn} {'is more than' if total > workers else 'does not divide'} {workers}"
    return Diagnostic("MC410", message, span.with_word(product), (ranks,), _proposed(options))


def _ranks(facts: Facts, group: str, workers: int) -> Span:
    placed = facts.recipe.groups[group]
    says = f"`{group}` has {counted(workers, 'rank')}"
    if placed.devices != workers:
        says = f"`{group}` has {placed.devices} devices, {placed.gpus_per_worker} a worker: {counted(workers, 'rank')}"
    return facts.value("groups", group, "ranks").with_word(says)


def _product_fits(said: Dims, inferred: str | None, workers: int) -> bool:
    rest = prod(said.values())
    return workers % rest == 0 if inferred else rest == workers


def _filled(said: Dims, inferred: str | None, workers: int) -> Dims:
    """The sizes with the inferred one as large as it can be, outermost first."""
    room = workers // prod(said.values())
    sizes = {**said, inferred: room} if inferred and room > 1 else said
    return {dim: sizes[dim] for dim in DIMS if dim in sizes}


def _drawn(sizes: Dims) -> str:
    """dp 2 x tp 4; a dim of size 1 is no dim."""
    return " x ".join(f"{dim} {sizes[dim]}" for dim in DIMS if sizes.get(dim, 1) > 1) or "one rank"


def _proposed(options: list[Dims]) -> str:
    return f"nearest that fit: {'; '.join(map(_drawn, options[:SHOWN]))}" if options else ""


def nearest_fits(said: Dims, inferred: str | None, ulysses: int, workers: int) -> Iterator[Dims]:
    """Complete layouts that fit all at once, those that change least first."""
    divisors = [size for size in range(1, min(workers, 4096) + 1) if workers % size == 0]
    candidates = {dim: sorted((abs(size - was), size) for size in divisors)[:8] for dim, was in said.items()}
    found: list[tuple[int, tuple[int, ...], Dims]] = []
    for sizes in product(*candidates.values()):
        layout = {dim: size for dim, (_, size) in zip(candidates, sizes, strict=True)}
        if not _product_fits(layout, inferred, workers):
            continue
        if inferred:
            layout[inferred] = workers // prod(layout.values())
        if (layout.get("dp", 1) * layout.get("fsdp", 1)) % ulysses:
            continue
        change = sum(abs(layout[dim] - was) for dim, was in said.items())
        found.append((change, tuple(layout[dim] for dim in reversed(said)), {dim: layout[dim] for dim in DIMS if dim in layout}))
    return (layout for _, _, layout in sorted(found, key=lambda one: one[:2]))


def _bad_ulysses(
    facts: Facts, component: Component, said: Dims, inferred: str | None, ulysses: int, workers: int, ranks: Span
) -> Diagnostic:
    sizes = _filled(said, inferred, workers)
    data = sizes.get("dp", 1) * sizes.get("fsdp", 1)
    fitting = [str(size) for size in range(1, min(data, 4096) + 1) if data % size == 0]
    span = facts.value("components", component.name, "parallel", "ulysses_size")
    message = f"`ulysses_size` {ulysses} is carved out of dp x fsdp and does not divide {data}"
    return Diagnostic("MC411", message, span.with_word(f"{_drawn(sizes)}: dp x fsdp = {data}"), (ranks,), f"these do: {', '.join(fitting)}")


RULES = (known_layout, known_order, fits)
