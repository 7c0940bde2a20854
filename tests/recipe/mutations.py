"""Breaks correct recipes in one place.

A kind of mutation changes one random place of a recipe. It returns the changed text, the places where a person
would see the mistake, and what a help must say that restores a correct recipe.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from meshctl.recipe.fields import COLLECT_MODES, DEVICE_TYPES, DISPATCH_MODES, EXECUTE_MODES
from meshctl.recipe.mistakes import ALIASES
from tests.recipe.correct_recipes import CORRECT, Correct, Item

MAX_TRIES = 10
"""Maximum number of rounds over all recipes in search of a place."""
Span = tuple[int, int]
Place = TypeVar("Place")


@dataclass(frozen=True)
class Mutation:
    recipe: Correct
    text: str
    places: tuple[Span, ...]
    """Offsets in the text; one of them must be reported."""
    remedies: tuple[str, ...]
    """Patterns; one of them must be found in message or help, unless the fixes restore the recipe."""
    override: str = ""
    kind: str = ""


class NoPlace(Exception):
    """The recipe has no place for a mutation of this kind."""


Kind = Callable[[Correct, random.Random], Mutation]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


def mutations(count: int, seed: int) -> Iterator[Mutation]:
    """Yields so many mutations, of all kinds in turn."""
    chance, names = random.Random(seed), list(KINDS)
    for number in range(count):
        yield _one(names[number % len(names)], chance)


def _one(name: str, chance: random.Random) -> Mutation:
    for _ in range(MAX_TRIES):
        for recipe in chance.sample(CORRECT, len(CORRECT)):
            with suppress(NoPlace):
                made = KINDS[name](recipe, chance)
                if made.override or made.text != recipe.text:
                    return replace(made, kind=name)
    raise AssertionError(f"no recipe has a place for {name}")


def pick(places: Sequence[Place], chance: random.Random) -> Place:
    if not places:
        raise NoPlace
    return chance.choice(places)


def quoted(word: str) -> str:
    """Returns the pattern of a word that a help proposes."""
    return rf"(?<![\w-]){re.escape(word)}(?![\w-])"


def replaced(recipe: Correct, span: Span, new: str, *remedies: str, places: Sequence[Span] = ()) -> Mutation:
    """Returns the recipe with one piece of its text replaced; the new piece is the place, if none is given."""
    start, stop = span
    text = recipe.text[:start] + new + recipe.text[stop:]
    return Mutation(recipe, text, tuple(places) or ((start, start + len(new)),), remedies)


def moved(span: Span, edit: Span, new: str) -> Span:
    """Returns where a piece of text is after an edit."""
    first, last = (at if at < edit[1] else at + len(new) - (edit[1] - edit[0]) for at in span)
    return first, last


# Spelling

MISSPELLINGS: tuple[Callable[[str, int, random.Random], str], ...] = (
    lambda word, at, chance: word[:at] + word[at + 1 :],
    lambda word, at, chance: word[:at] + word[at] + word[at:],
    lambda word, at, chance: word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
    lambda word, at, chance: word[:at] + chance.choice("aeioulnrst") + word[at + 1 :],
)


def misspelt(word: str, chance: random.Random) -> str:
    """Returns a word with one mistake behind its first letter."""
    letters = [at for at in range(1, len(word)) if word[at].isalpha()]
    new = (
        word
        if len(word) < 3 or not letters
        else chance.choice(MISSPELLINGS)(word, chance.choice(letters), chance)
    )
    if new == word:
        raise NoPlace
    return new


def misspell(recipe: Correct, span: Span, chance: random.Random) -> Mutation:
    word = recipe.text[slice(*span)]
    return replaced(recipe, span, misspelt(word, chance), quoted(word))


MISSPELT_KEYS = {
    "top_key": ("*",),
    "argument": ("components.*.args.*",),
    "parameter": ("pipeline.*.in.*",),
}
"""Key -> the paths of such keys, which are the user's or at the top. `key_misspelt` has the others."""
MISSPELT = {
    "group": (("components.*.group", "groups.*.colocate"), ".+"),
    "stage": (
        (
            *("pipeline.*.in", "pipeline.*.in.*", "pipeline.*.in.*.from", "pipeline.*.after"),
            *("pipeline.*.dispatch.home", "run.record"),
        ),
        ".+",
    ),
    "synced_component": (("pipeline.*.sync", "pipeline.*.to", "components.*.parallel"), ".+"),
    "metric": (("run.show.*",), ".+"),
    "called_component": (("pipeline.*.call",), r"^\w+"),
    "method": (("pipeline.*.call",), r"\w+$"),
    "class": (("components.*._target_",), r"\w+$"),
    "module": (("components.*._target_",), r"^.+(?=\.)"),
    "data_file": (("components.pairs.args.path",), ".+"),
    "loss": (("components.*.args.loss",), ".+"),
}
"""Name in a value -> (the paths of such values, the pattern of the name)."""
RENAMED: dict[str, Callable[[str, random.Random], str]] = {
    "in_capitals": lambda name, chance: chance.choice((name.upper(), name.capitalize())),
    "with_hyphens": lambda name, chance: re.sub(r"(?<=[^_])_(?=[^_])", "-", name),
    "in_camel_case": lambda name, chance: re.sub(r"(?<=[^_])_([^_])", lambda one: one[1].upper(), name),
    "in_plural": lambda name, chance: name[:-1] if name.endswith("s") else f"{name}s",
    "of_another_system": lambda name, chance: pick(
        [alias for alias, keys in ALIASES.items() if [*keys] == [name]], chance
    ),
}


