"""Breaks correct recipes in one place, and judges the report.

    python -m tests.recipe.mutations --inputs 10000 --examples 2      the table of all kinds, and what failed

Each kind of mutation is a function that changes one random place of a recipe. It returns the changed text, the
place where a person would see the mistake, and what a help must say that restores a correct recipe. `judge` loads
the broken recipe and requires that exactly this place is reported, once, and that the fixes of the report lead to a
recipe without errors, or its help says what to write. A mutation after which the recipe is still valid has another
meaning; such mutations are counted apart.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from meshctl.diagnostics import Diagnostic, Report
from meshctl.recipe import fixes
from meshctl.recipe.fields import COLLECT_MODES, DEVICE_TYPES, DISPATCH_MODES, EXECUTE_MODES
from meshctl.recipe.load import Loaded, load
from meshctl.recipe.suggestions import ALIASES
from meshctl.view.reports.text import text as report_text

FOLDER = Path(__file__).parent / "correct"
MAX_TRIES = 60
MAX_ROUNDS = 3
"""How often the fixes of a report are applied."""


@dataclass(frozen=True)
class Item:
    """One key of a mapping with its value, or one item of a list, by offsets in the text."""

    path: tuple[str, ...]
    key: tuple[int, int]
    """The key, or the empty place before an item of a list."""
    value: tuple[int, int]
    kind: str
    """`text`, `number`, `bool`, `mapping`, `list` or `null`."""
    is_flow: bool
    """Whether it stands in brackets."""

    @property
    def name(self) -> str:
        return self.path[-1]


@dataclass(frozen=True)
class Correct:
    """A correct recipe."""

    name: str
    text: str
    items: tuple[Item, ...]

    def items_at(self, *pattern: str) -> list[Item]:
        """Returns the items whose path fits a pattern of names and `*`."""
        return [item for item in self.items if _fits(item.path, pattern)]

    def written(self, item: Item) -> str:
        return self.text[slice(*item.value)]

    def line(self, offset: int) -> tuple[int, int]:
        """Returns the offsets of the line around an offset, without its line break."""
        start = self.text.rfind("\n", 0, offset) + 1
        stop = self.text.find("\n", offset)
        return start, len(self.text) if stop < 0 else stop

    def block(self, item: Item) -> tuple[int, int]:
        """Returns the offsets of all lines of an item in block style, with their line breaks."""
        start = self.line(item.key[0])[0]
        stop = self.line(max(item.value[1] - 1, item.key[1]))[1] + 1
        return start, stop


def _fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(path) == len(pattern) and all(
        want in ("*", name) for name, want in zip(path, pattern, strict=True)
    )


@dataclass(frozen=True)
class Mutation:
    kind: str
    recipe: Correct
    text: str
    places: tuple[tuple[int, int], ...]
    """Offsets in the text; one of them must be reported."""
    remedies: tuple[str, ...]
    """Patterns; one of them must be found in message or help, unless the fixes restore the recipe."""
    override: str = ""


Made = Mutation | None
Kind = Callable[[Correct, random.Random], Made]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


# Reading correct recipes


def read(path: Path) -> Correct:
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return Correct(path.name, text, tuple(_items(root, (), False)))


def _items(node: Any, path: tuple[str, ...], is_flow: bool) -> Iterator[Item]:
    is_flow = is_flow or bool(getattr(node, "flow_style", False))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, key.value)
            span = (key.start_mark.index, key.end_mark.index)
            yield Item(here, span, _span(value), _kind(value), is_flow)
            yield from _items(value, here, is_flow)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here, start = (*path, str(index)), value.start_mark.index
            yield Item(here, (start, start), _span(value), _kind(value), is_flow)
            yield from _items(value, here, is_flow)


def _span(node: Any) -> tuple[int, int]:
    stop = node.end_mark.index
    if not isinstance(node, yaml.ScalarNode) and not node.flow_style:
        last = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
        stop = _span(last)[1]
    return node.start_mark.index, stop


def _kind(node: Any) -> str:
    if isinstance(node, yaml.MappingNode):
        return "mapping"
    if isinstance(node, yaml.SequenceNode):
        return "list"
    kinds = {"int": "number", "float": "number", "bool": "bool", "null": "null"}
    return kinds.get(node.tag.rpartition(":")[2], "text")


CORRECT = tuple(read(path) for path in sorted(FOLDER.glob("*.yaml")))


# Making mutations


def replaced(
    recipe: Correct, span: tuple[int, int], new: str, *remedies: str, places: Sequence[tuple[int, int]] = ()
) -> Made:
    """Returns the recipe with one piece of its text replaced; the new piece is the place."""
    start, stop = span
    text = recipe.text[:start] + new + recipe.text[stop:]
    return Mutation("", recipe, text, tuple(places) or ((start, start + len(new)),), remedies)


def moved(offset: int, edit: tuple[int, int], new: str) -> int:
    """Returns where an offset is after an edit."""
    return offset if offset < edit[1] else offset + len(new) - (edit[1] - edit[0])


def quoted(word: str) -> str:
    """Returns the pattern of a word that a help proposes."""
    return rf"(?<![\w-]){re.escape(word)}(?![\w-])"


def pick(items: Sequence[Item], chance: random.Random) -> Item | None:
    return chance.choice(items) if items else None


def keys_of_sections(recipe: Correct) -> list[Item]:
    """Returns the items whose keys are the product's, and not the user's."""
    return [item for item in recipe.items if is_own_key(item.path) and item.key[0] != item.key[1]]


def is_own_key(path: tuple[str, ...]) -> bool:
    top = path[0]
    if top in ("vars", "defaults"):
        return len(path) == 1
    if top in ("groups", "components", "pipeline"):
        free = any(name in ("args", "env") for name in path[2:-1])
        in_parameters = len(path) == 4 and path[2] == "in"
        return len(path) != 2 and not free and not in_parameters
    return True


MISSPELLINGS: dict[str, Callable[[str, int, random.Random], str]] = {
    "dropped": lambda word, at, chance: word[:at] + word[at + 1 :],
    "doubled": lambda word, at, chance: word[:at] + word[at] + word[at:],
    "swapped": lambda word, at, chance: word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
    "changed": lambda word, at, chance: word[:at] + chance.choice("aeioulnrst") + word[at + 1 :],
}


def misspelt(word: str, how: str, chance: random.Random) -> str:
    """Returns a word with one mistake behind its first letter; the same word if it is too short."""
    letters = [at for at in range(1, len(word)) if word[at].isalpha()]
    if len(word) < 3 or not letters:
        return word
    return MISSPELLINGS[how](word, chance.choice(letters), chance)


def misspelt_anyhow(word: str, chance: random.Random) -> str:
    return misspelt(word, chance.choice(list(MISSPELLINGS)), chance)


def misspell(recipe: Correct, span: tuple[int, int], chance: random.Random, how: str = "") -> Made:
    word = recipe.text[slice(*span)]
    new = misspelt(word, how, chance) if how else misspelt_anyhow(word, chance)
    return None if new == word else replaced(recipe, span, new, quoted(word))


# Misspelt keys


def _key(recipe: Correct, chance: random.Random, how: str) -> Made:
    item = pick([one for one in keys_of_sections(recipe) if len(one.path) > 1], chance)
    return misspell(recipe, item.key, chance, how) if item else None


@kind
def key_without_letter(recipe: Correct, chance: random.Random) -> Made:
    return _key(recipe, chance, "dropped")


@kind
def key_with_doubled_letter(recipe: Correct, chance: random.Random) -> Made:
    return _key(recipe, chance, "doubled")


@kind
def key_with_swapped_letters(recipe: Correct, chance: random.Random) -> Made:
    return _key(recipe, chance, "swapped")


@kind
def key_with_changed_letter(recipe: Correct, chance: random.Random) -> Made:
    return _key(recipe, chance, "changed")


@kind
def key_in_capitals(recipe: Correct, chance: random.Random) -> Made:
    item = pick(keys_of_sections(recipe), chance)
    if item is None:
        return None
    new = chance.choice((item.name.upper(), item.name.capitalize()))
    return None if new == item.name else replaced(recipe, item.key, new, quoted(item.name))


@kind
def key_with_hyphens(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in keys_of_sections(recipe) if "_" in one.name.strip("_")], chance)
    return replaced(recipe, item.key, item.name.replace("_", "-"), quoted(item.name)) if item else None


@kind
def key_in_camel_case(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in keys_of_sections(recipe) if "_" in one.name.strip("_")], chance)
    if item is None:
        return None
    first, *rest = item.name.split("_")
    return replaced(recipe, item.key, first + "".join(map(str.capitalize, rest)), quoted(item.name))


@kind
def key_in_plural(recipe: Correct, chance: random.Random) -> Made:
    item = pick(keys_of_sections(recipe), chance)
    if item is None:
        return None
    new = item.name[:-1] if item.name.endswith("s") else f"{item.name}s"
    return replaced(recipe, item.key, new, quoted(item.name))


@kind
def key_of_another_system(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in keys_of_sections(recipe) if one.name in ALIASES.values()], chance)
    if item is None:
        return None
    aliases = [alias for alias, key in ALIASES.items() if key == item.name]
    return replaced(recipe, item.key, chance.choice(aliases), quoted(item.name))


@kind
def top_key_misspelt(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in recipe.items if len(one.path) == 1], chance)
    return misspell(recipe, item.key, chance) if item else None


@kind
def argument_misspelt(recipe: Correct, chance: random.Random) -> Made:
    item = pick(recipe.items_at("components", "*", "args", "*"), chance)
    return misspell(recipe, item.key, chance) if item else None


@kind
def parameter_misspelt(recipe: Correct, chance: random.Random) -> Made:
    items = [one for one in recipe.items_at("pipeline", "*", "in", "*") if one.key[0] != one.key[1]]
    item = pick(items, chance)
    return misspell(recipe, item.key, chance) if item else None


# Misspelt names and words


def _value(recipe: Correct, chance: random.Random, *patterns: tuple[str, ...]) -> Item | None:
    return pick(
        [one for pattern in patterns for one in recipe.items_at(*pattern) if one.kind == "text"], chance
    )


@kind
def group_misspelt(recipe: Correct, chance: random.Random) -> Made:
    item = _value(recipe, chance, ("components", "*", "group"), ("groups", "*", "colocate"))
    return misspell(recipe, item.value, chance) if item else None


@kind
def stage_misspelt(recipe: Correct, chance: random.Random) -> Made:
    item = _value(
        recipe,
        chance,
        *(("pipeline", "*", "in"), ("pipeline", "*", "in", "*"), ("pipeline", "*", "in", "*", "from")),
        *(("pipeline", "*", "after"), ("pipeline", "*", "dispatch", "home"), ("run", "record")),
    )
    return misspell(recipe, item.value, chance) if item else None


@kind
def called_component_misspelt(recipe: Correct, chance: random.Random) -> Made:
    item = _value(recipe, chance, ("pipeline", "*", "call"))
    if item is None:
        return None
    return misspell(recipe, (item.value[0], item.value[0] + recipe.written(item).index(".")), chance)


@kind
def method_misspelt(recipe: Correct, chance: random.Random) -> Made:
    item = _value(recipe, chance, ("pipeline", "*", "call"))
    if item is None:
        return None
    return misspell(recipe, (item.value[0] + recipe.written(item).index(".") + 1, item.value[1]), chance)


@kind
def synced_component_misspelt(recipe: Correct, chance: random.Random) -> Made:
    item = _value(
        recipe, chance, ("pipeline", "*", "sync"), ("pipeline", "*", "to"), ("components", "*", "parallel")
    )
    return misspell(recipe, item.value, chance) if item else None


@kind
def class_misspelt(recipe: Correct, chance: random.Random) -> Made:
    item = _value(recipe, chance, ("components", "*", "_target_"))
    if item is None:
        return None
    return misspell(recipe, (item.value[0] + recipe.written(item).rindex(".") + 1, item.value[1]), chance)


@kind
def module_misspelt(recipe: Correct, chance: random.Random) -> Made:
    item = _value(recipe, chance, ("components", "*", "_target_"))
    if item is None:
        return None
    return misspell(recipe, (item.value[0], item.value[0] + recipe.written(item).rindex(".")), chance)


@kind
def word_misspelt(recipe: Correct, chance: random.Random) -> Made:
    """A mode, a device type, or another word of a few."""
    keys = ("dispatch", "execute", "collect", "balance", "mode", "device_type")
    words = {*DISPATCH_MODES, *EXECUTE_MODES, *COLLECT_MODES, *DEVICE_TYPES, "tokens"}
    item = pick([one for one in recipe.items if one.name in keys and recipe.written(one) in words], chance)
    return misspell(recipe, item.value, chance) if item else None


@kind
def metric_misspelt(recipe: Correct, chance: random.Random) -> Made:
    item = pick(recipe.items_at("run", "show", "*"), chance)
    return misspell(recipe, item.value, chance) if item else None


@kind
def definition_misspelt(recipe: Correct, chance: random.Random) -> Made:
    """The name of a group, a component or a stage, where it is defined and used elsewhere."""
    tops = ("groups", "components", "pipeline")
    items = [one for top in tops for one in recipe.items_at(top, "*")]
    items = [one for one in items if _uses(recipe, one)]
    item = pick(items, chance)
    if item is None:
        return None
    new = misspelt_anyhow(item.name, chance)
    edit = item.key
    uses = [(moved(a, edit, new), moved(b, edit, new)) for a, b in _uses(recipe, item)]
    if new == item.name:
        return None
    places = [(edit[0], edit[0] + len(new)), *uses]
    return replaced(recipe, edit, new, quoted(item.name), places=places)


def _uses(recipe: Correct, item: Item) -> list[tuple[int, int]]:
    top, name = item.path
    keys = {
        "groups": ("group", "colocate"),
        "components": ("call", "sync", "to", "parallel"),
        "pipeline": ("in", "from", "after", "home", "record"),
    }[top]
    found = []
    for one in recipe.items:
        written = recipe.written(one).strip("\"'")
        is_use = (one.name in keys and written.partition(".")[0] == name) or (
            top == "pipeline" and one.path[:2] == ("run", "show") and written.partition(".")[0] == name
        )
        in_parameter = top == "pipeline" and len(one.path) == 4 and one.path[2] == "in" and written == name
        if (is_use or in_parameter) and one.kind == "text" and one.path[0] != "vars":
            found.append(one.value)
    return found


@kind
def default_misspelt(recipe: Correct, chance: random.Random) -> Made:
    """A config, a config group, its package or its option in the defaults list."""
    items = [one for one in recipe.items if one.path[0] == "defaults" and one.kind == "text"]
    spans = [one.value for one in items if recipe.written(one) != "_self_"]
    for one in items:
        for word in re.finditer(r"[\w]+", recipe.text[slice(*one.key)]):
            spans.append((one.key[0] + word.start(), one.key[0] + word.end()))
    return misspell(recipe, chance.choice(spans), chance) if spans else None


# Interpolations


def _interpolations(recipe: Correct) -> list[re.Match[str]]:
    return list(re.finditer(r"\$\{([\w.]+)\}", recipe.text))


def _one_of(found: list[re.Match[str]], chance: random.Random) -> re.Match[str] | None:
    return chance.choice(found) if found else None


@kind
def interpolation_misspelt(recipe: Correct, chance: random.Random) -> Made:
    found = _one_of(_interpolations(recipe), chance)
    if found is None:
        return None
    word = chance.choice([*re.finditer(r"\w+", found[1])])
    start = found.start(1)
    made = misspell(recipe, (start + word.start(), start + word.end()), chance)
    return replace(made, places=((found.start(), found.end() + 1),)) if made else None


@kind
def interpolation_of_another_template(recipe: Correct, chance: random.Random) -> Made:
    found = _one_of(_interpolations(recipe), chance)
    if found is None:
        return None
    forms = ("{{{{ {} }}}}", "${}", "$({})", "{{{}}}", "{{{{{}}}}}", "<{}>")
    new = chance.choice(forms).format(found[1])
    return replaced(recipe, found.span(), new, re.escape(found[0]))


@kind
def interpolation_not_closed(recipe: Correct, chance: random.Random) -> Made:
    found = _one_of(_interpolations(recipe), chance)
    return replaced(recipe, (found.start(), found.end()), found[0][:-1], "clos", r"`?\}") if found else None


@kind
def environment_without_colon(recipe: Correct, chance: random.Random) -> Made:
    found = re.search(r"\$\{oc\.env:DATA,train\.jsonl\}", recipe.text)
    if found is None:
        return None
    new = chance.choice(("${oc.env.DATA}", "${env:DATA}", "${DATA}", "$DATA", "${oc.env:DATA"))
    return replaced(recipe, found.span(), new, r"\$\{oc\.env:DATA", "clos")


# Indentation


def _block_items(recipe: Correct) -> list[Item]:
    """Returns items in block style whose key begins its line."""
    found = []
    for item in recipe.items:
        start, _ = recipe.line(item.key[0])
        if (
            not item.is_flow
            and item.key[0] != item.key[1]
            and not recipe.text[start : item.key[0]].strip(" ")
        ):
            found.append(item)
    return found


def _is_last(recipe: Correct, item: Item) -> bool:
    siblings = [one for one in recipe.items if one.path[:-1] == item.path[:-1]]
    return siblings[-1] is item


def _scalar_lines(recipe: Correct) -> list[Item]:
    return [
        one
        for one in _block_items(recipe)
        if one.kind not in ("mapping", "list") or _is_one_line(recipe, one)
    ]


def _is_one_line(recipe: Correct, item: Item) -> bool:
    return recipe.text[slice(*item.value)].count("\n") == 0 and recipe.line(item.key[0]) == recipe.line(
        item.value[0]
    )


INDENT = ("indent", "column", "level", "space", "under", "belongs", "goes")


def _indented(recipe: Correct, item: Item, by: int) -> Made:
    """Returns the recipe with one line indented more or less."""
    start, _ = recipe.line(item.key[0])
    width = item.key[0] - start
    if width + by < 0:
        return None
    new = " " * (width + by)
    lines = recipe.text[item.key[0] : recipe.line(item.key[0])[1]]
    place = (start, start + len(new) + len(lines))
    return replaced(recipe, (start, item.key[0]), new, *INDENT, places=(place,))


@kind
def line_indented_by_one_less(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in _scalar_lines(recipe) if len(one.path) > 1], chance)
    return _indented(recipe, item, -1) if item else None


@kind
def line_indented_by_one_more(recipe: Correct, chance: random.Random) -> Made:
    item = pick(_scalar_lines(recipe), chance)
    return _indented(recipe, item, 1) if item else None


@kind
def line_indented_by_a_level_more(recipe: Correct, chance: random.Random) -> Made:
    item = pick(_scalar_lines(recipe), chance)
    return _indented(recipe, item, 2) if item else None


@kind
def line_indented_by_a_level_less(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in _scalar_lines(recipe) if len(one.path) > 2], chance)
    return _indented(recipe, item, -2) if item else None


def _shifted(recipe: Correct, item: Item, by: int) -> Made:
    """Returns the recipe with all lines of an item indented more or less."""
    start, stop = recipe.block(item)
    lines = recipe.text[start:stop].splitlines(keepends=True)
    if by < 0 and any(line.strip() and not line.startswith(" " * -by) for line in lines):
        return None
    new = "".join((" " * by + line if by > 0 else line[-by:]) if line.strip() else line for line in lines)
    place = (start, start + len(new.splitlines()[0]))
    return replaced(recipe, (start, stop), new, *INDENT, places=(place,))


def _blocks(recipe: Correct, *lengths: int) -> list[Item]:
    blocks = [one for one in _block_items(recipe) if one.kind == "mapping" and not _is_one_line(recipe, one)]
    return [one for one in blocks if len(one.path) in lengths]


@kind
def mapping_indented_into_one_above(recipe: Correct, chance: random.Random) -> Made:
    """A component that became a key of the one above it."""
    blocks = []
    for one in _blocks(recipe, 2):
        above = [other for other in recipe.items if other.path[:-1] == one.path[:-1] and other.key < one.key]
        blocks += [one] if above and not above[-1].is_flow and above[-1].kind == "mapping" else []
    item = pick(blocks, chance)
    return _shifted(recipe, item, 2) if item else None


@kind
def mapping_indented_by_a_level_less(recipe: Correct, chance: random.Random) -> Made:
    item = pick(_blocks(recipe, 2, 3, 4), chance)
    return _shifted(recipe, item, -2) if item else None


@kind
def children_not_indented(recipe: Correct, chance: random.Random) -> Made:
    """The keys of a mapping stand in the column of the mapping's own key."""
    item = pick(_blocks(recipe, 1, 2, 3), chance)
    if item is None:
        return None
    _, stop = recipe.block(item)
    start = recipe.line(item.key[0])[1] + 1
    lines = recipe.text[start:stop].splitlines(keepends=True)
    new = "".join(line[2:] if line.startswith("  ") else line for line in lines)
    place = (recipe.line(item.key[0])[0], start + len(new))
    return replaced(recipe, (start, stop), new, *INDENT, places=(place,))


