"""Help for a key that stands in the wrong section: `tp_size` of a component belongs to its `parallel`,
`trainer.steps` to `run`.

The help names the place as exactly as the recipe allows: `it belongs under components.actor.parallel`.
"""

from __future__ import annotations

import re

from meshctl.recipe.compose.yaml_tree import Node, Path
from meshctl.recipe.fields import (
    CHECKPOINT,
    CLUSTER,
    COMPONENT,
    DISPATCH,
    GROUP,
    INPUT,
    MODEL,
    PARALLEL,
    RECIPE,
    RUN,
    SECTIONS,
    STAGE,
    Section,
)
from meshctl.recipe.suggestions import meanings

NAMED = {"groups": GROUP, "components": COMPONENT, "pipeline": STAGE}
SIGNS = {"components": ("_target_",), "pipeline": ("call", "sync"), "groups": ("ranks", "device_type")}
"""Keys by which a mapping is recognized as a component, a stage or a group."""
INVISIBLE = re.compile("[\u00a0\u00ad\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]")
"""Characters that look like a space, or like nothing."""


def suggest_location(key: str, section: Section, path: Path, node: Node, root: Node) -> str:
    """Returns help for a key that the mapping `node` at `path`, a `section`, does not have; empty if the key
    belongs nowhere."""
    if odd := INVISIBLE.search(key):
        return f"it has the character U+{ord(odd[0]):04X} in it, which does not show: remove it"
    if not path and (help := _named(key, node.get(key), root)):
        return help
    for word in (key, *meanings(key, with_related=path in ((), ("run",)))):
        for other in SECTIONS:
            is_elsewhere = other not in (section, INPUT) and word not in path[-1:]
            if is_elsewhere and word in other.by_key:
                return _location(key, word, other, path, root)
    return ""


def help_without_alternative(section: Section) -> str:
    """Returns help for a key that is near to no other."""
    if section is COMPONENT:
        return "what the constructor takes belongs into `args`"
    return "values said once belong under `vars`" if section is RECIPE else ""


def _named(key: str, item: Node | None, root: Node) -> str:
    """Returns help for a group, a component or a stage at the top of a recipe."""
    for top, signs in SIGNS.items():
        if item is not None and item.is_mapping and any(item.get(sign) is not None for sign in signs):
            return f"it looks like {NAMED[top].title}: it belongs under `{top}`"
    for top, section in NAMED.items():
        if root.at((top, key)) is not None:
            return f"`{key}` is {section.title}: what is said of it belongs under `{top}.{key}`"
    return ""


def _location(key: str, word: str, section: Section, path: Path, root: Node) -> str:
    """Returns `it is called ranks here, and belongs under groups.train`."""
    called = "it " if key == word else f"it is called `{word}` here, and "
    if section is RECIPE:
        return f"{called}stands at the top of a recipe"
    places = _places(section, path, root)
    if len(places) == 1:
        return f"{called}belongs under `{places[0]}`"
    return f"{called}is a key of {section.title}"


def _places(section: Section, path: Path, root: Node) -> list[str]:
    """Returns the mappings that may be meant: those of the component at `path`, or else all."""
    here = path[1] if len(path) > 1 else ""
    in_component = path[:1] == ("components",)
    if section in (RUN, CHECKPOINT, CLUSTER):
        return [section.title.strip("`")]
    if section in (PARALLEL, MODEL):
        names = [here] if in_component else _names(root, "components")
        return [f"components.{name}.{section.name}" for name in names]
    if section is COMPONENT:
        return [f"components.{name}" for name in _names(root, "components")]
    if section is GROUP:
        own = root.at(("components", here, "group")) if in_component else None
        return [f"groups.{name}" for name in _names(root, "groups") if own is None or name == own.value]
    return [f"pipeline.{here}.dispatch"] if section is DISPATCH and path[:1] == ("pipeline",) else []


def _names(root: Node, top: str) -> list[str]:
    node = root.get(top)
    return [name for name, _ in node.items()] if node is not None else []
