"""MC434, MC437, MC468 and MC469: compares the layers of a model with the pipeline stages of its layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose.yaml_tree import plain
from meshctl.recipe.meshes import sizes_of
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.layouts import LayoutNeeds, lacks_stages, nearest_that_fit
from meshctl.recipe.rules.models import Fitted, fitted_models
from meshctl.text.english import counted
from meshctl.topology.stage_split import SPLITS, by_count


def stages_have_layers(facts: Facts) -> Iterator[Diagnostic]:
    """Every pipeline stage has at least one layer, and the numbers that an argument states fit. Warns if the
    numbers of layers differ, and no argument states that."""
    for one in fitted_models(facts):
        pp, vpp = one.mesh.size("pp"), one.mesh.vpp_size
        layers, stages = one.model.get("num_layers"), pp * vpp
        if not layers or stages == 1:
            continue
        split = facts.argument(one.component.name, facts.declares(one.component.name).layouts.split)
        if layers < stages:
            yield _too_few(facts, one, layers)
        elif split is not None:
            wrong = _wrong_split(plain(split), layers, stages)
            if wrong:
                name, fitting = one.component.name, [len(own) for own in by_count(layers, stages)]
                message = f"`split` of `{name}` {wrong}"
                seconds = (_drawn(facts, one), *one.model.stated("num_layers"))
                yield Diagnostic("MC468", message, split.span, seconds, f"nearest that fits: {fitting}")
        elif layers % stages:
            yield _uneven(facts, one, layers)


def _drawn(facts: Facts, one: Fitted) -> Span:
    pp, vpp = one.mesh.size("pp"), one.mesh.vpp_size
    drawn = f"pp {pp} x vpp {vpp} = {pp * vpp}" if vpp > 1 else f"pp {pp}"
    return one.span(facts, "vpp_size" if vpp > 1 else "pp_size").with_word(drawn)


def _too_few(facts: Facts, one: Fitted, layers: int) -> Diagnostic:
    pp, vpp = one.mesh.size("pp"), one.mesh.vpp_size
    has = f"`{one.component.name}` has {counted(layers, 'layer')} for {counted(pp * vpp, 'pipeline stage')}"
    message, fewer = f"{has}, so some stages would have none", layers // pp
    is_possible = vpp > 1 and fewer > 0 and one.fits_with(one.layout.with_ring, vpp=fewer)
    options = [f"vpp {fewer}"] if is_possible else []
    help = nearest_that_fit([*options, *one.layout.proposals])
    return Diagnostic("MC434", message, _drawn(facts, one), one.model.stated("num_layers"), help)


def _uneven(facts: Facts, one: Fitted, layers: int) -> Diagnostic:
    name, stages = one.component.name, one.mesh.size("pp") * one.mesh.vpp_size
    least, more = divmod(layers, stages)
    others = "the other" if more + 1 == stages else "the others"
    numbers = f"{more} {'has' if more == 1 else 'have'} {least + 1}, {others} {least}"
    message = f"the {layers} layers of `{name}` cannot be divided evenly over {stages} stages: {numbers}"
    help = "the component must distribute them in this way"
    if argument := facts.declares(name).layouts.split:
        help = f"`{'.'.join(argument)}: cost` also counts the head, which the last stage has"
    seconds = one.model.stated("num_layers")
    return Diagnostic("MC437", message, _drawn(facts, one), seconds, help, "warning")


def _wrong_split(split: object, layers: int, stages: int) -> str:
    """Returns why a value of `split` is wrong; empty if it is right."""
    if isinstance(split, str):
        return "" if split in SPLITS else f"is none of {' and '.join(SPLITS)}, and no list of numbers"
    if not isinstance(split, Sequence) or not all(type(one) is int and one > 0 for one in split):
        return "contains a value other than a positive integer"
    if len(split) != stages:
        return f"has {counted(len(split), 'number')} for {counted(stages, 'pipeline stage')}"
    if sum(split) != layers:
        return f"has {counted(sum(split), 'layer')}, and the model has {layers}"
    return ""


def architecture_has_stages(facts: Facts) -> Iterator[Diagnostic]:
    """The library has a plan by which pipeline stages divide the architecture."""
    for name, mesh in facts.meshes.items():
        found = lacks_stages(facts, name) if mesh.size("pp") > 1 else None
        if found is None:
            continue
        kind, at, unknown = found
        component = facts.recipe.components[name]
        owner, sizes = sizes_of(facts.recipe, component)
        span = facts.value("components", owner.name, "parallel", "pp_size")
        seconds = (at.with_word(f"`model_type` is {kind}"),)
        if unknown:
            message = f"whether pp can divide the layers of `{kind}` in `{name}` is unknown: {unknown.why}"
            yield Diagnostic("MC440", message, span, seconds, severity="note")
        else:
            message = f"`pp_size` is {mesh.size('pp')}, but transformers has no plan that divides `{kind}`"
            yield Diagnostic("MC469", message, span, seconds, LayoutNeeds(facts, component, sizes).help)


RULES = (stages_have_layers, architecture_has_stages)