@kind
def tab_in_indentation(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in _block_items(recipe) if len(one.path) > 1], chance)
    if item is None:
        return None
    start, _ = recipe.line(item.key[0])
    return replaced(recipe, (start, item.key[0]), "\t" * ((item.key[0] - start) // 2), "tab", "spaces")


@kind
def no_break_space_in_indentation(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in _block_items(recipe) if len(one.path) > 1], chance)
    if item is None:
        return None
    at = recipe.line(item.key[0])[0] + chance.randrange(item.key[0] - recipe.line(item.key[0])[0])
    return replaced(recipe, (at, at + 1), "\u00a0", r"U\+00A0", places=(recipe.line(item.key[0]),))


# Moved


def _without(recipe: Correct, item: Item) -> tuple[tuple[int, int], str]:
    """Returns the offsets to remove so that an item is gone."""
    if not item.is_flow:
        return recipe.block(item), ""
    start, stop = item.key[0], item.value[1]
    after = re.compile(r",\s*").match(recipe.text, stop)
    before = re.compile(r",\s*$").search(recipe.text[:start])
    if after:
        return (start, after.end()), ""
    return (before.start() if before else start, stop), ""


def _move(recipe: Correct, item: Item, target: Item, remedy: str) -> Made:
    """Returns the recipe with an item of one line moved to the end of another mapping."""
    written = recipe.text[item.key[0] : item.value[1]]
    gone, _ = _without(recipe, item)
    if target.is_flow or _is_flow_mapping(recipe, target):
        at, new = target.value[1] - 1, f", {written}"
        start = 2
    else:
        last = [one for one in recipe.items if one.path[:-1] == target.path][-1]
        at = recipe.block(last)[1]
        indent = last.key[0] - recipe.line(last.key[0])[0]
        new = f"{' ' * indent}{written}\n"
        start = indent
    if gone[0] <= at < gone[1]:
        return None
    text = recipe.text[:at] + new + recipe.text[at:]
    shift = len(new) if gone[0] >= at else 0
    text = text[: gone[0] + shift] + text[gone[1] + shift :]
    place = at + start - (gone[1] - gone[0] if gone[1] <= at else 0)
    return Mutation("", recipe, text, ((place, place + len(item.name)),), (remedy,))


def _is_flow_mapping(recipe: Correct, item: Item) -> bool:
    return recipe.text[item.value[0]] == "{"


def _mappings(recipe: Correct) -> list[Item]:
    return [one for one in recipe.items if one.kind == "mapping" and recipe.written(one) != "{}"]


@kind
def key_moved_out_of_its_section(recipe: Correct, chance: random.Random) -> Made:
    """`tp_size` beside `parallel`, `every` beside `checkpoint`."""
    items = [one for one in keys_of_sections(recipe) if len(one.path) in (4, 3) and _is_one_line(recipe, one)]
    items = [one for one in items if one.path[0] in ("components", "run") and one.path[:-1] != ("run",)]
    item = pick(items, chance)
    targets = [one for one in recipe.items if item and one.path == item.path[:-2]]
    return _move(recipe, item, targets[0], quoted(item.path[-2])) if item and targets else None


@kind
def key_moved_into_a_section(recipe: Correct, chance: random.Random) -> Made:
    """A key of a component in its `args` or `parallel`, one of `run` in `checkpoint`."""
    items = [one for one in keys_of_sections(recipe) if len(one.path) in (2, 3) and _is_one_line(recipe, one)]
    items = [one for one in items if one.path[0] in ("components", "run")]
    item = pick(items, chance)
    targets = [
        one
        for one in _mappings(recipe)
        if item and one.path[:-1] == item.path[:-1] and one.path != item.path and one.name != "model"
    ]
    target = pick(targets, chance)
    return _move(recipe, item, target, rf"{quoted(item.path[-2])}|beside") if item and target else None


@kind
def key_moved_between_sections(recipe: Correct, chance: random.Random) -> Made:
    """`device_type` in a component, `group` in a stage, `steps` in `cluster`."""
    items = [one for one in keys_of_sections(recipe) if len(one.path) > 1 and _is_one_line(recipe, one)]
    item = pick([one for one in items if one.path[0] not in ("vars", "defaults")], chance)
    if item is None:
        return None
    tops = [top for top in ("groups", "components", "pipeline") if top != item.path[0]]
    targets = [one for one in _mappings(recipe) if len(one.path) == 2 and one.path[0] in tops]
    targets += [one for one in recipe.items_at("run") if item.path[0] != "run"]
    target = pick(targets, chance)
    remedies = rf"{quoted(item.path[-2])}|a key of|{quoted(item.path[0])}|called"
    return _move(recipe, item, target, remedies) if target else None


@kind
def definition_moved_to_another_section(recipe: Correct, chance: random.Random) -> Made:
    """A component under `groups`, a stage under `components`."""
    items = [
        one
        for one in recipe.items
        if len(one.path) == 2 and one.kind == "mapping" and _is_one_line(recipe, one)
    ]
    item = pick([one for one in items if one.path[0] in ("groups", "components", "pipeline")], chance)
    targets = [
        one
        for one in recipe.items
        if item and one.path in (("groups",), ("components",), ("pipeline",)) and one.path[0] != item.path[0]
    ]
    target = pick(targets, chance)
    return _move(recipe, item, target, quoted(item.path[0])) if item and target else None


# Wrong types


def _numbers(recipe: Correct) -> list[Item]:
    """Returns the numbers whose keys are the product's own."""
    return [one for one in recipe.items if one.kind == "number" and is_own_key(one.path)]


def _retyped(recipe: Correct, item: Item | None, new: str, *remedies: str) -> Made:
    return replaced(recipe, item.value, new, *remedies) if item else None


@kind
def number_in_quotes(recipe: Correct, chance: random.Random) -> Made:
    item = pick(_numbers(recipe), chance)
    return _retyped(recipe, item, f'"{recipe.written(item)}"', "quotes") if item else None


@kind
def number_in_words(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in _numbers(recipe) if not one.path[-1].isdigit()], chance)
    return _retyped(recipe, item, chance.choice(("two", "many", "all", "1k", "4x")), "integer|number")