def add_spelling() -> None:
    def of_key(patterns: Sequence[str]) -> Kind:
        return lambda recipe, chance: misspell(
            recipe, pick([one for one in recipe.items_at(*patterns) if one.is_keyed], chance).key, chance
        )

    def of_value(patterns: Sequence[str], part: str) -> Kind:
        def made(recipe: Correct, chance: random.Random) -> Mutation:
            item = pick([one for one in recipe.items_at(*patterns) if one.kind == "text"], chance)
            found = re.search(part, recipe.written(item))
            if found is None:
                raise NoPlace
            return misspell(recipe, (item.value[0] + found.start(), item.value[0] + found.end()), chance)

        return made

    def renamed(rename: Callable[[str, random.Random], str]) -> Kind:
        def made(recipe: Correct, chance: random.Random) -> Mutation:
            item = pick([one for one in recipe.items if one.is_own and one.is_keyed], chance)
            return replaced(recipe, item.key, rename(item.name, chance), quoted(item.name))

        return made

    KINDS.update({f"{name}_misspelt": of_key(patterns) for name, patterns in MISSPELT_KEYS.items()})
    KINDS.update({f"{name}_misspelt": of_value(*row) for name, row in MISSPELT.items()})
    KINDS.update({f"key_{name}": renamed(rename) for name, rename in RENAMED.items()})


add_spelling()


@kind
def key_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    items = [one for one in recipe.items if one.is_own and one.is_keyed and len(one.path) > 1]
    return misspell(recipe, pick(items, chance).key, chance)


@kind
def word_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    """A mode, a device type, or another word of a few."""
    keys = ("dispatch", "execute", "collect", "balance", "mode", "device_type")
    words = {*DISPATCH_MODES, *EXECUTE_MODES, *COLLECT_MODES, *DEVICE_TYPES, "tokens"}
    items = [one for one in recipe.items if one.name in keys and recipe.written(one) in words]
    return misspell(recipe, pick(items, chance).value, chance)


def uses(recipe: Correct, item: Item) -> list[Span]:
    """Returns the values that name a group, a component or a stage."""
    top, name = item.path
    keys = {
        "groups": ("group", "colocate"),
        "components": ("call", "sync", "to", "parallel"),
        "pipeline": ("in", "from", "after", "home", "record"),
    }[top]
    found = []
    for one in recipe.items:
        written = recipe.written(one).strip("\"'")
        is_first = written.partition(".")[0] == name
        is_shown = top == "pipeline" and one.path[:2] == ("run", "show")
        is_input = top == "pipeline" and len(one.path) == 4 and one.path[2] == "in" and written == name
        if ((one.name in keys or is_shown) and is_first) or is_input:
            found += [one.value] * (one.kind == "text" and one.path[0] != "vars")
    return found


