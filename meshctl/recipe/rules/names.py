"""MC305, MC328, MC402, MC500, MC512, MC530, MC534 and MC560: the groups, components and stages to which a
recipe refers exist.

An unknown name is reported once, with all places that use it. If it is similar to a group, component or stage
to which nothing refers, the definition is probably misspelt and is reported instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.fields import PARALLEL
from meshctl.recipe.fixes import renamed
from meshctl.recipe.model import Stage
from meshctl.recipe.rules.facts import Facts, input_path
from meshctl.recipe.rules.home import homes_of
from meshctl.recipe.suggestions import called, odd_letter
from meshctl.text.english import did_you_mean, nearest, similar

MAX_SECONDS = 4
"""Maximum number of further places of an unknown name that a report shows."""
NOUNS = {"groups": "group", "components": "component", "pipeline": "stage"}


@dataclass(frozen=True)
class Reference:
    """A reference of the recipe to a group, a component or a stage."""

    top: str
    name: str
    span: Span
    code: str
    message: str
    """The message if the name does not exist."""
    own: str = ""
    """The name of the group, component or stage that contains the reference. It is not suggested."""
    after: str = ""
    """The text after the name at the span, such as the method of `call`."""
    options: tuple[str, ...] | None = None
    """The names to suggest; None for all names in `top`."""
    help: str = ""
    """The help if no name is similar."""


def references(facts: Facts) -> Iterator[Reference]:
    """Yields all references whose values are valid."""
    yield from _groups(facts)
    yield from _components(facts)
    yield from _stages(facts)


def _groups(facts: Facts) -> Iterator[Reference]:
    for name, component in facts.recipe.components.items():
        if component.group and facts.is_valid("components", name, "group"):
            span = facts.value("components", name, "group")
            message = f"component `{name}` runs on group `{component.group}`, which does not exist"
            yield Reference("groups", component.group, span, "MC500", message)
    for name, group in facts.recipe.groups.items():
        if group.colocate and group.device_type != "cpu":
            span = facts.value("groups", name, "colocate")
            message = f"group `{name}` shares the devices of group `{group.colocate}`, which does not exist"
            yield Reference("groups", group.colocate, span, "MC305", message, own=name)
    for elastic in facts.recipe.run.elastic:
        span = facts.key("run", "elastic", elastic.group)
        message = f"group `{elastic.group}` of `run.elastic` does not exist"
        yield Reference("groups", elastic.group, span, "MC328", message)


def _components(facts: Facts) -> Iterator[Reference]:
    for name, stage in facts.recipe.pipeline.items():
        call_key = "call" if stage.kind == "call" else "sync"
        for key, component in ((call_key, stage.component), ("to", stage.to)):
            span, node = facts.value("pipeline", name, key), facts.node("pipeline", name, key)
            text = str(node.value) if node else ""
            if not component or not facts.is_valid("pipeline", name, key) or text in facts.targets:
                continue  # a class in place of a component is another mistake
            method = text[len(component) :]
            message = f"component `{component}` does not exist"
            yield Reference("components", component, span, "MC512", message, after=method)
    for name, given in facts.recipe.components.items():
        if isinstance(given.parallel, str):
            span = facts.value("components", name, "parallel")
            same = tuple(one.name for one in facts.recipe.components_of(given.group) if one.name != name)
            message = f"component `{given.parallel}`, whose mesh `{name}` takes, does not exist"
            size = called(given.parallel, PARALLEL.keys)
            yield Reference(
                *("components", given.parallel, span, "MC402", message, name),
                options=() if size else same,
                help=f"write sizes: {{{size or 'dp_size'}: 2}}",
            )


def _stages(facts: Facts) -> Iterator[Reference]:
    names = _names_in_blocks(facts)
    for name, stage in facts.recipe.pipeline.items():
        for other, path in named_stages(stage):
            span = facts.value("pipeline", name, *path)
            message, options = f"stage `{other}` does not exist", names[stage.block]
            if (owner := other.partition(".")[0]) in facts.recipe.components:
                message = f"{message}: `{owner}` is a component, and a stage takes the value of a stage"
                calls = [one for one in facts.recipe.pipeline.values() if one.component == owner]
                options = tuple(one.name for one in calls if one.kind == "call" and one is not stage)
            yield Reference("pipeline", other, span, "MC530", message, name, options=options)
        for one in homes_of(stage):
            span = facts.value("pipeline", name, *one.path)
            message = f"stage `{one.home}` of `home` does not exist"
            yield Reference("pipeline", one.home, span, "MC534", message, name, options=names[stage.block])
    for block in facts.recipe.blocks.values():
        is_own = f"{block.name}.{block.over}" in block.stages  # another rule reports that
        if block.over and not is_own and facts.is_valid("pipeline", block.name, "repeat"):
            span = facts.value("pipeline", block.name, "repeat", "over")
            message = f"stage `{block.over}`, given as `over` of block `{block.name}`, does not exist"
            yield Reference("pipeline", block.over, span, "MC530", message)
        for index, other in enumerate(block.after):
            span = facts.item("pipeline", block.name, "after", index=index)
            yield Reference("pipeline", other, span, "MC530", f"stage `{other}` does not exist")
    for _, metric, span in facts.named_metrics() if facts.recipe.pipeline else ():
        other = _stage_of(facts, metric)
        message = f"stage `{other}` of metric `{metric}` does not exist"
        yield Reference("pipeline", other, span, "MC560", message, after=metric[len(other) :])


def _stage_of(facts: Facts, metric: str) -> str:
    """Returns the name of the stage in a metric; of a misspelt block, the name with the inner stage."""
    name, rest = facts.recipe.metric(metric)
    inner = f"{name}.{rest.partition('.')[0]}"
    is_inner = name not in facts.recipe.pipeline and "." in rest and nearest(inner, facts.recipe.pipeline)
    return inner if is_inner else name


def _names_in_blocks(facts: Facts) -> dict[str, tuple[str, ...] | None]:
    """Returns block -> the names that may be meant in its stages: those of its other stages, as they are
    named there, and those outside. None for stages of no block, where all names may be meant."""
    outside = tuple(name for name, stage in facts.recipe.pipeline.items() if not stage.block)
    names: dict[str, tuple[str, ...] | None] = {"": None}
    for block in facts.recipe.blocks.values():
        names[block.name] = (*(name.partition(".")[2] for name in block.stages), *outside)
    return names


def named_stages(stage: Stage) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (name of a stage, key path below `stage`) for each stage to which a stage refers."""
    for given in stage.inputs:
        for index, other in enumerate(given.stages):
            yield other, input_path(given, index)
    for index, other in enumerate(stage.after):
        yield other, ("after", str(index)) if len(stage.after) > 1 else ("after",)