@kind
def number_with_separators(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in _numbers(recipe) if recipe.written(one).isdigit()], chance)
    if item is None:
        return None
    new = chance.choice(("1,024", "1 024", "1'024", "2,048,000"))
    digits = re.sub(r"\D", "", new)
    made = _retyped(recipe, item, new, digits)
    return made and replace(made, places=((item.value[0], item.value[0] + len(new) + 1),))


@kind
def number_with_unit(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in _numbers(recipe) if recipe.written(one).isdigit()], chance)
    return (
        _retyped(
            recipe,
            item,
            f"{recipe.written(item)}{chance.choice(('s', 'GB', ' gpus', 'k'))}",
            "integer|number",
        )
        if item
        else None
    )


@kind
def number_with_fraction(recipe: Correct, chance: random.Random) -> Made:
    item = pick(
        [one for one in _numbers(recipe) if recipe.written(one).isdigit() and one.name != "grace"], chance
    )
    return (
        _retyped(
            recipe, item, f"{recipe.written(item)}{chance.choice(('.0', '.5', 'e1'))}", r"integer|write \d+"
        )
        if item
        else None
    )


@kind
def number_negative(recipe: Correct, chance: random.Random) -> Made:
    item = pick(_numbers(recipe), chance)
    return (
        _retyped(
            recipe,
            item,
            f"-{recipe.written(item)}",
            "positive|0 or more|0 or greater|integer|negative|number",
        )
        if item
        else None
    )


