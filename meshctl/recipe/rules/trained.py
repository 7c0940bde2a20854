"""MC548, MC558, MC559 and MC586: what is trained is saved, is trained in time, and reaches its sampler."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose.yaml_tree import plain
from meshctl.recipe.model import Stage
from meshctl.recipe.rules.components import STATE_METHODS
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import listed


def _trains(facts: Facts, stage: Stage) -> bool:
    return stage.kind == "call" and stage.method in facts.trained_by(stage.component)


def changes_are_saved(facts: Facts) -> Iterator[Diagnostic]:
    """A component that is trained, or whose weights are sent repeatedly, has state in checkpoints."""
    changes: dict[str, list[Span]] = {}
    for name, stage in facts.recipe.pipeline.items():
        if _trains(facts, stage) or (stage.kind == "sync" and "start" not in facts.times[name].at):
            does = "trains it" if stage.kind == "call" else "sends its weights"
            span = facts.value("pipeline", name, stage.kind).with_word(f"`{name}` {does}")
            changes.setdefault(stage.component, []).append(span)
    for name, component in facts.recipe.components.items():
        found, spans = facts.class_of(name), tuple(changes.get(name, ()))
        if spans and component.frozen:
            message = f"`{name}` is frozen and changes: its weights would be in no checkpoint"
            help = "remove `frozen`; a sync whose weights never change has `when: start`"
            yield Diagnostic("MC558", message, facts.value("components", name, "frozen"), spans, help)
        elif not spans or not facts.recipe.run.checkpoint or not found or not found.is_complete:
            continue
        elif found.is_component and not found.methods & {*STATE_METHODS}:
            message = f"checkpoints do not contain `{name}`: `{found.target}` has no `state_dict`"
            help = "define `state_dict` and `load_state_dict`; otherwise a resume begins with new weights"
            span = facts.value("components", name, "_target_")
            yield Diagnostic("MC559", message, span, spans[:1], help, "warning")


def training_is_not_delayed(facts: Facts) -> Iterator[Diagnostic]:
    """A stage that trains does not run at the end only because one of its inputs does."""
    pipeline, times = facts.recipe.pipeline, facts.times
    for name, stage in pipeline.items():
        late = [one for one in stage.takes if one in times and times[one].at]
        if late and not stage.when and _trains(facts, stage):
            spans = [facts.value("pipeline", one, "when") for one in pipeline if pipeline[one].when]
            message = (
                f"stage `{name}` trains `{stage.component}` only {times[name]}, when {listed(late)} runs"
            )
            help = f"remove that `when`; if this is meant, write `when` in `{name}`, too"
            span = facts.value("pipeline", name, "in")
            yield Diagnostic("MC548", message, span, tuple(spans), help, "warning")


def samplers_get_weights(facts: Facts) -> Iterator[Diagnostic]:
    """A component that can load weights receives those of the trained component of the same model. Without
    names of models, one that cannot send weights receives those of one that can."""
    pipeline = facts.recipe.pipeline.values()
    syncs = [stage for stage in pipeline if stage.kind == "sync"]
    done = {stage.component for stage in pipeline if _trains(facts, stage)}
    called = dict.fromkeys(stage.component for stage in pipeline if stage.kind == "call")
    methods = {name: found.methods for name in called if (found := facts.class_of(name))}
    senders = [name for name in methods if "weights" in methods[name]]
    for name in () if any(stage.component == stage.to for stage in syncs) else methods:
        model, is_kept = _model(facts, name), facts.recipe.components[name].frozen
        is_synced = any(name in (stage.component, stage.to) for stage in syncs)
        if name in done or is_synced or is_kept or "load_weights" not in methods[name]:
            continue
        others = sorted(done) if model else senders if name not in senders else []
        if same := [other for other in others if _model(facts, other) == model]:
            message = f"`{name}` keeps its first weights: no sync sends it those of `{same[0]}`"
            help = f"add `publish: {{sync: {same[0]}, to: {name}}}` to the pipeline, or `frozen: true` to it"
            seconds, span = (facts.key("components", same[0]),), facts.key("components", name)
            yield Diagnostic("MC586", message, span, seconds, help, "warning" if model else "note")


def _model(facts: Facts, component: str) -> object:
    """Returns the name or the config of a component's model; None if its arguments do not tell."""
    node = facts.argument(component, next(iter(facts.declares(component).model), ("args", "model")))
    return plain(node) if node is not None else None


RULES = (changes_are_saved, training_is_not_delayed, samplers_get_weights)
