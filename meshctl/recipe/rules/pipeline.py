"""MC51x to MC55x, MC572 to MC577 and MC582 to MC585: the names to which a recipe refers, the order of stages,
blocks of stages that run several times in a step (`repeat`), and those whose passes run at their own pace
(`repeat: {take: ...}`).

An unknown name is reported once, with all places that use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.tables import parameters_of
from meshctl.recipe.fields import PARALLEL
from meshctl.recipe.fixes import renamed
from meshctl.recipe.mistakes import called, odd_letter
from meshctl.recipe.model import Block, Stage
from meshctl.recipe.rules.facts import Facts, input_path
from meshctl.recipe.rules.flow import homes_of
from meshctl.recipe.rules.rollouts import columns_given_to, loss_of
from meshctl.text.english import counted, did_you_mean, listed, nearest
from meshctl.topology.modes import COLLECT, DISPATCH
from meshctl.topology.take import staleness

MAX_SECONDS = 4
"""Maximum number of further places of an unknown name that a report shows."""
KnownBlock = Block
"""A block whose keys and stages are valid, and take stages that exist."""


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
    outside = [name for name, stage in facts.recipe.pipeline.items() if not stage.block]
    blocks = facts.recipe.blocks.values()
    # A stage of a block may mean its other stages, as they are named there, and those outside.
    names = {one.name: (*map(_inner, one.stages), *outside) for one in blocks}
    for name, stage in facts.recipe.pipeline.items():
        for other, path in named_stages(stage):
            span = facts.value("pipeline", name, *path)
            message, options = f"stage `{other}` does not exist", names.get(stage.block)
            if (owner := other.partition(".")[0]) in facts.recipe.components:
                message = f"{message}: `{owner}` is a component, and a stage takes the value of a stage"
                calls = [one for one in facts.recipe.pipeline.values() if one.component == owner]
                options = tuple(one.name for one in calls if one.kind == "call" and one is not stage)
            yield Reference("pipeline", other, span, "MC530", message, name, options=options)
        for one in homes_of(stage):
            span = facts.value("pipeline", name, *one.path)
            message = f"stage `{one.home}` of `home` does not exist"
            yield Reference(
                "pipeline", one.home, span, "MC534", message, name, options=names.get(stage.block)
            )
    for block in blocks:
        is_own = f"{block.name}.{block.over}" in block.stages  # another rule reports that
        if block.over and not is_own and facts.is_valid("pipeline", block.name, "repeat"):
            span = facts.value("pipeline", block.name, "repeat", "over")
            message = f"stage `{block.over}`, given as `over` of block `{block.name}`, does not exist"
            yield Reference("pipeline", block.over, span, "MC530", message)
        for index, other in enumerate(block.after):
            span = facts.item("pipeline", block.name, "after", index=index)
            yield Reference("pipeline", other, span, "MC530", f"stage `{other}` does not exist")
    for metric in facts.metrics if facts.recipe.pipeline else ():
        message = f"stage `{metric.stage}` of metric `{metric.text}` does not exist"
        after = metric.text[len(metric.stage) :]
        yield Reference("pipeline", metric.stage, metric.span, "MC560", message, after=after)


def named_stages(stage: Stage) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (name of a stage, key path below `stage`) for each stage to which a stage refers."""
    for given in stage.inputs:
        for index, other in enumerate(given.stages):
            yield other, input_path(given, index)
    for index, other in enumerate(stage.after):
        yield other, ("after", str(index)) if len(stage.after) > 1 else ("after",)


def names_exist(facts: Facts) -> Iterator[Diagnostic]:
    recipe = facts.recipe
    defined = {"groups": [*recipe.groups], "components": [*recipe.components], "pipeline": [*recipe.pipeline]}
    missing: dict[tuple[str, str], list[Reference]] = {}
    for one in (*_groups(facts), *_components(facts), *_stages(facts)):
        if not facts.is_named(one.top, one.name):
            missing.setdefault((one.top, one.name), []).append(one)
    for (top, _), some in missing.items():
        yield _missing(defined[top], some)