@kind
def number_zero(recipe: Correct, chance: random.Random) -> Made:
    keys = (
        "ranks",
        "samples",
        "dp_size",
        "tp_size",
        "fsdp_size",
        "pp_size",
        "nodes",
        "devices_per_node",
        "keep",
    )
    item = pick([one for one in _numbers(recipe) if one.name in keys], chance)
    return _retyped(recipe, item, "0", "positive|from 1")


@kind
def number_as_boolean(recipe: Correct, chance: random.Random) -> Made:
    return _retyped(
        recipe, pick(_numbers(recipe), chance), chance.choice(("true", "yes", "off")), "integer|number"
    )


@kind
def boolean_in_words(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in recipe.items if one.kind == "bool" and is_own_key(one.path)], chance)
    return _retyped(
        recipe, item, chance.choice(('"true"', "1", "maybe", "enabled", "True!")), "true or false|true"
    )


@kind
def text_as_boolean(recipe: Correct, chance: random.Random) -> Made:
    item = _value(
        recipe, chance, ("name",), ("components", "*", "group"), ("pipeline", "*", "call"), ("run", "dir")
    )
    return _retyped(
        recipe, item, chance.choice(("on", "no", "true", "12", "3.5")), "quote|text|component|group"
    )


@kind
def value_as_list(recipe: Correct, chance: random.Random) -> Made:
    items = [one for one in recipe.items if one.kind in ("number", "text") and is_own_key(one.path)]
    items = [
        one
        for one in items
        if one.name not in ("in", "after", "record", "show", "ranks", "devices_per_node", "visible_devices")
    ]
    item = pick([one for one in items if one.key[0] != one.key[1]], chance)
    return (
        _retyped(recipe, item, f"[{recipe.written(item)}]", "list|bracket|integer|number|text|write")
        if item
        else None
    )


