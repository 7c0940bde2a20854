"""MC4xx: whether a component's sizes make up the workers of its group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.fixes import renamed
from meshctl.recipe.model import Component, Sizes
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.layouts import LayoutNeeds
from meshctl.text.english import counted, did_you_mean
from meshctl.topology.sizes import DIMS, EXPERT_DIMS, Misfit, settle

CODES = {
    "auto": "MC401",
    "product": "MC410",
    "ulysses": "MC411",
    "experts": "MC412",
    "vpp": "MC413",
    "sequence_parallel": "MC414",
}
"""By the rule that the sizes break."""
KEY = re.compile(r"\w+_size|sequence_parallel")
NEEDS = {"vpp": "pp_size", "sequence_parallel": "tp_size"}
"""Rules by which one size needs another."""


def known_layout(facts: Facts) -> Iterator[Diagnostic]:
    """`parallel: sampler` names another component of the same group, without a circle."""
    components = facts.recipe.components
    for name, component in components.items():
        if not isinstance(component.parallel, str):
            continue
        span = facts.value("components", name, "parallel")
        other = components.get(component.parallel)
        if other is None and facts.is_named("components", component.parallel):
            continue
        if other is None:
            same = [
                other.name
                for other in components.values()
                if other.group == component.group and other.name != name
            ]
            help = did_you_mean(component.parallel, same) or "write sizes: {dp_size: 2}"
            message = f"there is no component `{component.parallel}` whose mesh `{name}` could take"
            yield Diagnostic(
                "MC402", message, span, help=help, fixes=renamed(span, component.parallel, same), missing=True
            )
        elif _leads_back(facts, component):
            yield Diagnostic("MC402", f"component `{name}` takes its own mesh", span, missing=True)
        elif (
            other.group != component.group
            and other.group in facts.recipe.groups
            and component.group in facts.recipe.groups
        ):
            says = facts.value("components", other.name, "group").with_word(
                f"`{other.name}` runs on `{other.group}`"
            )
            message = f"`{name}` runs on `{component.group}`, it cannot take the mesh of `{other.name}`"
            yield Diagnostic(
                "MC403", message, span, (says,), "a mesh is shared within one group; write sizes"
            )


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
        if order and sorted(order) != sorted(DIMS) and facts.is_valid("components", name, "parallel"):
            message = f"`order` must name {', '.join(DIMS)}, each once"
            yield Diagnostic("MC404", message, facts.value("components", name, "parallel", "order"))


def fits(facts: Facts) -> Iterator[Diagnostic]:
    """The sizes make up the workers of the group, and what is carved out of them divides them."""
    for name, component in facts.recipe.components.items():
        group = facts.group_of(component)
        sizes = component.parallel
        if (
            group is None
            or not group.workers
            or not isinstance(sizes, Sizes)
            or not facts.is_valid("components", name, "parallel")
        ):
            continue
        if sizes.order and sorted(sizes.order) != sorted(DIMS):
            continue
        settled = partial(settle, dict(sizes.given), group.workers, sizes.sequence_parallel)
        for misfit in (
            settled(LayoutNeeds(facts, component, sizes).needs).misfits if settled().misfits else ()
        ):
            yield _diagnostic(facts, component, sizes, misfit)


def _diagnostic(facts: Facts, component: Component, sizes: Sizes, misfit: Misfit) -> Diagnostic:
    """What the sizes alone say of a misfit, in the words of the recipe."""
    message = KEY.sub(r"`\g<0>`", misfit.message)
    if misfit.rule == "product":
        ranks = counted(facts.recipe.groups[component.group].workers, "rank")
        message = f"`{misfit.size}` {dict(sizes.given)[misfit.size]} does not fit the {ranks} of group `{component.group}`"
    if misfit.rule == "auto":
        message = "only one size can be auto"
    span = facts.value("components", component.name, "parallel", misfit.size).with_word(misfit.drawn)
    help = f"nearest that fit: {'; '.join(misfit.fits)}" if misfit.fits else ""
    says = _contradicted(facts, component, sizes, misfit)
    return Diagnostic(
        CODES[misfit.rule], message, span, (says,), help, fixes=_nearest(facts, component, sizes, misfit)
    )


def _nearest(facts: Facts, component: Component, sizes: Sizes, misfit: Misfit) -> tuple[Fix, ...]:
    """The edits to the one nearest layout, where every other changes more sizes. Ranks in another file are no
    reason to change this one."""
    if misfit.rule not in ("product", "ulysses", "experts") or not misfit.fits:
        return ()
    said = {key: size for key, size in sizes.given if isinstance(size, int)}
    ways = [
        {f"{dim}_size": int(size) for dim, size in re.findall(r"(\w+) (\d+)", fits)} for fits in misfit.fits
    ]
    if misfit.rule == "product":
        ways = [{**{f"{dim}_size": 1 for dim in DIMS}, **way} for way in ways]
    changes = [{key: size for key, size in way.items() if said.get(key, size) != size} for way in ways]
    workers = facts.recipe.groups[component.group].workers
    spans = {key: facts.value("components", component.name, "parallel", key) for key in changes[0]}
    alone = len(changes) == 1 or len(changes[0]) < len(changes[1])
    near = alone and all(
        span.file == facts.value("groups", component.group, "ranks").file for span in spans.values()
    )
    if not near or settle({**dict(sizes.given), **changes[0]}, workers, sizes.sequence_parallel).misfits:
        return ()
    return tuple(Fix(spans[key], str(said[key]), str(size)) for key, size in changes[0].items())


def _contradicted(facts: Facts, component: Component, sizes: Sizes, misfit: Misfit) -> Span:
    """What a size does not fit: another size, the one that is not there, or the group's ranks."""
    if misfit.rule == "auto":
        family = DIMS if misfit.size.removesuffix("_size") in DIMS else EXPERT_DIMS
        other = next(f"{dim}_size" for dim in family if dict(sizes.given).get(f"{dim}_size") == "auto")
        return facts.value("components", component.name, "parallel", other).with_word("this one is auto too")
    if misfit.rule in NEEDS:
        other = NEEDS[misfit.rule]
        if other in dict(sizes.given):
            return facts.value("components", component.name, "parallel", other).with_word(f"`{other}` is 1")
        return facts.key("components", component.name, "parallel").with_word(f"it says no `{other}`")
    return _ranks(facts, component.group)


def _ranks(facts: Facts, name: str) -> Span:
    group = facts.recipe.groups[name]
    says = f"`{name}` has {counted(group.workers, 'rank')}"
    if group.devices != group.workers:
        says = f"`{name}` has {group.devices} devices, {group.gpus_per_worker} a worker: {counted(group.workers, 'rank')}"
    return facts.value("groups", name, "ranks").with_word(says)


RULES = (known_layout, known_order, fits)
