"""MC582 to MC585: blocks whose passes run at their own pace (`repeat: {take: ...}`)."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.tables import parameters_of
from meshctl.recipe.model import Block, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.flow import homes_of
from meshctl.recipe.rules.pipeline import KnownBlock
from meshctl.recipe.rules.rollouts import columns_given_to, loss_of
from meshctl.text.english import counted, listed
from meshctl.topology.modes import DISPATCH
from meshctl.topology.take import staleness

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
    homes = [recipe.components.get(recipe.pipeline[name].component) for name in block.stages[:1] if names]
    for group in [recipe.groups[one.group] for one in homes if one and one.group in recipe.groups]:
        place = group.colocate or group.name
        for stage in recipe.pipeline.values():
            found = recipe.components.get(stage.component)
            other = recipe.groups.get(found.group) if found else None
            is_shared = other is not None and (other.colocate or other.name) == place
            if stage.kind == "call" and is_shared and stage.method in facts.trained_by(stage.component):
                what = "the processes" if found and found.group == group.name else "the devices"
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
    age, found = age_bound(facts, block), parameters_of(facts.code_of(stage.component), chosen[1])
    columns = columns_given_to(facts, stage)
    is_clipped = found is not None and "clip" in found.options and "old_logprobs" in found.optional
    is_trained = stage.method in facts.trained_by(stage.component)
    if age and is_clipped and is_trained and columns is not None and "old_logprobs" not in columns:
        trains = f"`{stage.name}` trains on tokens that are up to {counted(age, 'step')} old"
        message = f"{trains}, and takes no `old_logprobs`: clipping will be slow"
        help = f"add a stage `{{call: {stage.component}.old_logprobs, in: {lead.name if lead else ''}}}`"
        span = facts.value("pipeline", stage.name, "in")
        yield Diagnostic("MC585", message, span, severity="note", help=f"{help}, and take it, too")


def age_bound(facts: Facts, block: Block) -> int:
    """Returns the greatest age of a token when it is trained, in steps of the weights that sampled it."""
    return staleness(facts.recipe.pipeline.values(), _called(facts, block)) + block.ahead + block.late


def _called(facts: Facts, block: Block) -> set[str]:
    """Returns the components that the stages of a block call, and the samplers that these call."""
    names = {facts.recipe.pipeline[name].component for name in block.stages}
    return names | {facts.samplers[name] for name in names if name in facts.samplers}