@kind
def value_as_mapping(recipe: Correct, chance: random.Random) -> Made:
    items = [one for one in recipe.items if one.kind in ("number", "text") and is_own_key(one.path)]
    items = [
        one
        for one in items
        if one.name not in ("in", "devices_per_node", "dispatch", "model", "parallel", "program")
    ]
    item = pick([one for one in items if one.key[0] != one.key[1]], chance)
    return _retyped(recipe, item, f"{{value: {recipe.written(item)}}}", "mapping") if item else None


@kind
def value_left_out(recipe: Correct, chance: random.Random) -> Made:
    """A key without its value."""
    items = [one for one in recipe.items if one.kind in ("number", "text", "bool") and is_own_key(one.path)]
    item = pick([one for one in items if one.key[0] != one.key[1]], chance)
    if item is None:
        return None
    made = _retyped(recipe, item, "", "integer|number|text|value|true or false|list|must")
    return made and replace(made, places=((item.key[0], item.value[0] + 1),))


@kind
def mapping_as_list(recipe: Correct, chance: random.Random) -> Made:
    """`groups:` with a `-` before each name, as other systems have it."""
    item = pick(_blocks(recipe, 1), chance)
    if item is None or item.name in ("vars",):
        return None
    start = recipe.line(item.key[0])[1] + 1
    stop = recipe.block(item)[1]
    lines = recipe.text[start:stop].splitlines(keepends=True)
    new = "".join(
        f"  - {line[2:]}"
        if re.match(r"  \S", line) and not line.strip().startswith("#")
        else f"  {line}"
        if line.strip()
        else line
        for line in lines
    )
    return replaced(recipe, (start, stop), new, "mapping|`-`", places=((item.key[0], start + len(new)),))


@kind
def mapping_as_text(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in _mappings(recipe) if is_own_key(one.path) or len(one.path) == 2], chance)
    if item is None or item.path[0] == "vars" or item.key[0] == item.key[1] or item.path[0] == "defaults":
        return None
    if item.name in ("in", "dispatch", "devices_per_node", "program", "parallel", "model"):
        return None
    new = chance.choice(("default", "7", "none"))
    gap = "" if recipe.text[item.value[0]] == "{" else " "
    start = item.value[0] if not gap else item.key[1] + 1
    made = replaced(
        recipe,
        (start, item.value[1]),
        gap + new,
        "mapping|keys|write",
        places=((item.key[0], item.value[0] + 9),),
    )
    return made


# Wrong counts


@kind
def size_wrong(recipe: Correct, chance: random.Random) -> Made:
    items = [one for one in recipe.items_at("components", "*", "parallel", "*") if one.kind == "number"]
    item = pick([one for one in items if one.name not in ("ep_size",)], chance)
    if item is None:
        return None
    new = chance.choice([n for n in ("3", "5", "7", "64") if n != recipe.written(item)])
    layout = next(one for one in recipe.items if one.path == item.path[:-1])
    edit = item.value
    place = (layout.key[0], moved(layout.value[1], edit, new))
    return replaced(
        recipe, edit, new, r"\b(dp|fsdp|tp|pp|cp)\b \d|`\w+: \d+`|these do|choose", places=(place,)
    )