def definitions(recipe: Correct) -> list[Item]:
    return recipe.items_at("groups.*", "components.*", "pipeline.*")


@kind
def definition_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    """The name of a group, a component or a stage, where it is defined and used elsewhere."""
    item = pick([one for one in definitions(recipe) if uses(recipe, one)], chance)
    new = misspelt(item.name, chance)
    places = [moved(span, item.key, new) for span in (item.key, *uses(recipe, item))]
    return replaced(recipe, item.key, new, quoted(item.name), places=places)


@kind
def default_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    """A config, a config group, its package or its option in the defaults list."""
    items = [one for one in recipe.items if one.path[0] == "defaults" and one.kind == "text"]
    spans = [one.value for one in items if recipe.written(one) != "_self_"]
    for one in items:
        words = re.finditer(r"\w+", recipe.text[slice(*one.key)])
        spans += [(one.key[0] + word.start(), one.key[0] + word.end()) for word in words]
    return misspell(recipe, pick(spans, chance), chance)


INTERPOLATION = r"\$\{([\w.]+)\}"
TEMPLATES = ("{{{{ {} }}}}", "${}", "$({})", "{{{}}}", "{{{{{}}}}}", "<{}>")
ENVIRONMENT = ("${oc.env.DATA}", "${env:DATA}", "${DATA}", "$DATA", "${oc.env:DATA")


def matches(recipe: Correct, pattern: str, chance: random.Random) -> re.Match[str]:
    return pick(list(re.finditer(pattern, recipe.text, re.MULTILINE)), chance)


@kind
def interpolation_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    found = matches(recipe, INTERPOLATION, chance)
    word = chance.choice([*re.finditer(r"\w+", found[1])])
    made = misspell(recipe, (found.start(1) + word.start(), found.start(1) + word.end()), chance)
    return replace(made, places=((found.start(), found.end() + 1),))


@kind
def interpolation_in_another_form(recipe: Correct, chance: random.Random) -> Mutation:
    """The form of another template, or without its end."""
    found = matches(recipe, INTERPOLATION, chance)
    if chance.random() < 0.5:
        return replaced(recipe, found.span(), found[0][:-1], "clos", r"`?\}")
    return replaced(recipe, found.span(), chance.choice(TEMPLATES).format(found[1]), re.escape(found[0]))


@kind
def environment_without_colon(recipe: Correct, chance: random.Random) -> Mutation:
    found = matches(recipe, r"\$\{oc\.env:DATA,train\.jsonl\}", chance)
    return replaced(recipe, found.span(), chance.choice(ENVIRONMENT), r"\$\{oc\.env:DATA", "clos")


# Values in another form


@dataclass(frozen=True)
class Retyped:
    """How a value is replaced: in `forms`, `{}` is the value, and other names are pieces of it."""

    fits: Callable[[Item], bool]
    forms: tuple[str, ...]
    remedy: str
    is_wide: bool = False
    """True if the mistake may be reported from the key to behind the value."""


def at(*patterns: str) -> Callable[[Item], bool]:
    return lambda item: item.kind == "text" and any(item.is_at(pattern) for pattern in patterns)


def own(kinds: str, *excluded: str) -> Callable[[Item], bool]:
    """Returns whether an item is a value of these kinds under a key of the product."""
    return lambda item: item.is_own and item.is_keyed and item.kind in kinds and item.name not in excluded


