"""Where a key belongs that stands in the wrong place: `tp_size` of a component is one of its `parallel`,
`trainer.steps` one of `run`.

Answers are help texts, as near to what the recipe says as can be: `it belongs under
components.actor.parallel`.
"""

from __future__ import annotations

import re

from meshctl.recipe import model
from meshctl.recipe.compose.yaml_tree import Node, Path
from meshctl.recipe.suggestions import meanings

KINDS = {
    "`parallel`": model.PARALLEL,
    "`model`": model.MODEL,
    "a group": model.GROUP,
    "a component": model.COMPONENT,
    "`run.checkpoint`": model.CHECKPOINT,
    "`run`": model.RUN,
    "`cluster`": model.CLUSTER,
    "a stage that calls": model.CALL,
    "a sync": model.SYNC,
    "`dispatch`": model.DISPATCH,
    "a recipe": model.TOP,
}
"""Kinds of mappings -> their keys; the first that has a key is its home."""
NAMED = {"groups": "a group", "components": "a component", "pipeline": "a stage"}
SIGNS = {"components": ("_target_",), "pipeline": ("call", "sync"), "groups": ("ranks", "device_type")}
"""By these keys a mapping shows what it is."""
UNSEEN = re.compile("[\u00a0\u00ad\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]")
"""Characters that look like a space, or like nothing."""


def home_of(key: str, what: str, path: Path, node: Node, root: Node) -> str:
    """Help for a key that the mapping `node` at `path` does not have, which is `what`; empty where nothing is
    known of it."""
    if odd := UNSEEN.search(key):
        return f"it has the character U+{ord(odd[0]):04X} in it, which does not show: remove it"
    if not path and (help := _named(key, node.get(key), root)):
        return help
    for word in (key, *meanings(key, loosely=path in ((), ("run",)))):
        for kind, keys in KINDS.items():
            if word in keys and kind != what and word not in path[-1:]:
                return _belongs(key, word, kind, path, root)
    return ""


def otherwise(what: str) -> str:
    """Help for a key of which nothing is known, nor what it might be a misspelling of."""
    if what == "a component":
        return "what the constructor takes belongs into `args`"
    return "values said once belong under `vars`" if what == "a recipe" else ""


def _named(key: str, item: Node | None, root: Node) -> str:
    """A group, a component or a stage that stands at the top."""
    for top, keys in SIGNS.items():
        if _is_mapping(item) and any(item.get(sign) is not None for sign in keys if item):
            return f"it looks like {NAMED[top]}: it belongs under `{top}`"
    for top, kind in NAMED.items():
        if root.at((top, key)) is not None:
            return f"`{key}` is {kind}: what is said of it belongs under `{top}.{key}`"
    return ""


def _is_mapping(item: Node | None) -> bool:
    return item is not None and item.is_mapping


def _belongs(key: str, word: str, kind: str, path: Path, root: Node) -> str:
    """`it is called ranks here, and belongs under groups.train`."""
    called = "it " if key == word else f"it is called `{word}` here, and "
    if kind == "a recipe":
        return f"{called}stands at the top of a recipe"
    places = _places(kind, path, root)
    return f"{called}belongs under `{places[0]}`" if len(places) == 1 else f"{called}is a key of {kind}"


def _places(kind: str, path: Path, root: Node) -> list[str]:
    """The mappings of a kind that may be meant: of the component at hand, else of all there are."""
    here = path[1] if len(path) > 1 else ""
    in_component = path[:1] == ("components",)
    match kind:
        case "`run`" | "`run.checkpoint`" | "`cluster`":
            return [kind.strip("`")]
        case "`parallel`" | "`model`":
            return [
                f"components.{name}.{kind.strip('`')}"
                for name in ([here] if in_component else _names(root, "components"))
            ]
        case "a component":
            return [f"components.{name}" for name in _names(root, "components")]
        case "a group":
            mine = root.at(("components", here, "group"))
            groups = _names(root, "groups")
            return [
                f"groups.{name}" for name in groups if mine is None or not in_component or name == mine.value
            ]
        case "`dispatch`":
            return [f"pipeline.{here}.dispatch"] if path[:1] == ("pipeline",) else []
    return []


def _names(root: Node, top: str) -> list[str]:
    node = root.get(top)
    return [name for name, _ in node.items()] if node is not None else []