@kind
def ranks_wrong(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in recipe.items_at("groups", "*", "ranks") if one.kind == "number"], chance)
    if item is None:
        return None
    new = chance.choice(("3", "5", "7", "31"))
    edit = item.value
    places = [(edit[0], edit[0] + len(new))]
    places += [
        (moved(one.key[0], edit, new), moved(one.value[1], edit, new))
        for one in recipe.items_at("components", "*", "parallel")
    ]
    places += [
        (moved(one.value[0], edit, new), moved(one.value[1], edit, new))
        for one in recipe.items_at("groups", "*", "visible_devices")
    ]
    return replaced(recipe, edit, new, r"\d", places=places)


@kind
def cluster_too_small(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in recipe.items_at("cluster", "*") if one.kind == "number"], chance)
    if item is None:
        return None
    new = "1" if item.name == "nodes" else chance.choice(("2", "3", "4"))
    if new == recipe.written(item):
        return None
    edit = item.value
    places = [(edit[0], edit[0] + len(new))]
    places += [
        (moved(one.value[0], edit, new), moved(one.value[1], edit, new))
        for one in recipe.items_at("groups", "*", "ranks")
    ]
    return replaced(recipe, edit, new, r"\d", places=places)


@kind
def device_beyond_cluster(recipe: Correct, chance: random.Random) -> Made:
    item = pick(recipe.items_at("groups", "*", "ranks", "*"), chance)
    return _retyped(recipe, item, chance.choice(("8", "99", "1")), r"\d") if item else None


@kind
def samples_too_few(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in recipe.items_at("pipeline", "*", "samples") if one.kind == "number"], chance)
    return _retyped(recipe, item, "1", r"at least \d|not the same|\d") if item else None


# Broken YAML


@kind
def colon_missing(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in recipe.items if one.key[0] != one.key[1]], chance)
    if item is None:
        return None
    line = recipe.line(item.key[0])
    colon = (item.key[1], item.key[1] + 1)
    return (
        replaced(recipe, colon, "", "`:`|colon", places=((item.key[0], line[1]),))
        if recipe.text[slice(*colon)] == ":"
        else None
    )


@kind
def space_missing_after_colon(recipe: Correct, chance: random.Random) -> Made:
    items = [one for one in recipe.items if one.key[0] != one.key[1] and one.value[0] == one.key[1] + 2]
    item = pick(items, chance)
    if item is None:
        return None
    place = (item.key[0], item.value[1] - 1)
    return replaced(recipe, (item.key[1] + 1, item.key[1] + 2), "", "space", "`: `", places=(place,))


@kind
def equals_sign_for_colon(recipe: Correct, chance: random.Random) -> Made:
    items = [
        one
        for one in recipe.items
        if one.key[0] != one.key[1]
        and one.kind in ("number", "text", "bool")
        and one.value[0] == one.key[1] + 2
    ]
    item = pick(items, chance)
    if item is None:
        return None
    new = chance.choice(("=", " = "))
    return replaced(
        recipe, (item.key[1], item.key[1] + 2), new, "`:`|`: `|colon", places=((item.key[0], item.value[1]),)
    )


@kind
def quote_not_closed(recipe: Correct, chance: random.Random) -> Made:
    items = [one for one in recipe.items if recipe.written(one)[:1] in ("'", '"')]
    items += [one for one in recipe.items if one.kind == "text" and recipe.written(one).isalpha()]
    item = pick(items, chance)
    if item is None:
        return None
    start, stop = item.value
    if recipe.text[start] in "'\"":
        return replaced(recipe, (stop - 1, stop), "", "quote|clos", places=((start, stop),))
    return replaced(recipe, (start, start), '"', "quote|clos", places=((start, stop + 1),))


@kind
def bracket_not_closed(recipe: Correct, chance: random.Random) -> Made:
    found = _one_of(list(re.finditer(r"(?<!\$)(?<!\$\{)[\]}](?=[\s,\]}])", recipe.text)), chance)
    if found is None:
        return None
    opening = [one for one in recipe.items if one.value[1] == found.end()]
    if not opening:
        return None
    places = [(opening[0].key[0], found.end())]
    return replaced(recipe, found.span(), "", "clos|bracket|brace|`[\\]}]`", places=places)


@kind
def bracket_not_opened(recipe: Correct, chance: random.Random) -> Made:
    items = [one for one in recipe.items if recipe.text[one.value[0]] in "{[" and one.key[0] != one.key[1]]
    item = pick(items, chance)
    if item is None:
        return None
    return replaced(
        recipe,
        (item.value[0], item.value[0] + 1),
        "",
        "open|bracket|brace|clos",
        places=((item.key[0], item.value[1]),),
    )


@kind
def comma_missing(recipe: Correct, chance: random.Random) -> Made:
    found = _one_of(list(re.finditer(r",(?= \w+)", recipe.text)), chance)
    inside = [
        one
        for one in recipe.items
        if found and recipe.text[one.value[0]] in "{[" and one.value[0] < found.start() < one.value[1]
    ]
    if found is None or not inside:
        return None
    inner = inside[-1]
    return replaced(recipe, found.span(), "", "`,`|comma", places=((inner.key[0], inner.value[1]),))


@kind
def colon_in_plain_text(recipe: Correct, chance: random.Random) -> Made:
    item = _value(
        recipe, chance, ("name",), ("components", "*", "args", "path"), ("run", "dir"), ("vars", "prompts")
    )
    if item is None or recipe.text[item.value[0]] in "'\"":
        return None
    made = _retyped(recipe, item, "run: two", "quote")
    return made and replace(made, places=((item.key[0], item.value[0] + 9),))


@kind
def curly_quotes(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in recipe.items if recipe.written(one)[:1] == '"'], chance)
    return (
        _retyped(recipe, item, f"\u201c{recipe.written(item)[1:-1]}\u201d", "straight", "quote")
        if item
        else None
    )


@kind
def key_given_twice(recipe: Correct, chance: random.Random) -> Made:
    item = pick(_scalar_lines(recipe), chance)
    if item is None:
        return None
    start, stop = recipe.block(item)
    line = recipe.text[start:stop]
    return replaced(recipe, (stop, stop), line, "twice", places=((start, stop + len(line)),))


@kind
def alias_unknown(recipe: Correct, chance: random.Random) -> Made:
    item = pick(
        [one for one in recipe.items if one.kind in ("number", "text") and one.key[0] != one.key[1]], chance
    )
    return _retyped(recipe, item, "*shared ", "anchor") if item else None


@kind
def second_document(recipe: Correct, chance: random.Random) -> Made:
    item = pick([one for one in recipe.items if len(one.path) == 1 and one.key[0] > 0], chance)
    return (
        replaced(recipe, (item.key[0], item.key[0]), "---\n", "---")
        if item and item.path != recipe.items[0].path
        else None
    )