def _missing(defined: Sequence[str], some: list[Reference]) -> Diagnostic:
    first = some[0]
    options = defined if first.options is None else first.options
    others = [other for other in options if other != first.own]
    near = nearest(first.name, others)
    help = f"did you mean `{near}`?"
    if not near:
        help = did_you_mean("", others) or first.help
    fixes = tuple(fix for one in some for fix in renamed(one.span, one.name, others, one.after))
    parts = first.name.split()
    if odd := odd_letter(first.name):
        help = f"{odd}; {help}"
    if first.code == "MC530" and len(parts) > 1 and set(parts) <= set(options):
        help, fixes = f"write `,` between the names of the stages: [{', '.join(parts)}]", ()
    seconds = tuple(one.span.with_word("and here") for one in some[1 : MAX_SECONDS + 1])
    return Diagnostic(first.code, first.message, first.span, seconds, help, fixes=fixes, missing=True)


def components_have_pipeline(facts: Facts) -> Iterator[Diagnostic]:
    recipe = facts.recipe
    if recipe.components and not recipe.pipeline and facts.is_valid("pipeline"):
        message = "the recipe has components, but no pipeline that calls them"
        help = "describe a step: pipeline: {batch: {call: COMPONENT.METHOD}}"
        yield Diagnostic("MC510", message, facts.key("components"), help=help, missing=True)


