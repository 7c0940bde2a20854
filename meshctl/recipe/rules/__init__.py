"""The rules about relations between values of a recipe. A rule is a function from facts to diagnostics; all
run in one pass.

A rule is named after the correct state (`group_exists`). A rule skips values that have been reported as
wrong, so that one cause leads to one diagnostic. A new rule is a function in the file of its subject and a
name in the `RULES` of that file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.rules import (
    architectures,
    argument_limits,
    arguments,
    blocks,
    calls,
    choices,
    components,
    costs,
    data_files,
    device_memory,
    devices,
    elastic,
    ends,
    engines,
    extras,
    flow,
    groups,
    home,
    interpreters,
    jobset,
    joins,
    literal_texts,
    loss_inputs,
    loss_options,
    meshes,
    models,
    names,
    nodes,
    pipeline,
    restartable,
    rollouts,
    run,
    schedule,
    sequence_lengths,
    shares,
    shipping,
    stages,
    tokenizers,
    trackers,
    trained,
    vocabularies,
)
from meshctl.recipe.rules.facts import Facts

Rule = Callable[[Facts], Iterator[Diagnostic]]
SUBJECTS = (
    *(names, groups, nodes, devices, elastic, restartable, interpreters),
    *(meshes, models, stages, architectures, sequence_lengths, device_memory),
    *(components, arguments, argument_limits, choices, extras, tokenizers, vocabularies, data_files),
    *(literal_texts, trained),
    *(pipeline, blocks, calls, home, shares, joins, flow, schedule, ends, run, trackers, costs, rollouts),
    *(loss_inputs, loss_options, engines, jobset, shipping),
)
RULES: tuple[Rule, ...] = tuple(rule for subject in SUBJECTS for rule in subject.RULES)


def check(facts: Facts) -> Iterator[Diagnostic]:
    """Yields the diagnostics of all rules."""
    for rule in RULES:
        yield from rule(facts)


__all__ = ["Facts", "check"]