@kind
def merge_conflict(recipe: Correct, chance: random.Random) -> Made:
    item = pick(_scalar_lines(recipe), chance)
    if item is None:
        return None
    start, stop = recipe.block(item)
    line = recipe.text[start:stop]
    new = f"<<<<<<< HEAD\n{line}=======\n{line}>>>>>>> other\n"
    return replaced(recipe, (start, stop), new, "merge|conflict")


@kind
def no_break_space_after_colon(recipe: Correct, chance: random.Random) -> Made:
    items = [one for one in recipe.items if one.key[0] != one.key[1] and one.value[0] == one.key[1] + 2]
    item = pick(items, chance)
    if item is None:
        return None
    place = (item.key[0], item.value[1])
    return replaced(recipe, (item.key[1] + 1, item.key[1] + 2), "\u00a0", r"U\+00A0", places=(place,))


@kind
def list_item_without_space(recipe: Correct, chance: random.Random) -> Made:
    found = _one_of(list(re.finditer(r"^ +- ", recipe.text, re.MULTILINE)), chance)
    if found is None:
        return None
    places = (recipe.line(found.start()),)
    return replaced(recipe, (found.end() - 1, found.end()), "", "space|list|`-`", places=places)


# What is missing


@kind
def required_key_missing(recipe: Correct, chance: random.Random) -> Made:
    required = {"ranks", "_target_", "group", "call", "sync", "to"}
    items = [
        one
        for one in recipe.items
        if len(one.path) == 3 and one.name in required and _is_one_line(recipe, one)
    ]
    items += [one for one in recipe.items_at("pipeline", "*", "samples") if not _has(recipe, one, "in")]
    item = pick(items, chance)
    if item is None:
        return None
    gone, new = _without(recipe, item)
    parent = next(one for one in recipe.items if one.path == item.path[:-1])
    made = replaced(recipe, gone, new, quoted(item.name))
    return made and replace(made, places=((parent.key[0], parent.value[1]),))


def _has(recipe: Correct, item: Item, key: str) -> bool:
    return any(one.path == (*item.path[:-1], key) for one in recipe.items)


@kind
def definition_missing(recipe: Correct, chance: random.Random) -> Made:
    """A group, a component or a stage that others name is gone."""
    items = [one for top in ("groups", "components", "pipeline") for one in recipe.items_at(top, "*")]
    item = pick([one for one in items if len(_uses(recipe, one)) == 1], chance)
    if item is None:
        return None
    gone, new = _without(recipe, item) if item.is_flow else (recipe.block(item), "")
    places = [(moved(a, gone, new), moved(b, gone, new)) for a, b in _uses(recipe, item)]
    top = recipe.items_at(item.path[0])[0]
    return replaced(recipe, gone, new, quoted(item.name), places=[*places, top.key])


# Wrong forms


@kind
def call_in_another_form(recipe: Correct, chance: random.Random) -> Made:
    item = _value(recipe, chance, ("pipeline", "*", "call"))
    if item is None:
        return None
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
    return _retyped(recipe, item, chance.choice(forms), quoted(f"{component}.{method}"))


@kind
def target_in_another_form(recipe: Correct, chance: random.Random) -> Made:
    item = _value(recipe, chance, ("components", "*", "_target_"))
    if item is None:
        return None
    module, name = recipe.written(item).split(".")
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
    return _retyped(recipe, item, chance.choice(forms), "module.Class", quoted(f"{module}.{name}"))


@kind
def target_of_the_library(recipe: Correct, chance: random.Random) -> Made:
    item = _value(recipe, chance, ("components", "*", "_target_"))
    forms = (
        "os.system",
        "builtins.print",
        "subprocess.Popen",
        "collections.OrderedDict",
        "builtins.eval",
        "shutil.rmtree",
        "sys.exit",
    )
    return _retyped(recipe, item, chance.choice(forms), "meshctl.Component")


@kind
def input_is_itself(recipe: Correct, chance: random.Random) -> Made:
    item = _value(recipe, chance, ("pipeline", "*", "in"))
    return _retyped(recipe, item, item.path[1], "itself|take") if item else None


@kind
def self_given_twice(recipe: Correct, chance: random.Random) -> Made:
    found = re.search(r"_self_\]|^  - _self_$", recipe.text, re.MULTILINE)
    if found is None:
        return None
    new = "_self_, _self_]" if found[0].endswith("]") else "  - _self_\n  - _self_"
    return replaced(recipe, found.span(), new, "_self_")


# Overrides


OVERRIDES = {
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
    "programs.yaml": (
        "groups.train.visible_devices='2,3,4,5,6,7'",
        "groups.server.args=[--port,9000]",
        "run.grace=5",
    ),
}


def _overridden(recipe: Correct, override: str, *remedies: str) -> Made:
    return Mutation("", recipe, recipe.text, ((0, len(override) + 1),), remedies, override)


def _override(recipe: Correct, chance: random.Random) -> str:
    return chance.choice(OVERRIDES[recipe.name])


@kind
def override_key_misspelt(recipe: Correct, chance: random.Random) -> Made:
    override = _override(recipe, chance)
    if override.startswith("+") or "args." in override or "env." in override:
        return None
    key = override.partition("=")[0]
    word = chance.choice(list(re.finditer(r"\w+", key)))
    new = misspelt_anyhow(word[0], chance)
    if new == word[0]:
        return None
    made = _overridden(recipe, override[: word.start()] + new + override[word.end() :], quoted(word[0]))
    return made and replace(made, places=((word.start(), word.start() + len(new)),))


@kind
def override_in_another_form(recipe: Correct, chance: random.Random) -> Made:
    override = _override(recipe, chance)
    key, equals, value = override.partition("=")
    if not equals or key.startswith("+") or "{" in value or "[" in value or "@" in key or "'" in value:
        return None
    forms = (
        f"{key} {value}",
        f"--{key}={value}",
        f"-{key}={value}",
        f"{key}: {value}",
        f"{key}:{value}",
        f"{key} = {value}",
        f"{key}=={value}",
        f"--{key} {value}",
        f"/{key}={value}",
        f"{key.replace('.', '/')}={value}",
        f"{key}:={value}",
    )
    return _overridden(recipe, chance.choice(forms), quoted(f"{key}={value}"))


@kind
def override_with_wildcard(recipe: Correct, chance: random.Random) -> Made:
    override = _override(recipe, chance)
    key, equals, value = override.partition("=")
    parts = key.split(".")
    if not equals or len(parts) < 3 or key.startswith("+"):
        return None
    return _overridden(
        recipe,
        ".".join((parts[0], "*", *parts[2:])) + equals + value,
        r"one override for each|each by its name|`\*`",
    )