POSITIVE = (
    "ranks",
    "samples",
    "nodes",
    "devices_per_node",
    "keep",
    "dp_size",
    "tp_size",
    "fsdp_size",
    "pp_size",
)
CALLS = ("{0}:{1}", "{0}", "{target}.{1}", "{0}.{1}()", "{1}", "{0}/{1}", "{0}->{1}", "{0}::{1}", "{0} {1}")
TARGETS = ("{0}.py", "{0}/{1}", "{0}.py:{1}", "{0}:{1}", "{1}", "{0}.{1}()", "./{0}.{1}", "{0}")
LIBRARIES = ("os.system", "builtins.print", "subprocess.Popen", "collections.OrderedDict", "shutil.rmtree")
RETYPED = {
    "number_in_quotes": Retyped(own("number"), ('"{}"',), "quotes"),
    "number_in_words": Retyped(own("number"), ("two", "many", "all", "1k", "4x"), "integer|number"),
    "number_with_unit": Retyped(own("number"), ("{}s", "{}GB", "{} gpus", "{}k"), "integer|number"),
    "number_with_fraction": Retyped(own("number", "grace"), ("{}.0", "{}.5", "{}e1"), r"integer|write \d+"),
    "number_negative": Retyped(own("number"), ("-{}",), "positive|0 or more|0 or greater|integer|negative|number"),
    "number_zero": Retyped(lambda item: own("number")(item) and item.name in POSITIVE, ("0",), "positive|from 1"),
    "number_as_boolean": Retyped(own("number"), ("true", "yes", "off"), "integer|number"),
    "boolean_in_words": Retyped(own("bool"), ('"true"', "1", "maybe", "enabled", "True!"), "true or false|true"),
    "text_as_boolean": Retyped(
        at("name", "components.*.group", "pipeline.*.call", "run.dir"),
        ("on", "no", "true", "12", "3.5"),
        "quote|text|component|group",
    ),
    "text_emptied": Retyped(own("text"), ('""',), "value|text|list|empty|does not exist|must"),
    "value_as_list": Retyped(
        own("number text", *("in", "after", "record", "show", "ranks", "devices_per_node", "visible_devices")),
        ("[{}]",),
        "list|bracket|integer|number|text|write",
    ),
    "value_as_mapping": Retyped(
        own("number text", "in", "devices_per_node", "dispatch", "model", "parallel", "program"),
        ("{{value: {quoted}}}",),
        "mapping",
    ),
    "value_left_out": Retyped(
        own("number text bool"), ("",), "integer|number|text|value|true or false|list|must", is_wide=True
    ),
    "alias_unknown": Retyped(lambda item: item.is_keyed and item.kind in "number text", ("*shared ",), "anchor"),
    "colon_in_plain_text": Retyped(
        at("name", "components.*.args.path", "run.dir", "vars.prompts"), ("run: two",), "quote", is_wide=True
    ),
    "call_in_another_form": Retyped(at("pipeline.*.call"), CALLS, "{0}.{1}"),
    "target_in_another_form": Retyped(at("components.*._target_"), TARGETS, "module.Class|{0}.{1}"),
    "target_of_the_library": Retyped(at("components.*._target_"), LIBRARIES, "meshctl.Component"),
    "input_is_itself": Retyped(lambda item: item.kind == "text" and item.is_at("pipeline.*.in"), ("{parent}",), "itself|take"),
    "samples_too_few": Retyped(
        lambda item: item.kind == "number" and item.is_at("pipeline.*.samples"), ("1",), r"at least \d|not the same|\d"
    ),
}  # fmt: skip


def add_values() -> None:
    def retyped(row: Retyped) -> Kind:
        def made(recipe: Correct, chance: random.Random) -> Mutation:
            item = pick([one for one in recipe.items if row.fits(one)], chance)
            written = recipe.written(item)
            if row.forms == ("run: two",) and written[:1] in ("'", '"'):
                raise NoPlace
            first, _, last = written.rpartition(".")
            targets = [recipe.written(one) for one in recipe.items_at(f"components.{first}._target_")]
            pieces = {
                "target": (targets or [""])[0],
                "quoted": f'"{written}"' if written.startswith("${") else written,
                "parent": item.path[1] if len(item.path) > 1 else "",
            }
            form, parts = chance.choice(row.forms), (first, last) if "{0}" in row.remedy else (written, "")
            remedy = row.remedy.replace("{0}.{1}", quoted(written))
            new = form.format(*parts, **pieces)
            places = ((item.key[0], item.value[0] + max(len(new), 1) + 1),) if row.is_wide else ()
            return replaced(recipe, item.value, new, remedy, places=places)

        return made

    KINDS.update({name: retyped(row) for name, row in RETYPED.items()})


