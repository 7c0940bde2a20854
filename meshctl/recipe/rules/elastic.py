"""MC327, MC328 and MC329: the groups with which a run goes on when workers are lost for good."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.elastic import layouts_of, replica_ranks
from meshctl.recipe.model import DeviceGroup
from meshctl.recipe.rules.facts import Facts
from meshctl.run.settings import Elastic
from meshctl.text.english import counted, listed

COUNTS_MAX = 4
"""The number of counts that a note lists."""


def elastic_restarts(facts: Facts) -> Iterator[Diagnostic]:
    """A run that changes its size starts again after a failure."""
    run = facts.recipe.run
    if run.elastic and run.restarts is None and facts.is_valid("run", "restarts"):
        message = "`run.elastic` has no effect without `run.restarts`: the run ends with its first failure"
        yield Diagnostic("MC327", message, facts.key("run", "elastic"), help="add `restarts: 3` to `run`")


def group_can_shrink(facts: Facts) -> Iterator[Diagnostic]:
    """Each elastic group has a smaller count of ranks, of at least `min_ranks`, for which its components have
    a layout. A note says with how many it goes on."""
    for elastic in facts.recipe.run.elastic:
        group = facts.recipe.groups.get(elastic.group)
        if group is None or not _is_known(facts, elastic.group):
            continue
        counts = [
            one.ranks for one in layouts_of(facts.recipe, group.name, group.devices - 1, elastic.min_ranks)
        ]
        if not counts:
            yield _impossible(facts, group, elastic)
        elif facts.recipe.run.restarts:
            yield _possible(facts, group, counts)


def _is_known(facts: Facts, name: str) -> bool:
    """Returns whether the sizes of a group and of its components are right."""
    components = facts.recipe.components_of(name)
    is_sized = facts.recipe.groups[name].workers > 0 and facts.is_valid("groups", name)
    return is_sized and all(one.name in facts.meshes for one in components)


def _impossible(facts: Facts, group: DeviceGroup, elastic: Elastic) -> Diagnostic:
    ranks, step = group.devices, replica_ranks(facts.recipe, group.name)
    least = ("run", "elastic", group.name, "min_ranks")
    span = facts.value(*least) if facts.node(*least) else facts.key(*least[:-1])
    seconds = [facts.value("groups", group.name, "ranks").with_word(f"`{group.name}` has {ranks} ranks")]
    message = f"`{group.name}` cannot lose a rank and keep {elastic.min_ranks}"
    if elastic.min_ranks >= ranks:
        help = f"write a `min_ranks` below {ranks}"
    elif ranks - step > 0:
        help = f"only dp and fsdp sizes change, so the next smaller count is {ranks - step}: `min_ranks`"
        help = f"{help} must be {ranks - step} or less"
    else:
        help = "only dp and fsdp sizes change, and its other sizes take all ranks: leave it out of `elastic`"
    for one in facts.recipe.components_of(group.name):
        if step > 1 and facts.node("components", one.name, "parallel"):
            sizes = facts.value("components", one.name, "parallel")
            seconds.append(sizes.with_word(f"a replica takes {counted(step, 'rank')}"))
            break
    return Diagnostic("MC328", message, span, tuple(seconds), help)


def _possible(facts: Facts, group: DeviceGroup, counts: list[int]) -> Diagnostic:
    shown = [str(count) for count in islice(counts, COUNTS_MAX)]
    more = f" or {counts[-1]}" if len(counts) > COUNTS_MAX + 1 else ""
    numbers = f"{', '.join(shown)} ...{more}" if more else _either(shown)
    message = (
        f"without a rank that is lost for good, `{group.name}` goes on with {numbers} of {group.devices}"
    )
    parts = []
    if idle := group.devices - 1 - counts[0]:
        parts.append(f"{counted(idle, 'rank')} of it {'is' if idle == 1 else 'are'} idle then")
    if firm := [name for name in facts.recipe.groups if name not in _elastic(facts)]:
        parts.append(f"a loss of {listed(firm, 'or')} for good ends the run")
    if facts.recipe.run.checkpoint is None:
        parts.append("without `run.checkpoint` it begins again from the start, and never grows back")
    parts.append("`samples` stays global; rules for the learning rate and the batch size are yours")
    span = facts.key("run", "elastic", group.name)
    return Diagnostic("MC329", message, span, help="; ".join(parts), severity="note")


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _elastic(facts: Facts) -> set[str]:
    return {one.group for one in facts.recipe.run.elastic}


RULES = (elastic_restarts, group_can_shrink)