@kind
def override_bracket_not_closed(recipe: Correct, chance: random.Random) -> Made:
    override = _override(recipe, chance)
    return _overridden(recipe, override[:-1], "clos") if override[-1] in "]}'" else None


@kind
def override_value_wrong(recipe: Correct, chance: random.Random) -> Made:
    override = _override(recipe, chance)
    key, _, value = override.partition("=")
    if not value.isdigit() or key.startswith("+") or key.startswith("vars"):
        return None
    return _overridden(
        recipe,
        f"{key}={chance.choice(('many', '-1', '[1]', '0.5', 'null', 'true', '1,2'))}",
        "integer|number|sweep|value",
    )


@kind
def override_adds_what_is_there(recipe: Correct, chance: random.Random) -> Made:
    override = _override(recipe, chance)
    if not re.match(r"\w[\w.]+=\w", override):
        return None
    return _overridden(recipe, f"+{override}", quoted(override))


@kind
def override_without_value(recipe: Correct, chance: random.Random) -> Made:
    override = _override(recipe, chance)
    key, equals, _ = override.partition("=")
    return (
        _overridden(recipe, chance.choice((key, f"{key}=")), "=|value|integer|number|must|names no")
        if equals and not key.startswith("+")
        else None
    )


@kind
def layout_misspelt_in_override(recipe: Correct, chance: random.Random) -> Made:
    component = pick(recipe.items_at("components", "*"), chance)
    if component is None or recipe.name not in ("grpo.yaml", "compact.yaml"):
        return None
    override = "layout@components.actor.parallel=fsdp"
    word = chance.choice([*re.finditer(r"\w+", override)])
    new = misspelt_anyhow(word[0], chance)
    made = _overridden(recipe, override[: word.start()] + new + override[word.end() :], quoted(word[0]))
    return made if new != word[0] else None


# Judging


@dataclass(frozen=True)
class Verdict:
    mutation: Mutation
    outcome: str
    """`restored` and `explained` are as they should be, `valid` is a recipe with another meaning; others name
    what is wrong."""
    report: Report


GOOD = ("restored", "explained")


def mutations(count: int, seed: int, kinds: Sequence[str] = ()) -> Iterator[Mutation]:
    """Yields so many mutations, of all kinds in turn."""
    chance = random.Random(seed)
    names = list(kinds) or list(KINDS)
    for number in range(count):
        yield _one(names[number % len(names)], chance)


def _one(name: str, chance: random.Random) -> Mutation:
    for _ in range(MAX_TRIES):
        recipe = chance.choice(CORRECT)
        made = KINDS[name](recipe, chance)
        if made is not None and (made.override or made.text != recipe.text):
            return replace(made, kind=name)
    raise AssertionError(f"no recipe has a place for {name}")


def loaded(mutation: Mutation, text: str, override: str) -> Loaded:
    path = FOLDER / mutation.recipe.name
    held = {str(path.resolve()): text.encode()}
    overrides = [override] if override else []
    return load(mutation.recipe.name, overrides, FOLDER, environ={"HOME": "/home/me"}, held=held)


def judge(mutation: Mutation) -> Verdict:
    report = loaded(mutation, mutation.text, mutation.override).report
    return Verdict(mutation, _outcome(mutation, report), report)


def _outcome(mutation: Mutation, report: Report) -> str:
    errors = report.errors
    if not errors:
        return "valid"
    if len(errors) > 1:
        return "several"
    if not _is_at(mutation, errors[0]):
        return "elsewhere"
    if _is_restored(mutation, report):
        return "restored"
    output = f"{errors[0].message}\n{errors[0].help}\n" + "\n".join(span.label for span in _spans(errors[0]))
    return "explained" if any(re.search(one, output) for one in mutation.remedies) else "no remedy"


def _spans(found: Diagnostic) -> Iterator[Any]:
    yield from (span for span in (found.primary, *found.seconds) if span is not None)


def _is_at(mutation: Mutation, found: Diagnostic) -> bool:
    span = found.primary
    if span is None:
        return False
    text, file = mutation.text, mutation.recipe.name
    if mutation.override:
        text, file = mutation.override, "override 1"
    if span.file != file:
        return False
    offset = sum(len(line) for line in text.splitlines(keepends=True)[: span.line - 1]) + span.column - 1
    return any(offset <= stop and start <= offset + span.width for start, stop in mutation.places)


def _is_restored(mutation: Mutation, report: Report) -> bool:
    """Returns whether the fixes of a report lead to a recipe without errors."""
    text, override = mutation.text, mutation.override
    for _ in range(MAX_ROUNDS):
        edits = [fix for found in report.errors for fix in found.fixes]
        if not edits:
            break
        of_override = [fix for fix in edits if fix.span.file == "override 1"]
        override = fixes.apply(override, of_override) if of_override else override
        text = fixes.apply(text, [fix for fix in edits if fix.span.file == mutation.recipe.name])
        report = loaded(mutation, text, override).report
        if not report.errors:
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=())
    parser.add_argument("--show", nargs="*", default=("several", "elsewhere", "no remedy"))
    options = parser.parse_args()
    verdicts = [judge(one) for one in mutations(options.inputs, options.seed, options.kinds)]
    shown = Counter[tuple[str, str]]()
    for one in verdicts:
        key = (one.mutation.kind, one.outcome)
        if one.outcome in options.show and shown[key] < options.examples:
            shown[key] += 1
            print(_example(one))
    outcomes = ("restored", "explained", "valid", "several", "elsewhere", "no remedy")
    print(f"{'':42}" + "".join(f"{name:>11}" for name in outcomes))
    for name in dict.fromkeys(one.mutation.kind for one in verdicts):
        counts = Counter(one.outcome for one in verdicts if one.mutation.kind == name)
        print(f"{name:42}" + "".join(f"{counts[outcome] or '':>11}" for outcome in outcomes))
    counts = Counter(one.outcome for one in verdicts)
    print(f"{'all':42}" + "".join(f"{counts[outcome] or '':>11}" for outcome in outcomes))
    judged = len(verdicts) - counts["valid"]
    print(
        f"{sum(counts[name] for name in GOOD) / judged:.1%} of {judged}, beside {counts['valid']} that are valid"
    )


def _example(verdict: Verdict) -> str:
    mutation = verdict.mutation
    lines = mutation.text.splitlines()
    number = mutation.text[: mutation.places[0][0]].count("\n")
    shown = mutation.override or "\n".join(lines[max(0, number - 2) : number + 3])
    report = report_text(verdict.report)
    cut = "\n".join(report.splitlines()[:45])
    return f"{'=' * 100}\n{mutation.kind}: {verdict.outcome} ({mutation.recipe.name}:{number + 1}; wants {mutation.remedies})\n{shown}\n{'-' * 60}\n{cut}\n"


if __name__ == "__main__":
    main()