def sources_state_samples(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    is_valid = facts.is_valid("pipeline", stage.name)
    if stage.block:
        is_valid = is_valid and facts.is_valid("pipeline", stage.block, "repeat")
    if stage.is_source and not stage.samples and stage.component and is_valid:
        message = f"stage `{stage.name}` is a source (it has no `in`) and needs `samples`"
        help = "write `samples: 64`, the number of samples in a step over all ranks, or `in: STAGE`"
        yield Diagnostic("MC540", message, facts.key("pipeline", stage.name), help=help, missing=True)


def components_are_used(facts: Facts) -> Iterator[Diagnostic]:
    """Every component is called or synced by a stage. A component that is not only uses memory."""
    stages = facts.recipe.pipeline.values()
    used = {stage.component for stage in stages} | {stage.to for stage in stages}
    if not stages or any(stage.kind == "" or not stage.component for stage in stages):
        return
    for name in facts.recipe.components:
        found = facts.class_of(name)
        if name not in used and name in facts.meshes and (found is None or found.is_component):
            message = f"component `{name}` is not called by any stage"
            yield Diagnostic("MC517", message, facts.key("components", name), severity="warning")


def inputs_are_calls(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """A stage that is an input of another stage is not a sync."""
    pipeline = facts.recipe.pipeline
    for other, path in named_stages(stage):
        if other in pipeline and pipeline[other].kind == "sync" and path[0] == "in":
            message = f"stage `{stage.name}` takes `{other}`, which is a sync"
            seconds = (facts.key("pipeline", other).with_word("a sync has no value"),)
            span = facts.value("pipeline", stage.name, *path)
            yield Diagnostic("MC531", message, span, seconds, f"write `after: {other}`")


def stages_are_acyclic(facts: Facts) -> Iterator[Diagnostic]:
    """No stage waits for itself. Only a sync may close a circle."""
    pipeline = facts.recipe.pipeline
    waiting = {name: facts.recipe.before(stage) for name, stage in pipeline.items()}
    while circle := _circle(waiting):
        for name in circle:
            del waiting[name]
        name = circle[0]
        message = f"stage `{name}` takes its own value"
        if len(circle) > 1:
            path = " -> ".join(f"`{stage}`" for stage in (*circle, circle[0]))
            message = f"stage `{name}` waits for itself: {path}"
        span = facts.value("pipeline", name, "in" if pipeline[name].inputs else "after")
        help = "a stage runs after those that it takes; move weights with `sync`"
        yield Diagnostic("MC532", message, span, help=help)


def _circle(waiting: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns stages that wait for one another, in the direction of the data; empty if there are none.
    `waiting` is stage -> the stages before it, in the order of the recipe."""
    try:
        TopologicalSorter(waiting).prepare()
    except CycleError as error:
        *found, _ = error.args[1]
        first = found.index(next(name for name in waiting if name in found))
        return [*found[first:], *found[:first]]
    return []


def joined_stages_differ(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    for given in stage.inputs:
        repeated = next((other for other in given.stages if given.stages.count(other) > 1), None)
        if repeated is not None:
            last = len(given.stages) - 1 - given.stages[::-1].index(repeated)
            span = facts.value("pipeline", stage.name, *input_path(given, last))
            message = f"stage `{stage.name}` joins `{repeated}` with itself"
            yield Diagnostic("MC533", message, span, help="remove one of them")


def sync_has_two_ends(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """A sync connects two different components, the target loads weights, and `max_staleness` fits
    `every`."""
    name = stage.name
    target = facts.recipe.components.get(stage.to)
    to = facts.value("pipeline", stage.name, "to")
    if stage.kind != "sync":
        return
    if stage.component and stage.component == stage.to:
        message = f"sync `{name}` goes from `{stage.to}` to itself"
        help = "write the component that receives the weights"
        yield Diagnostic("MC550", message, to, help=help)
    if stage.lag < 0 and facts.is_valid("pipeline", name):
        age = f"the weights are up to {counted(stage.every - 1, 'step')} old"
        every = facts.value("pipeline", name, "every").with_word(age)
        message = f"`max_staleness` {stage.max_staleness} is less than `every` - 1"
        help = f"write {stage.every - 1} or more, or remove it"
        yield Diagnostic("MC551", message, facts.value("pipeline", name, "max_staleness"), (every,), help)
    if target is not None and target.frozen:
        frozen = facts.value("components", stage.to, "frozen")
        seconds = (frozen.with_word("`frozen`: it has no weights to load"),)
        yield Diagnostic("MC552", f"component `{stage.to}` cannot be the target of a sync", to, seconds)


def sync_methods_exist(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """The components of a sync have the methods that yield and load weights. A sync passes no argument to the
    method that yields them, and a stream to the one that loads them."""
    target = facts.recipe.components.get(stage.to)
    sender, loader = facts.class_of(stage.component), facts.class_of(stage.to)
    ends = [(sender, "sync", stage.method, "yields (name, tensor) pairs")]
    if stage.to != stage.component and not (target is not None and target.frozen):
        ends.append((loader, "to", stage.to_method, "takes a stream of (name, tensor) pairs"))
    help = ""
    if sender and loader and "load_weights" in sender.methods and "weights" in loader.methods:
        help = f"turn it round: {{sync: {stage.to}, to: {stage.component}}}"
    for found, key, method, does in ends if stage.kind == "sync" else ():
        if found is None or not found.is_complete or not found.is_component:
            continue
        endpoint = found.endpoints.get(method)
        is_for_batches = endpoint and (
            endpoint.signature.required if key == "sync" else not method.startswith("load_")
        )
        if method not in found.methods:
            message = f"`{found.target}` has no method `{method}`"
        elif is_for_batches:
            message = f"`{found.target}.{method}` is an endpoint, which a sync does not call"
        else:
            continue
        span = facts.value("pipeline", stage.name, key)
        yield Diagnostic("MC553", message, span, help=help or f"define a method that {does}")


def block_has_one_source(facts: Facts, block: KnownBlock) -> Iterator[Diagnostic]:
    """`until` names the one source of a block. With `over` the block has none, and with `take` one."""
    sources = [name for name in block.stages if facts.recipe.pipeline[name].is_source]
    inner = [name.partition(".")[2] for name in sources]
    if block.until and block.until not in sources:
        span, name = facts.value("pipeline", block.name, "repeat", "until"), _inner(block.until)
        is_stage = block.until in block.stages
        why = "it takes the values of others" if is_stage else "it is not a stage of the block"
        message = f"`{name}` is not the source of block `{block.name}`: {why}"
        help = did_you_mean("", inner) or "use one of its stages that has no `in`"
        yield Diagnostic("MC572", message, span, help=help, missing=True)
        return
    if block.take and not sources:
        message = f"block `{block.name}` has no source, whose samples its passes work on"
        help = "move the stage that has no `in` into the block"
        yield Diagnostic("MC572", message, facts.key("pipeline", block.name), help=help, missing=True)
    others = sources[1:] if block.take else [name for name in sources if name != block.until]
    if others:
        first = facts.key("pipeline", others[0])
        message = f"`{_inner(others[0])}` is a second source of block `{block.name}`"
        what, help = f"the block runs until the data of `{_inner(block.until)}` end", ""
        if block.over:
            message = f"`{_inner(others[0])}` is a source, but block `{block.name}` repeats `{block.over}`"
            what, help = f"its minibatches come from `{block.over}`", f"write `in: {block.over}`"
        key = "take" if block.take else "until" if block.until else "over"
        if block.take:
            what = f"each pass has a sample of `{_inner(sources[0])}`"
            help = "a pass has one source: make both samples in one endpoint"
        seconds = (facts.value("pipeline", block.name, "repeat", key).with_word(what),)
        yield Diagnostic("MC572", message, first, seconds, help or "take its value from outside")


def stages_take_what_is_repeated(facts: Facts, block: KnownBlock) -> Iterator[Diagnostic]:
    """Every other stage of a block takes the source, or the minibatches, directly or not: otherwise it would
    not know when the block ends."""
    sources = [name for name in block.stages if facts.recipe.pipeline[name].is_source]
    until = block.until or (sources[0] if block.take and sources else "")
    repeated = until or block.over
    if repeated not in facts.recipe.pipeline or (repeated in block.stages) != bool(until):
        return
    if until and not facts.recipe.pipeline[until].is_source:
        return
    reached = {repeated}
    pending = [facts.recipe.pipeline[name] for name in block.stages]
    while more := [stage for stage in pending if reached & {*stage.takes}]:
        reached |= {stage.name for stage in more}
        pending = [stage for stage in pending if stage.name not in reached]
    if until and len(reached) == 1:
        message = f"no stage of block `{block.name}` takes `{_inner(until)}`"
        yield Diagnostic("MC573", message, facts.key("pipeline", until), missing=True)
    for stage in pending:
        if stage.name in reached or stage.is_source:
            continue  # the block's source, or one that is reported
        what = f"`{_inner(repeated)}`, directly or not"
        message = f"stage `{_inner(stage.name)}` of block `{block.name}` does not take {what}"
        span, help = facts.key("pipeline", stage.name), "move it out of the block, or add it to `in`"
        yield Diagnostic("MC573", message, span, help=help)


def over_has_samples(facts: Facts, block: Block) -> Iterator[Diagnostic]:
    """Minibatches are parts of a batch that a stage outside of the block returns."""
    over = block.over
    if not over or not facts.is_valid("pipeline", block.name, "repeat"):
        return
    stage, message = facts.recipe.pipeline.get(over), ""
    if over in facts.recipe.blocks or f"{block.name}.{over}" in block.stages:
        message = f"`{over}` is not a stage outside of block `{block.name}`"
    elif stage is not None and stage.kind == "sync":
        message = f"`{over}` is a sync, which has no samples"
    elif stage is not None and facts.is_valid("pipeline", over):
        mode = COLLECT.get(facts.modes[over].collect)
        if stage.is_without_data or (mode and not (mode.is_batch or mode.is_first)):
            message = f"`{over}` has no batch that block `{block.name}` can cut into minibatches"
    if message:
        span = facts.value("pipeline", block.name, "repeat", "over")
        help = "use a stage outside of the block that produces a batch"
        yield Diagnostic("MC574", message, span, help=help)
    elif stage is not None and 0 < stage.samples < block.size:
        size = facts.value("pipeline", block.name, "repeat", "size")
        message = f"`size` {block.size} is not smaller than the {stage.samples} samples of `{over}`"
        seconds = (facts.value("pipeline", over, "samples"),)
        help = "each round is a single pass; use a smaller `size` for several"
        yield Diagnostic("MC577", message, size, seconds, help, severity="warning")
    else:
        yield from _minibatches_are_shared(facts, block)


def _minibatches_are_shared(facts: Facts, block: Block) -> Iterator[Diagnostic]:
    for name in block.stages:
        stage = facts.recipe.pipeline[name]
        mesh, lead = facts.meshes.get(stage.component), facts.lead_stage(stage)
        is_known = mesh is not None and stage in facts.known_calls and facts.modes[name].execute_mode.is_joint
        if mesh is None or not is_known or lead is None or lead.name != block.over:
            continue
        shares = DISPATCH[facts.lead_dispatch(stage).mode].share_count(mesh)
        if 0 < block.size < shares and not stage.dispatch.allow_empty:
            samples = counted(block.size, "sample")
            message = f"a minibatch has {samples}, fewer than the {shares} shares of `{stage.component}`"
            size = facts.value("pipeline", block.name, "repeat", "size")
            seconds = (facts.key("components", stage.component).with_word(f"{shares} shares"),)
            help = f"some ranks have none in each pass; write `size: {shares}` or more"
            yield Diagnostic("MC577", message, size, seconds, help, "warning")
            return


def only_the_last_stage_is_taken(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """A stage outside takes the last stage of a block by its full name."""
    homes = [(one.home, one.path) for one in homes_of(stage)]
    for other, path in (*named_stages(stage), *homes):
        block = facts.recipe.blocks.get(other.partition(".")[0])
        is_order = path[0] == "after" and other in facts.recipe.blocks
        if block is None or not block.stages or stage.block == block.name or is_order:
            continue
        span, last = facts.value("pipeline", stage.name, *path), block.stages[-1]
        if other == block.name:
            message = f"`{other}` is a block, not a stage"
            yield Diagnostic("MC575", message, span, help=f"its last stage is `{last}`")
        elif path[0] == "after":
            help = f"write `after: {block.name}`"
            yield Diagnostic("MC575", f"`{other}` is inside block `{block.name}`", span, help=help)
        elif other != last and other in block.stages:
            message = f"stage `{stage.name}` takes `{other}`, which is inside a block and not its last stage"
            seconds = (facts.key("pipeline", last).with_word("only this one can be taken"),)
            yield Diagnostic("MC575", message, span, seconds, f"take `{last}`")


def passes_are_not_recorded(facts: Facts) -> Iterator[Diagnostic]:
    """Routes inside a block have a value in each pass, and recordings one in each step."""
    recipe, inside = facts.recipe, dict[str, str]()
    for stage in recipe.pipeline.values():
        sources = [recipe.pipeline.get(name) for given in stage.inputs for name in given.stages]
        for route, source in zip(stage.routes, sources, strict=True):
            if stage.block and source and source.block == stage.block:
                inside[route] = stage.block
    for index, word in enumerate(recipe.run.record if facts.is_valid("run", "record") else ()):
        routes = [route for route in inside if word in (route, route.partition(" ->")[0])]
        if routes:
            message = f"`{routes[0]}` is inside block `{inside[routes[0]]}`: its passes are not recorded"
            help = "record a route into the block, or out of it"
            yield Diagnostic("MC576", message, facts.item("run", "record", index=index), help=help)


def known_blocks(facts: Facts) -> Iterator[Block]:
    """Yields the blocks whose keys and stages are valid, and take stages that exist."""
    pipeline = facts.recipe.pipeline
    for block in facts.recipe.blocks.values():
        stages = [pipeline[name] for name in block.stages]
        is_valid = facts.is_valid("pipeline", block.name) and all(stage.kind for stage in stages)
        if stages and is_valid and all(other in pipeline for stage in stages for other in stage.takes):
            yield block


def _inner(name: str) -> str:
    """Returns the name of a stage as its block names it."""
    return name.rpartition(".")[2]


# Passes of their own pace

NO_MEANING = {
    "samples": "a pass has one sample of its source, and all samples that are made of it",
    "dispatch": "a pass stays on the rank that began it",
    "execute": "a pass stays on the rank that began it",
    "collect": "the value of the block is the samples of the passes that are taken",
    "every": "each step takes passes",
    "when": "each step takes passes",
}
"""Keys of a take block and of its stages that have no meaning there, and why."""


def takes_run_on_one_group(facts: Facts, block: KnownBlock) -> Iterator[Diagnostic]:
    """All stages of a take block run on the group of its source, and each of their ranks is a data rank."""
    pipeline, components = facts.recipe.pipeline, facts.recipe.components
    stages = [pipeline[name] for name in block.stages]
    source = next((stage for stage in stages if stage.is_source), None)
    home = components.get(source.component) if source else None
    for stage in stages if block.take and home else ():
        component, name = components.get(stage.component), stage.name.rpartition(".")[2]
        mesh = facts.meshes.get(stage.component)
        if component is None or home is None:
            continue
        beside = f"stage `{name}` of block `{block.name}` runs on"
        if component.group != home.group:
            message = f"{beside} group `{component.group}`, and its source on `{home.group}`"
            help = (
                f"a block with `take` runs on one group: write `group: {home.group}` for `{component.name}`"
            )
        elif mesh is not None and mesh.size("dp") != mesh.world_size:
            sizes = [f"{dim} {mesh.size(dim)}" for dim in mesh.mesh_dim_names if mesh.size(dim) > 1]
            message = f"{beside} ranks of {listed(sizes).replace('`', '')}, and a pass runs on one rank"
            help = f"leave out `parallel` of `{component.name}`, so that each rank works alone"
        else:
            continue
        span = facts.value("pipeline", stage.name, "call")
        seconds = (facts.key("components", component.name),)
        yield Diagnostic("MC582", message, span, seconds, f"{help}, or move the stage behind the block")


def takes_have_a_value(facts: Facts, block: KnownBlock) -> Iterator[Diagnostic]:
    """A stage outside takes the value of a take block, and its stages take no value from outside."""
    pipeline = facts.recipe.pipeline
    if not block.take:
        return
    if block.stages[-1] not in facts.taken:
        message = f"no stage takes the value of block `{block.name}`, which is `{block.stages[-1]}`"
        help = "train on it: `in: " + block.stages[-1] + "`"
        yield Diagnostic("MC583", message, facts.key("pipeline", block.name), help=help, missing=True)
    for name in block.stages:
        for other in (other for other in pipeline[name].takes if other not in block.stages):
            inner = name.rpartition(".")[2]
            message = f"stage `{inner}` of block `{block.name}` takes `{other}`, which is outside"
            help = "its passes do not belong to steps: take values of the block, or move the stage behind it"
            yield Diagnostic("MC583", message, facts.value("pipeline", name, "in"), help=help)
    if block.late and not block.ahead:
        message = "`late` has no effect without `ahead`: no pass is open between two steps"
        span = facts.value("pipeline", block.name, "repeat", "late")
        yield Diagnostic("MC583", message, span, severity="warning", help="add `ahead: 1`, or remove it")


def keys_have_a_meaning(facts: Facts, block: Block) -> Iterator[Diagnostic]:
    """A take block and its stages have no keys of steps and of routes."""
    paths = [("pipeline", block.name), *(("pipeline", name) for name in block.stages)]
    for path in paths if block.take else ():
        for key, why in NO_MEANING.items():
            is_of_block = key in ("every", "when")
            if is_of_block == (path[1] == block.name) and facts.node(*path, key) is not None:
                message = f"`{key}` has no meaning in a block with `take`: {why}"
                yield Diagnostic("MC583", message, facts.key(*path, key), help=f"remove `{key}`")


def takes_feed_all_shares(facts: Facts, block: KnownBlock) -> Iterator[Diagnostic]:
    """A step takes at least one pass for each share of a stage that takes its samples, since a group of
    answers is not divided."""
    takers = [one for one in facts.known_calls if block.take and block.stages[-1] in one.takes]
    for stage in takers:
        mesh, dispatch = facts.meshes.get(stage.component), facts.lead_dispatch(stage)
        is_free = dispatch.allow_empty or dispatch.split_groups or bool([*homes_of(stage)])
        is_joint = facts.modes[stage.name].execute_mode.is_joint
        shares = DISPATCH[dispatch.mode].share_count(mesh) if mesh is not None and is_joint else 0
        if block.take < shares and not is_free:
            message = f"a step takes {counted(block.take, 'group')}, too few for the {shares} shares of "
            span = facts.value("pipeline", block.name, "repeat", "take")
            seconds = (facts.key("components", stage.component).with_word(f"{shares} shares"),)
            help = f"write `take: {shares}` or more, or `dispatch: {{split_groups: true}}` for `{stage.name}`"
            yield Diagnostic("MC541", f"{message}`{stage.component}`", span, seconds, help)
            return


def ahead_has_devices_of_its_own(facts: Facts, block: KnownBlock) -> Iterator[Diagnostic]:
    """Passes that run ahead share no process and no device with training."""
    recipe, span = facts.recipe, facts.value("pipeline", block.name, "repeat", "ahead")
    names = _called(facts, block) if block.ahead else set()
    groups = {
        name: group
        for name, component in recipe.components.items()
        if (group := facts.group_of(component)) is not None
    }
    group = groups.get(recipe.pipeline[block.stages[0]].component) if names else None
    for stage in recipe.pipeline.values() if group else ():
        other = groups.get(stage.component)
        is_shared = group and other and (other.colocate or other.name) == (group.colocate or group.name)
        if stage.kind == "call" and is_shared and stage.method in facts.trained_by(stage.component):
            what = "the processes" if other is group else "the devices"
            message = f"passes that run ahead share {what} of `{stage.component}`, which trains"
            seconds = (facts.key("components", stage.component),)
            help = f"remove `ahead`, or give `{stage.component}` a group and devices of its own"
            yield Diagnostic("MC584", message, span, seconds, help)
            return
    for name in sorted(names):
        node = facts.argument(name, ("args", "sleep"))
        if node is not None and node.value is True:
            message = f"passes run ahead, and `{name}` sleeps between its calls"
            help = "remove `ahead`, or `sleep`"
            yield Diagnostic("MC584", message, span, (node.span,), help)


def old_logprobs_are_taken(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """A loss that clips ratios takes the log-probabilities before the update, if its tokens may be old."""
    lead, chosen = facts.lead_stage(stage), loss_of(facts, stage.component)
    block = facts.recipe.blocks.get(lead.block) if lead is not None else None
    if block is None or not block.take or stage.block or chosen is None:
        return
    # the greatest age of a token when it is trained, in steps of the weights that sampled it
    age = staleness(facts.recipe.pipeline.values(), _called(facts, block)) + block.ahead + block.late
    found = parameters_of(facts.code_of(stage.component), chosen[1])
    columns = columns_given_to(facts, stage)
    is_clipped = found is not None and "clip" in found.options and "old_logprobs" in found.optional
    is_trained = stage.method in facts.trained_by(stage.component)
    if age and is_clipped and is_trained and columns is not None and "old_logprobs" not in columns:
        trains = f"`{stage.name}` trains on tokens that are up to {counted(age, 'step')} old"
        message = f"{trains}, and takes no `old_logprobs`: clipping will be slow"
        help = f"add a stage `{{call: {stage.component}.old_logprobs, in: {lead.name if lead else ''}}}`"
        span = facts.value("pipeline", stage.name, "in")
        yield Diagnostic("MC585", message, span, severity="note", help=f"{help}, and take it, too")


def _called(facts: Facts, block: Block) -> set[str]:
    """Returns the components that the stages of a block call, and the samplers that these call."""
    names = {facts.recipe.pipeline[name].component for name in block.stages}
    return names | {facts.samplers[name] for name in names if name in facts.samplers}
