"""Finds the right place of a key in the wrong section: `tp_size` of a component belongs under `parallel`,
`trainer.steps` under `run`.

The help names the place as precisely as possible: `it goes under components.actor.parallel`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from meshctl.dataclass import dataclass
from meshctl.recipe.compose.yaml_tree import KeyPath, Node
from meshctl.recipe.field_types import Type
from meshctl.recipe.fields import (
    BEST,
    CALL,
    CHECKPOINT,
    CLUSTER,
    COMPONENT,
    DISPATCH,
    GROUP,
    INPUT,
    MODEL,
    PARALLEL,
    PROGRAM_KEYS,
    RECIPE,
    RUN,
    SECTIONS,
    STAGE,
    STOP,
    SYNC,
)
from meshctl.recipe.foreign_words import foreign_help
from meshctl.recipe.section_types import Named, Nested, Section
from meshctl.recipe.suggestions import meanings

NAMED = {"groups": GROUP, "components": COMPONENT, "pipeline": STAGE}
SIGNS = {
    "components": ("_target_",),
    "pipeline": ("call", "sync", "repeat"),
    "groups": ("ranks", "device_type"),
}
"""Keys by which a mapping is recognized as a component, a stage or a group."""
INVISIBLE = re.compile("[\u00a0\u00ad\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]")
"""Characters that look like a space or are invisible."""
MAX_PLACES = 100
"""Maximum number of groups, components or stages in which the place of a key is searched."""


@dataclass(frozen=True)
class Location:
    """The place to which a misplaced key belongs."""

    help: str
    path: KeyPath = ()
    """The key path that was meant; empty if several are possible."""
    candidates: tuple[KeyPath, ...] = ()
    """The possible key paths if there are several."""
    is_named_item: bool = False
    """True if the value is a group, a component or a stage."""


def kind_of(item: Node | None) -> str:
    """Returns `groups`, `components` or `pipeline` for a mapping that is recognized as an item of one of
    them, otherwise an empty string."""
    if item is None or not item.is_mapping:
        return ""
    signs = {top: any(item.get(sign) is not None for sign in signs) for top, signs in SIGNS.items()}
    kinds = [top for top, has_sign in signs.items() if has_sign]
    return kinds[0] if len(kinds) == 1 else ""


def invisible_character(key: str) -> str:
    """Returns help for a key that contains an invisible character; empty if it contains none."""
    odd = INVISIBLE.search(key)
    return f"it contains the character U+{ord(odd[0]):04X}, which is invisible; remove it" if odd else ""


def location_of(key: str, section: Section, path: KeyPath, item: Node, root: Node) -> Location | None:
    """Returns the place to which a key belongs that was found in the wrong section: in the mapping at `path`,
    which is a `section`. `item` is its value, `root` the recipe. Returns None if no section has the key."""
    if found := _named(key, item, path, root):
        return found
    for word in (key, *meanings(key, with_related=path in ((), ("run",)))):
        for other in sorted(SECTIONS, key=lambda other: _is_far(other, word, path, root)):
            is_elsewhere = other not in (section, INPUT) and word not in path[-1:]
            if is_elsewhere and word in other.by_key and _fits(item, other.by_key[word].type):
                found = _location(key, word, other, path, root)
                if section is COMPONENT and word == "execute":
                    found = replace(found, help=f"{found.help}; {foreign_help('execute_on')}")
                if found.path or found.candidates or other not in (GROUP, COMPONENT):
                    return found
    return None


def _is_far(section: Section, word: str, path: KeyPath, root: Node) -> bool:
    """Returns whether a section is neither the value of a key of the mapping at `path`, nor one that is in
    the recipe and lacks the required key `word`."""
    own = _only_place(section)
    field = section.by_key.get(word)
    is_below = bool(path) and own[: len(path)] == path
    lacks_key = bool(field and field.required) and root.at(own) is not None and root.at((*own, word)) is None
    return not (own and (is_below or lacks_key))


def _only_place(section: Section) -> KeyPath:
    """Returns the key path of a section that occurs once in a recipe; empty for others."""
    is_single = section in (RUN, CHECKPOINT, CLUSTER, STOP, BEST)
    return tuple(section.title.strip("`").split(".")) if is_single else ()


def _fits(item: Node, type_: Type) -> bool:
    """Returns whether a value may be of a type. A text or boolean is not, if the type accepts only
    mappings."""
    is_value = item.value is None or isinstance(item.value, (str, bool))
    return not (is_mapping_only(type_) and is_value)


def is_mapping_only(type_: Type) -> bool:
    """Returns whether every value of a type is a mapping."""
    return isinstance(type_, Named) or (isinstance(type_, Nested) and not type_.shorthand)


def help_without_alternative(section: Section, key: str) -> str:
    """Returns help for a key that is not similar to any other."""
    hint = foreign_help(key)
    return hint or ("the arguments of the constructor go under `args`" if section is COMPONENT else "")


def _named(key: str, item: Node, path: KeyPath, root: Node) -> Location | None:
    """Returns the place of a group, component or stage that is in the wrong section."""
    if top := kind_of(item):
        is_in_block = top == "pipeline" and path[:1] == (top,) and root.at((*path[:2], "repeat")) is not None
        if is_in_block and item.get("repeat") is None and item.get("sync") is None:
            help = f"it looks like a stage of the block, which goes under `{'.'.join(path[:2])}.stages`"
            return Location(help, (*path[:2], "stages", key), is_named_item=True)
        near = f", beside `{path[1]}`" if len(path) > 1 and path[0] == top else ""
        indent = f": indent it less{near}" if path else ""
        return Location(
            f"it looks like {NAMED[top].title}, which goes under `{top}`{indent}",
            (top, key),
            is_named_item=True,
        )
    if not path:
        for top, section in NAMED.items():
            if root.at((top, key)) is not None:
                return Location(f"`{key}` is {section.title}; its keys go under `{top}.{key}`")
    return None


def _location(key: str, word: str, section: Section, path: KeyPath, root: Node) -> Location:
    """Returns `it is called ranks here, and goes under groups.train`."""
    called = "it " if key == word else f"it is called `{word}` here, and "
    if section is RECIPE:
        return Location(f"{called}goes at the top of the recipe", (word,))
    places = _places(section, path, root)
    if word == "program":
        places = [place for place in places if _lacks_program(root, place)] or places
    elif section is GROUP and word in PROGRAM_KEYS:
        places = [place for place in places if root.at((*place, "program")) is not None]
    field = section.by_key[word]
    if len(places) > 1 and field.required:
        places = [place for place in places if root.at((*place, word)) is None] or places
    if len(places) == 1:
        return Location(f"{called}goes under `{'.'.join(places[0])}`", (*places[0], word))
    return Location(f"{called}is a key of {section.title}", (), tuple((*place, word) for place in places))


def _places(section: Section, path: KeyPath, root: Node) -> list[KeyPath]:
    """Returns the paths of the mappings of a section that may be meant: those in the same component,
    otherwise all."""
    here = path[1] if len(path) > 1 else ""
    in_component = path[:1] == ("components",)
    if only := _only_place(section):
        return [only]
    if section in (PARALLEL, MODEL):
        names = [here] if in_component else _names(root, "components")
        return [("components", name, section.name) for name in names]
    if section is COMPONENT:
        names = [here] if in_component and len(path) > 2 else _names(root, "components")
        return [("components", name) for name in names]
    if section is GROUP:
        own = root.at(("components", here, "group")) if in_component else None
        return [("groups", name) for name in _names(root, "groups") if own is None or name == own.value]
    if section in (CALL, SYNC, STAGE):
        stages = [stage for name in _names(root, "pipeline") for stage in _with_inner(root, name)]
        return [stage for stage in stages if _lacks_key(root, stage)]
    return [("pipeline", here, "dispatch")] if section is DISPATCH and path[:1] == ("pipeline",) else []


def _with_inner(root: Node, name: str) -> list[KeyPath]:
    """Returns the key path of a stage; of a block, also those of its stages."""
    inner = root.at(("pipeline", name, "stages"))
    names = [key for key, _ in inner.items()] if inner is not None and inner.is_mapping else []
    return [("pipeline", name), *(("pipeline", name, "stages", each) for each in names)]


def _lacks_key(root: Node, stage: KeyPath) -> bool:
    """Returns whether a stage has none of `call`, `sync` and `repeat`, or is a source without `samples`."""
    keys = ("call", "sync", "repeat", "in", "samples")
    has = {key for key in keys if root.at((*stage, key)) is not None}
    return not has & {"call", "sync", "repeat"} or has == {"call"}


def _names(root: Node, top: str) -> list[str]:
    """Returns the names in a top-level mapping; empty if there are more than `MAX_PLACES`."""
    node = root.get(top)
    names = [name for name, _ in node.items()] if node is not None else []
    return names if len(names) <= MAX_PLACES else []


def _lacks_program(root: Node, group: KeyPath) -> bool:
    """Returns whether a group has keys of a program, and no `program`."""
    keys = {key for key in PROGRAM_KEYS if root.at((*group, key)) is not None}
    return bool(keys) and "program" not in keys
