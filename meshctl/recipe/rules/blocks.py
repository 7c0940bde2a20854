"""MC572 to MC577: blocks of stages that run several times in a step (`repeat`)."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.model import Block, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.home import homes_of
from meshctl.recipe.rules.names import named_stages
from meshctl.text.english import counted, did_you_mean
from meshctl.topology.modes import COLLECT, DISPATCH


def block_has_one_source(facts: Facts) -> Iterator[Diagnostic]:
    """`until` names the one source of a block. With `over` the block has none."""
    for block in _known_blocks(facts):
        sources = [name for name in block.stages if facts.recipe.pipeline[name].is_source]
        inner = [name.partition(".")[2] for name in sources]
        if block.until and block.until not in sources:
            span, name = facts.value("pipeline", block.name, "repeat", "until"), _inner(block.until)
            is_stage = block.until in block.stages
            why = "it takes the values of others" if is_stage else "it is not a stage of the block"
            message = f"`{name}` is not the source of block `{block.name}`: {why}"
            help = did_you_mean("", inner) or "use one of its stages that has no `in`"
            yield Diagnostic("MC572", message, span, help=help, missing=True)
            continue
        others = [name for name in sources if name != block.until]
        if others:
            first = facts.key("pipeline", others[0])
            message = f"`{_inner(others[0])}` is a second source of block `{block.name}`"
            what, help = f"the block runs until the data of `{_inner(block.until)}` end", ""
            if block.over:
                message = (
                    f"`{_inner(others[0])}` is a source, but block `{block.name}` repeats `{block.over}`"
                )
                what, help = f"its minibatches come from `{block.over}`", f"write `in: {block.over}`"
            key = "until" if block.until else "over"
            seconds = (facts.value("pipeline", block.name, "repeat", key).with_word(what),)
            yield Diagnostic("MC572", message, first, seconds, help or "take its value from outside")


def stages_take_what_is_repeated(facts: Facts) -> Iterator[Diagnostic]:
    """Every other stage of a block takes the source, or the minibatches, directly or not: otherwise it would
    not know when the block ends."""
    for block in _known_blocks(facts):
        repeated = block.until or block.over
        if repeated not in facts.recipe.pipeline or (repeated in block.stages) != bool(block.until):
            continue
        if block.until and not facts.recipe.pipeline[block.until].is_source:
            continue
        reached = {repeated}
        pending = [facts.recipe.pipeline[name] for name in block.stages]
        while more := [stage for stage in pending if reached & {*stage.takes}]:
            reached |= {stage.name for stage in more}
            pending = [stage for stage in pending if stage.name not in reached]
        if block.until and len(reached) == 1:
            message = f"no stage of block `{block.name}` takes `{_inner(block.until)}`"
            yield Diagnostic("MC573", message, facts.key("pipeline", block.until), missing=True)
        for stage in pending:
            if stage.name in reached or stage.is_source:
                continue  # the block's source, or one that is reported
            what = f"`{_inner(repeated)}`, directly or not"
            message = f"stage `{_inner(stage.name)}` of block `{block.name}` does not take {what}"
            span, help = facts.key("pipeline", stage.name), "move it out of the block, or add it to `in`"
            yield Diagnostic("MC573", message, span, help=help)


def over_has_samples(facts: Facts) -> Iterator[Diagnostic]:
    """Minibatches are parts of a batch that a stage outside of the block returns."""
    for block in facts.recipe.blocks.values():
        if not block.over or not facts.is_valid("pipeline", block.name, "repeat"):
            continue
        stage, span = (
            facts.recipe.pipeline.get(block.over),
            facts.value("pipeline", block.name, "repeat", "over"),
        )
        message = ""
        if block.over in facts.recipe.blocks or f"{block.name}.{block.over}" in block.stages:
            message = f"`{block.over}` is not a stage outside of block `{block.name}`"
        elif stage is not None and stage.kind == "sync":
            message = f"`{block.over}` is a sync, which has no samples"
        elif stage is not None and facts.is_valid("pipeline", block.over):
            mode = COLLECT.get(facts.modes[block.over].collect)
            if stage.is_without_data or (mode and not (mode.is_batch or mode.is_first)):
                message = f"`{block.over}` has no batch that block `{block.name}` can cut into minibatches"
        if message:
            yield Diagnostic(
                "MC574", message, span, help="use a stage outside of the block that produces a batch"
            )
        elif stage is not None and 0 < stage.samples < block.size:
            size = facts.value("pipeline", block.name, "repeat", "size")
            message = f"`size` {block.size} is not smaller than the {stage.samples} samples of `{block.over}`"
            seconds = (facts.value("pipeline", block.over, "samples"),)
            help = "each round is a single pass; use a smaller `size` for several"
            yield Diagnostic("MC577", message, size, seconds, help, severity="warning")
        else:
            yield from _minibatches_are_shared(facts, block)


def _minibatches_are_shared(facts: Facts, block: Block) -> Iterator[Diagnostic]:
    """Warns where a minibatch has fewer samples than a component has shares."""
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


def only_the_last_stage_is_taken(facts: Facts) -> Iterator[Diagnostic]:
    """A stage outside takes the last stage of a block by its full name."""
    for name, stage in facts.recipe.pipeline.items():
        homes = [(one.home, one.path) for one in homes_of(stage)]
        for other, path in (*named_stages(stage), *homes):
            block = facts.recipe.blocks.get(other.partition(".")[0])
            is_order = path[0] == "after" and other in facts.recipe.blocks
            if block is None or not block.stages or stage.block == block.name or is_order:
                continue
            span, last = facts.value("pipeline", name, *path), block.stages[-1]
            if other == block.name:
                message = f"`{other}` is a block, not a stage"
                yield Diagnostic("MC575", message, span, help=f"its last stage is `{last}`")
            elif path[0] == "after":
                help = f"write `after: {block.name}`"
                yield Diagnostic("MC575", f"`{other}` is inside block `{block.name}`", span, help=help)
            elif other != last and other in block.stages:
                message = f"stage `{name}` takes `{other}`, which is inside a block and not its last stage"
                seconds = (facts.key("pipeline", last).with_word("only this one can be taken"),)
                yield Diagnostic("MC575", message, span, seconds, f"take `{last}`")


def passes_are_not_recorded(facts: Facts) -> Iterator[Diagnostic]:
    """Routes inside a block have a value in each pass, and recordings one in each step."""
    recipe = facts.recipe
    inside = {
        route: stage
        for stage in recipe.pipeline.values()
        for route, source in _routes_with_sources(stage)
        if stage.block and source in recipe.pipeline and recipe.pipeline[source].block == stage.block
    }
    for index, word in enumerate(recipe.run.record if facts.is_valid("run", "record") else ()):
        routes = [route for route, stage in inside.items() if word in (route, route.partition(" ->")[0])]
        if routes:
            message = (
                f"`{routes[0]}` is inside block `{inside[routes[0]].block}`: its passes are not recorded"
            )
            help = "record a route into the block, or out of it"
            yield Diagnostic("MC576", message, facts.item("run", "record", index=index), help=help)


def _routes_with_sources(stage: Stage) -> Iterator[tuple[str, str]]:
    sources = [source for given in stage.inputs for source in given.stages]
    return zip(stage.routes, sources, strict=True)


def _known_blocks(facts: Facts) -> Iterator[Block]:
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


RULES = (
    block_has_one_source,
    stages_take_what_is_repeated,
    over_has_samples,
    only_the_last_stage_is_taken,
    passes_are_not_recorded,
)