add_values()


def mappings(recipe: Correct) -> list[Item]:
    return [one for one in recipe.items if one.kind == "mapping" and recipe.written(one) != "{}"]


@kind
def mapping_as_text(recipe: Correct, chance: random.Random) -> Mutation:
    excluded = ("in", "dispatch", "devices_per_node", "program", "parallel", "model")
    items = [one for one in mappings(recipe) if one.is_keyed and (one.is_own or len(one.path) == 2)]
    items = [one for one in items if one.path[0] not in ("vars", "defaults") and one.name not in excluded]
    item, new = pick(items, chance), chance.choice(("default", "7", "none"))
    if recipe.text[item.value[0]] == "{":
        start = item.value[0]
    else:
        start, new = item.key[1] + 1, f" {new}"
    places = ((item.key[0], item.value[0] + 9),)
    return replaced(recipe, (start, item.value[1]), new, "mapping|keys|write", places=places)


# Numbers that must fit together


def changed_number(recipe: Correct, item: Item, new: str, remedy: str, *others: str) -> Mutation:
    """Returns the recipe with another number, which is reported there or at items of some paths."""
    if new == recipe.written(item):
        raise NoPlace
    start = item.value[0]
    spans = [(one.key[0], one.value[1]) for one in recipe.items_at(*others)]
    places = [(start, start + len(new)), *(moved(span, item.value, new) for span in spans)]
    return replaced(recipe, item.value, new, remedy, places=places)


def number_at(recipe: Correct, chance: random.Random, *patterns: str) -> Item:
    return pick([one for one in recipe.items_at(*patterns) if one.kind == "number"], chance)


@kind
def size_wrong(recipe: Correct, chance: random.Random) -> Mutation:
    item = number_at(recipe, chance, "components.*.parallel.*")
    if item.name == "ep_size":
        raise NoPlace
    remedy = r"\b(dp|fsdp|tp|pp|cp)\b \d|`\w+: \d+`|these do|choose"
    return changed_number(
        recipe, item, chance.choice(("3", "5", "7", "64")), remedy, ".".join(item.path[:-1])
    )


@kind
def ranks_wrong(recipe: Correct, chance: random.Random) -> Mutation:
    item, new = number_at(recipe, chance, "groups.*.ranks"), chance.choice(("3", "5", "7", "31"))
    return changed_number(recipe, item, new, r"\d", "components.*.parallel", "groups.*.visible_devices")


@kind
def cluster_too_small(recipe: Correct, chance: random.Random) -> Mutation:
    item = number_at(recipe, chance, "cluster.*")
    new = "1" if item.name == "nodes" else chance.choice("234")
    return changed_number(recipe, item, new, r"\d", "groups.*.ranks")


@kind
def device_beyond_cluster(recipe: Correct, chance: random.Random) -> Mutation:
    """A device that does not exist, or that the group has twice."""
    item = pick(recipe.items_at("groups.*.ranks.*"), chance)
    return changed_number(recipe, item, chance.choice(("16", "99", "1")), r"\d", ".".join(item.path[:-1]))


# Lines and keys in wrong places


def without(recipe: Correct, item: Item) -> Span:
    """Returns the offsets to remove so that an item is gone."""
    if not item.is_flow:
        return recipe.block(item)
    start, stop = item.key[0], item.value[1]
    after = re.compile(r",\s*").match(recipe.text, stop)
    before = re.compile(r",\s*$").search(recipe.text[:start])
    if after:
        return start, after.end()
    return before.start() if before else start, stop