@dataclass
class _Names:
    """The names of `groups`, `components` or `pipeline`: the defined ones, the used ones, and those that are
    used and not defined."""

    defined: tuple[str, ...]
    used: set[str] = field(default_factory=set)
    missing: dict[str, list[Reference]] = field(default_factory=dict)

    @cached_property
    def unused(self) -> tuple[str, ...]:
        return tuple(name for name in self.defined if name not in self.used)


def names_exist(facts: Facts) -> Iterator[Diagnostic]:
    defined: Mapping[str, Mapping[str, object]] = {
        "groups": facts.recipe.groups,
        "components": facts.recipe.components,
        "pipeline": facts.recipe.pipeline,
    }
    by_top = {top: _Names(tuple(names)) for top, names in defined.items()}
    for one in references(facts):
        names = by_top[one.top]
        if facts.is_named(one.top, one.name):
            names.used.add(one.name)
        else:
            names.missing.setdefault(one.name, []).append(one)
    for names in by_top.values():
        for name, some in names.missing.items():
            misspelt = nearest(name, names.unused) if len(some) > 1 else ""
            yield _definition(facts, misspelt, name, some) if misspelt else _missing(names, some)


def _definition(facts: Facts, name: str, meant: str, some: list[Reference]) -> Diagnostic:
    """Returns the diagnostic for a name that is misspelt in its definition."""
    (block, _, inner), (meant_block, _, meant_inner) = name.partition("."), meant.partition(".")
    if inner and inner == meant_inner:
        name, meant = block, meant_block
    span, noun = facts.key(some[0].top, name), NOUNS[some[0].top]
    seconds = tuple(one.span.with_word(f"`{meant}` is used here") for one in some[:MAX_SECONDS])
    message = f"{noun} `{meant}` is used {len(some)} times but does not exist; `{name}` is never used"
    fixes = renamed(span, name, [meant])
    return Diagnostic(
        some[0].code, message, span, seconds, f"did you mean `{meant}`?", fixes=fixes, missing=True
    )


def _missing(names: _Names, some: list[Reference]) -> Diagnostic:
    first = some[0]
    options = names.defined if first.options is None else first.options
    others = [other for other in similar(first.name, options) if other != first.own]
    near = nearest(first.name, others)
    help = f"did you mean `{near}`?"
    if not near:
        help = did_you_mean("", (other for other in options if other != first.own)) or first.help
    fixes = tuple(fix for one in some for fix in renamed(one.span, one.name, others, one.after))
    parts = first.name.split()
    if odd := odd_letter(first.name):
        help = f"{odd}; {help}"
    if first.code == "MC530" and len(parts) > 1 and set(parts) <= set(options):
        help, fixes = f"write `,` between the names of the stages: [{', '.join(parts)}]", ()
    seconds = tuple(one.span.with_word("and here") for one in some[1 : MAX_SECONDS + 1])
    return Diagnostic(first.code, first.message, first.span, seconds, help, fixes=fixes, missing=True)


RULES = (names_exist,)
