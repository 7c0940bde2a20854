"""Mutations of calls, targets and inputs, and of overrides on the command line."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from tests.recipe.mutations.correct_recipes import Correct
from tests.recipe.mutations.mutation import Mutation, NoPlace, kind, misspelt_anyhow, pick, quoted, replaced
from tests.recipe.mutations.spelling import pick_text
from tests.recipe.mutations.values import retyped


@kind
def call_in_another_form(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick_text(recipe, chance, "pipeline.*.call")
    component, method = recipe.written(item).split(".")
    target = next(recipe.written(one) for one in recipe.items_at("components", component, "_target_"))
    forms = (
        f"{component}:{method}",
        component,
        f"{target}.{method}",
        f"{component}.{method}()",
        method,
        f"{component}/{method}",
        f"{component}->{method}",
        f"{component}::{method}",
        f"{component} {method}",
    )
    return retyped(recipe, item, chance.choice(forms), quoted(f"{component}.{method}"))


@kind
def target_in_another_form(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick_text(recipe, chance, "components.*._target_")
    module, _, name = recipe.written(item).rpartition(".")
    forms = (
        f"{module}.py",
        f"{module}/{name}",
        f"{module}.py:{name}",
        f"{module}:{name}",
        name,
        f"{module}.{name}()",
        f"./{module}.{name}",
        module,
    )
    return retyped(recipe, item, chance.choice(forms), "module.Class", quoted(f"{module}.{name}"))


@kind
def target_of_the_library(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick_text(recipe, chance, "components.*._target_")
    forms = (
        "os.system",
        "builtins.print",
        "subprocess.Popen",
        "collections.OrderedDict",
        "builtins.eval",
        "shutil.rmtree",
        "sys.exit",
    )
    return retyped(recipe, item, chance.choice(forms), "meshctl.Component")


@kind
def input_is_itself(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick_text(recipe, chance, "pipeline.*.in")
    return retyped(recipe, item, item.path[1], "itself|take")


@kind
def self_given_twice(recipe: Correct, chance: random.Random) -> Mutation:
    found = pick(list(re.finditer(r"_self_\]|^  - _self_$", recipe.text, re.MULTILINE)), chance)
    new = "_self_, _self_]" if found[0].endswith("]") else "  - _self_\n  - _self_"
    return replaced(recipe, found.span(), new, "_self_")


OVERRIDES = {
    "blocks.yaml": (
        "run.stop.patience=5",
        "pipeline.eval.every=20",
        "run.checkpoint.best.mode=max",
        "pipeline.epochs.repeat.times=4",
        "vars.minibatch=64",
        "components.actor.args.lr=0.1",
        "run.on_nan=stop",
        "run.show=[eval.exam.loss]",
    ),
    "grpo.yaml": (
        "run.steps=10",
        "groups.train.env.NCCL_DEBUG=INFO",
        "components.actor.parallel.tp_size=2",
        "+vars.more=3",
        "components.sampler.args.temperature=0.5",
        "run.show=[metrics.loss]",
        "groups.judge.ranks=1",
        "~run.checkpoint.keep",
    ),
    "compact.yaml": (
        "layout@components.critic.parallel=fsdp",
        "pipeline.batch.samples=128",
        "run.checkpoint={every: 5}",
        "components.actor.parallel.cp_size=2",
        "~components.teacher.frozen",
        "groups.judge.device_type=cpu",
    ),
    "experts.yaml": (
        "vars.length=8192",
        "components.model.args.lr=0.1",
        "run.epochs=1",
        "run.show=[metrics.loss,metrics.entropy]",
    ),
    "models.yaml": (
        "layout@components.trainer.parallel=fsdp",
        "components.trainer.args.loss_options.beta=0.2",
        "components.trainer.args.lr=0.1",
        "components.reference.frozen=true",
        "pipeline.batch.samples=64",
        "run.show=[metrics.accuracy]",
    ),
    "programs.yaml": (
        "groups.train.visible_devices='2,3,4,5,6,7'",
        "groups.server.args=[--port,9000]",
        "run.grace=5",
    ),
}


def _overridden(recipe: Correct, override: str, *remedies: str) -> Mutation:
    return Mutation("", recipe, recipe.text, ((0, len(override) + 1),), remedies, override)


def _override(recipe: Correct, chance: random.Random) -> str:
    return chance.choice(OVERRIDES[recipe.name])


def _misspelt_override(
    recipe: Correct, override: str, word: re.Match[str], chance: random.Random
) -> Mutation:
    new = misspelt_anyhow(word[0], chance)
    if new == word[0]:
        raise NoPlace
    made = _overridden(recipe, override[: word.start()] + new + override[word.end() :], quoted(word[0]))
    return replace(made, places=((word.start(), word.start() + len(new)),))


@kind
def override_key_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    override = _override(recipe, chance)
    if override.startswith("+") or "args." in override or "env." in override:
        raise NoPlace
    key = override.partition("=")[0]
    return _misspelt_override(recipe, override, chance.choice(list(re.finditer(r"\w+", key))), chance)


@kind
def override_value_wrong(recipe: Correct, chance: random.Random) -> Mutation:
    override = _override(recipe, chance)
    key, _, value = override.partition("=")
    if not value.isdigit() or key.startswith("+") or key.startswith("vars"):
        raise NoPlace
    return _overridden(
        recipe,
        f"{key}={chance.choice(('many', '-1', '[1]', '0.5', 'null', 'true', '1,2'))}",
        "integer|number|sweep|value",
    )


@kind
def override_adds_what_is_there(recipe: Correct, chance: random.Random) -> Mutation:
    override = _override(recipe, chance)
    if not re.match(r"\w[\w.]+=\w", override):
        raise NoPlace
    return _overridden(recipe, f"+{override}", quoted(override))


@kind
def override_without_value(recipe: Correct, chance: random.Random) -> Mutation:
    override = pick([one for one in OVERRIDES[recipe.name] if re.match(r"(?!vars)[^+=]+=", one)], chance)
    key = override.partition("=")[0]
    return _overridden(
        recipe, chance.choice((key, f"{key}=")), "=|value|integer|number|must|names no|is empty|was chosen"
    )


@kind
def layout_misspelt_in_override(recipe: Correct, chance: random.Random) -> Mutation:
    components = {"grpo.yaml": "actor", "compact.yaml": "actor", "models.yaml": "trainer"}
    if recipe.name not in components:
        raise NoPlace
    override = f"layout@components.{components[recipe.name]}.parallel=fsdp"
    return _misspelt_override(recipe, override, chance.choice([*re.finditer(r"\w+", override)]), chance)