def move(recipe: Correct, item: Item, target: Item, remedy: str) -> Mutation:
    """Returns the recipe with an item of one line moved to the end of another mapping."""
    written, gone = recipe.text[item.key[0] : item.value[1]], without(recipe, item)
    if target.is_flow or recipe.text[target.value[0]] == "{":
        place, new, start = target.value[1] - 1, f", {written}", 2
    else:
        last = [one for one in recipe.items if one.path[:-1] == target.path][-1]
        place, start = recipe.block(last)[1], last.key[0] - recipe.line(last.key[0])[0]
        new = f"{' ' * start}{written}\n"
    if gone[0] <= place < gone[1]:
        raise NoPlace
    text = recipe.text[:place] + new + recipe.text[place:]
    shift = len(new) if gone[0] >= place else 0
    text = text[: gone[0] + shift] + text[gone[1] + shift :]
    place += start - (gone[1] - gone[0] if gone[1] <= place else 0)
    return Mutation(recipe, text, ((place, place + len(item.name)),), (remedy,))


@kind
def key_moved_between_sections(recipe: Correct, chance: random.Random) -> Mutation:
    """`device_type` in a component, `group` in a stage, `steps` in `cluster`."""
    items = [one for one in recipe.items if one.is_own and one.is_keyed and len(one.path) > 1]
    items = [one for one in items if recipe.is_one_line(one) and one.path[0] not in ("vars", "defaults")]
    item = pick(items, chance)
    targets = [one for one in mappings(recipe) if one in definitions(recipe) and one.path[0] != item.path[0]]
    targets += [one for one in recipe.items_at("run") if item.path[0] != "run"]
    remedy = rf"{quoted(item.path[-2])}|a key of|{quoted(item.path[0])}|called|to a component"
    return move(recipe, item, pick(targets, chance), remedy)


@kind
def definition_moved_to_another_section(recipe: Correct, chance: random.Random) -> Mutation:
    """A component under `groups`, a stage under `components`."""
    items = [one for one in definitions(recipe) if one.kind == "mapping" and recipe.is_one_line(one)]
    item = pick(items, chance)
    targets = [one for one in recipe.items_at("groups", "components", "pipeline") if one.name != item.path[0]]
    return move(recipe, item, pick(targets, chance), quoted(item.path[0]))


@kind
def required_key_missing(recipe: Correct, chance: random.Random) -> Mutation:
    required = {"ranks", "_target_", "group", "call", "sync", "to"}
    items = [
        one for one in recipe.items if len(one.path) == 3 and one.name in required and recipe.is_one_line(one)
    ]
    takes = {one.path[:-1] for one in recipe.items_at("pipeline.*.in")}
    items += [one for one in recipe.items_at("pipeline.*.samples") if one.path[:-1] not in takes]
    item = pick(items, chance)
    [parent] = recipe.items_at(".".join(item.path[:-1]))
    return replaced(
        recipe, without(recipe, item), "", quoted(item.name), places=[(parent.key[0], parent.value[1])]
    )


@kind
def definition_missing(recipe: Correct, chance: random.Random) -> Mutation:
    """A group, a component or a stage that others name is gone."""
    item = pick([one for one in definitions(recipe) if len(uses(recipe, one)) == 1], chance)
    gone, [top] = without(recipe, item), recipe.items_at(item.path[0])
    places = [*(moved(span, gone, "") for span in uses(recipe, item)), top.key]
    return replaced(recipe, gone, "", quoted(item.name), places=places)


# Syntax


@kind
def bracket_not_closed(recipe: Correct, chance: random.Random) -> Mutation:
    found = matches(recipe, r"(?<!\$)(?<!\$\{)[\]}](?=[\s,\]}])", chance)
    # Without one of several brackets in a row, the text is the same.
    row = re.compile(r"[\]}]+").match(recipe.text, found.start())
    ends = range(found.end(), (row.end() if row else found.end()) + 1)
    places = [(one.key[0], found.end()) for one in recipe.items if one.value[1] in ends]
    if not places:
        raise NoPlace
    return replaced(recipe, found.span(), "", "clos|bracket|brace|`[\\]}]`", places=places)


@kind
def self_given_twice(recipe: Correct, chance: random.Random) -> Mutation:
    found = matches(recipe, r"_self_\]|^  - _self_$", chance)
    new = "_self_, _self_]" if found[0].endswith("]") else "  - _self_\n  - _self_"
    return replaced(recipe, found.span(), new, "_self_")


# Overrides

