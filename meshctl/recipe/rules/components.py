"""MC50x, MC442, MC558, MC559 and MC586: components, the classes that their `_target_` names, read as text,
the libraries that they need, and the state and weights of those that are trained."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.package import install_command, missing_libraries, outdated_libraries
from meshctl.recipe.code.classes import ROOMS, Class, Code, Found, NoClass, NotFound
from meshctl.recipe.code.modules import Unread
from meshctl.recipe.code.tables import extras_of
from meshctl.recipe.compose.folders import files
from meshctl.recipe.compose.yaml_tree import plain
from meshctl.recipe.fixes import renamed
from meshctl.recipe.model import Component, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import did_you_mean, listed, nearest

READY_MADE = tuple(f"meshctl.{room}" for room in sorted((*ROOMS, "components")))
"""The modules of ready-made components."""
DERIVE = "use a class that derives from meshctl.Component"
MAX_SECONDS = 4
"""Maximum number of further places of one mistake that are shown."""


def module_exists(facts: Facts) -> Iterator[Diagnostic]:
    """The module of each `_target_` exists. A missing module is reported once, with all components that name
    it."""
    users: dict[str, list[str]] = {}
    for name, found in facts.classes.items():
        is_standard = _is_standard(facts.code_of(name), facts.recipe.components[name].target)
        if isinstance(found, NotFound) and not found.has_module and not is_standard:
            users.setdefault(found.module, []).append(name)
    for module, names in users.items():
        first, *others = (facts.value("components", name, "_target_") for name in names)
        seconds = tuple(span.with_word("and here") for span in others[:MAX_SECONDS])
        fixes = tuple(fix for name in names for fix in _retargeted(facts, name))
        interpreter = facts.group_code.interpreters.get(facts.recipe.components[names[0]].group)
        packages = f"the packages of {interpreter.path}" if interpreter else "the installed packages"
        help = f"searched in {listed(facts.code.own)} and {packages}"
        if fixes:
            help = f"did you mean `{fixes[0].text}`?"
        yield Diagnostic("MC501", f"module `{module}` was not found", first, seconds, help, fixes=fixes)


def _retargeted(facts: Facts, component: str) -> tuple[Fix, ...]:
    """Returns the edit of a `_target_` whose module is misspelt; empty if it is not clear what was meant. The
    modules are those in the recipe's folder, those of other components that were found, and those of
    ready-made components."""
    target = facts.recipe.components[component].target
    found = {one.target.rpartition(".")[0] for one in facts.classes.values() if isinstance(one, Class)}
    own = (path.stem for folder in facts.code.own for path in files(Path(folder), ".py"))
    owner, _, name = target.rpartition(".")
    right = f"{nearest(owner, sorted({*found, *own, *READY_MADE}))}.{name}"
    if not isinstance(facts.code_of(component).find(right), Class):
        return ()
    return (Fix(facts.value("components", component, "_target_"), target, right),)


def class_is_component(facts: Facts) -> Iterator[Diagnostic]:
    """`_target_` names a class that derives from `Component` and is not abstract. A file that is not valid
    Python is reported once."""
    reported = set[str]()
    for name, found in facts.classes.items():
        if isinstance(found, Unread) and found.broken:
            if found.why in reported:
                continue
            reported.add(found.why)
        target, span = facts.recipe.components[name].target, facts.value("components", name, "_target_")
        code = facts.code_of(name)
        if _is_standard(code, target):
            message = f"`{target}` is in Python's standard library and is not a component"
            yield Diagnostic("MC503", message, span, help=DERIVE)
        elif diagnostic := _diagnostic_of(code, target, found, span):
            yield diagnostic


def _is_standard(code: Code, target: str) -> bool:
    return target.partition(".")[0] in sys.stdlib_module_names and code.is_library(target)


def _diagnostic_of(code: Code, target: str, found: Found, span: Span) -> Diagnostic | None:
    match found:
        case NotFound(has_module=True):
            name = target.rpartition(".")[2]
            ready = (path for one in READY_MADE if isinstance(code.find(path := f"{one}.{name}"), Class))
            help = did_you_mean(name, found.names) or next((f"did you mean `{one}`?" for one in ready), "")
            if target.endswith(".py"):
                help = f"use one of its classes: {listed(f'{found.module}.{one}' for one in found.names)}"
            fixes = renamed(span, name, found.names, before=f"{found.module}.")
            message = f"module `{found.module}` has no class `{name}`"
            return Diagnostic("MC502", message, span, help=help, fixes=fixes)
        case Unread(broken=True):
            return Diagnostic("MC507", f"`{target}` cannot be imported: {found.why}", span)
        case Unread():
            message = f"`{target}` cannot be checked: {found.why}"
            return Diagnostic("MC504", message, span, severity="note")
        case NoClass():
            return Diagnostic("MC503", f"`{target}` is {found.what}, not a class", span, help=DERIVE)
        case Class():
            return _diagnostic_of_class(target, found, span)
    return None


def _diagnostic_of_class(target: str, found: Class, span: Span) -> Diagnostic | None:
    if found.abstract_methods:
        are = "is" if len(found.abstract_methods) == 1 else "are"
        message = f"`{target}` is abstract: {listed(found.abstract_methods)} {are} not implemented"
        return Diagnostic("MC509", message, span, help="use a class that derives from it and implements them")
    if found.is_component is None:
        message = f"`{target}` cannot be checked: the source of one of its base classes was not found"
        return Diagnostic("MC504", message, span, severity="note")
    if found.is_component:
        return None
    if found.foreign_base:
        message = f"`{target}` derives from {found.foreign_base}, not from meshctl.Component"
        return Diagnostic("MC503", message, span, help="write a Component that contains one")
    message = f"`{target}` does not derive from meshctl.Component"
    return Diagnostic("MC503", message, span, help="derive it from meshctl.Component")


STATE_METHODS = ("state_dict", "load_state_dict")


def state_is_loaded(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """A component whose state is in checkpoints has both methods of state, or none."""
    found = facts.class_of(component.name)
    is_saved = facts.recipe.run.checkpoint is not None and not component.frozen
    offered = [method for method in STATE_METHODS if found and method in found.methods]
    if is_saved and found and found.is_complete and len(offered) == 1:
        [absent] = {*STATE_METHODS} - {*offered}
        span = facts.value("components", component.name, "_target_")
        message = f"`{component.target}` has `{offered[0]}` and no `{absent}`"
        help = f"define `{absent}` as well, or write `frozen: true` if `{component.name}` has no state"
        yield Diagnostic("MC529", message, span, help=help)


def values_are_not_hidden(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """No endpoint has the name of a value of `Component`, such as `step`, that its class uses."""
    found = facts.class_of(component.name)
    if found is None or not found.is_component:
        return
    for value in sorted(found.hidden_values & found.endpoints.keys()):
        message = f"`{found.target}` uses the value `self.{value}`, which its endpoint `{value}` hides"
        help, span = "give the endpoint another name", facts.value("components", component.name, "_target_")
        yield Diagnostic("MC578", message, span, help=help, severity="warning")


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


def training_is_not_delayed(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """A stage that trains does not run at the end only because one of its inputs does."""
    name, pipeline, times = stage.name, facts.recipe.pipeline, facts.times
    late = [one for one in stage.takes if one in times and times[one].at]
    if late and not stage.when and _trains(facts, stage):
        spans = [facts.value("pipeline", one, "when") for one in pipeline if pipeline[one].when]
        message = f"stage `{name}` trains `{stage.component}` only {times[name]}, when {listed(late)} runs"
        help = f"remove that `when`; if this is meant, write `when` in `{name}`, too"
        yield Diagnostic("MC548", message, facts.value("pipeline", name, "in"), tuple(spans), help, "warning")


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


def extras_are_installed(facts: Facts) -> Iterator[Diagnostic]:
    """The libraries of each extra are installed for the launcher's interpreter, and not too old. An extra is
    reported once, with all components that need it. `launch` asks other interpreters."""
    users: dict[str, list[str]] = {}
    for name, component in facts.recipe.components.items():
        if component.group not in facts.group_code.interpreters:
            for extra in extras_of(facts.code, facts.declares(name), component.args):
                users.setdefault(extra, []).append(name)
    for extra, names in users.items():
        missing, help = missing_libraries(extra), install_command(extra)
        outdated = outdated_libraries(extra) if missing == () else ()
        what = f"{listed(missing or ())}, not installed here" if missing else listed(outdated)
        if missing is None:
            what, help = f"the extra `{extra}`, which this version of meshctl does not have", ""
        if missing or outdated or missing is None:
            message = f"{listed(names)} {'needs' if len(names) == 1 else 'need'} {what}"
            span = facts.value("components", names[0], "_target_")
            yield Diagnostic("MC442", message, span, help=help, severity="note")