LAYOUT = "layout@components.{}.parallel=fsdp"
OVERRIDES = {
    "blocks.yaml": (
        *("run.stop.patience=5", "pipeline.eval.every=20", "run.checkpoint.best.mode=max", "vars.minibatch=64"),
        *("pipeline.epochs.repeat.times=4", "components.actor.args.lr=0.1", "run.on_nan=stop"),
        "run.show=[eval.exam.loss]",
    ),
    "grpo.yaml": (
        *("run.steps=10", "groups.train.env.NCCL_DEBUG=INFO", "components.actor.parallel.tp_size=2"),
        *("+vars.more=3", "components.sampler.args.temperature=0.5", "run.show=[metrics.loss]"),
        *("groups.judge.ranks=1", "~run.checkpoint.keep"),
    ),
    "compact.yaml": (
        *(LAYOUT.format("critic"), "pipeline.batch.samples=128", "run.checkpoint={every: 5}"),
        *("components.actor.parallel.cp_size=2", "~components.teacher.frozen", "groups.judge.device_type=cpu"),
    ),
    "experts.yaml": (
        *("vars.length=8192", "components.model.args.lr=0.1", "run.epochs=1"),
        "run.show=[metrics.loss,metrics.entropy]",
    ),
    "models.yaml": (
        *(LAYOUT.format("trainer"), "components.trainer.args.loss_options.beta=0.2", "run.show=[metrics.accuracy]"),
        *("components.trainer.args.lr=0.1", "components.reference.frozen=true", "pipeline.batch.samples=64"),
    ),
    "programs.yaml": (
        *("groups.train.visible_devices='2,3,4,5,6,7'", "groups.server.args=[--port,9000]", "run.grace=5"),
    ),
}  # fmt: skip
WRONG_NUMBERS = ("many", "-1", "[1]", "0.5", "null", "true", "1,2")
NO_VALUE = "=|value|integer|number|must|names no|is empty|was chosen"


def override_of(recipe: Correct, pattern: str, chance: random.Random) -> str:
    return pick([one for one in OVERRIDES[recipe.name] if re.match(pattern, one)], chance)


def overridden(recipe: Correct, override: str, remedy: str) -> Mutation:
    return Mutation(recipe, recipe.text, ((0, len(override) + 1),), (remedy,), override)


def misspelt_override(recipe: Correct, override: str, end: int, chance: random.Random) -> Mutation:
    word = chance.choice(list(re.finditer(r"\w+", override[:end])))
    new = misspelt(word[0], chance)
    made = overridden(recipe, override[: word.start()] + new + override[word.end() :], quoted(word[0]))
    return replace(made, places=((word.start(), word.start() + len(new)),))


@kind
def override_key_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    override = override_of(recipe, r"(?!\+|.*args\.|.*env\.)", chance)
    return misspelt_override(recipe, override, len(override.partition("=")[0]), chance)


@kind
def layout_misspelt_in_override(recipe: Correct, chance: random.Random) -> Mutation:
    components = {"grpo.yaml": "actor", "compact.yaml": "actor", "models.yaml": "trainer"}
    if recipe.name not in components:
        raise NoPlace
    override = LAYOUT.format(components[recipe.name])
    return misspelt_override(recipe, override, len(override), chance)


@kind
def override_value_wrong(recipe: Correct, chance: random.Random) -> Mutation:
    key = override_of(recipe, r"(?!\+|vars)[^=]+=\d+$", chance).partition("=")[0]
    return overridden(recipe, f"{key}={chance.choice(WRONG_NUMBERS)}", "integer|number|sweep|value")


@kind
def override_adds_what_is_there(recipe: Correct, chance: random.Random) -> Mutation:
    override = override_of(recipe, r"\w[\w.]+=\w", chance)
    return overridden(recipe, f"+{override}", quoted(override))


@kind
def override_without_value(recipe: Correct, chance: random.Random) -> Mutation:
    key = override_of(recipe, r"(?!vars)[^+=]+=", chance).partition("=")[0]
    return overridden(recipe, chance.choice((key, f"{key}=")), NO_VALUE)
