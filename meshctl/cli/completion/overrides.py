"""Candidates for an override: the keys of a recipe and those that recipes have, config groups, and the values
that make sense.

groups.train.       ranks=  device_type=  ...         one part of a key at a time, what is mapped further ends
                    with a dot
+groups.judge.      ranks=  ...                       keys that are not there
~pipeline.          eval  exam                        keys that are
layout@             layout@components.actor.parallel=
...tp_size=         1  2  4  8  auto                  divisors of the ranks
...in=[batch,       [batch,rollouts                   the next item of a list
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from meshctl.cli.completion.candidate import Candidate
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.recipe.compose.yaml_tree import Path as Keys
from meshctl.recipe.field_types import (
    Boolean,
    DeviceType,
    DimOrder,
    Endpoint,
    Nested,
    Size,
    Text,
    Texts,
    Word,
)
from meshctl.recipe.fields import AUTO, CALL, CLUSTER, COMPONENT, GROUP, PARALLEL, RECIPE, RUN, STAGE, SYNC
from meshctl.recipe.key_paths import field_at, keys_below, section_at
from meshctl.recipe.quick_parse import Outline, is_plain
from meshctl.topology.sizes import DIMS, divisors

MAPPINGS = (RECIPE, CLUSTER, GROUP, COMPONENT, CALL, SYNC, STAGE, RUN)
"""Sections that have no shorter form."""
NAMED = ("groups", "components", "pipeline", "vars")
TELLS = ("_target_", "call", "sync", "device_type")
"""What says most of a named thing."""


def overrides(of: Outline, word: str) -> Iterator[Candidate]:
    sign = next(sign for sign in ("++", "+", "~", "") if word.startswith(sign))
    key, equals, value = word.removeprefix(sign).partition("=")
    if equals:
        for one in _values(of, key, value):
            yield Candidate(f"{sign}{key}={one.text}", one.says, one.whole)
        return
    for one in _choices(of, sign, key) if "@" in key else [*_keys(of, sign, key), *_groups(of, sign, key)]:
        yield Candidate(f"{sign}{one.text}", one.says, one.whole)


# Keys


def _keys(of: Outline, sign: str, begun: str) -> Iterator[Candidate]:
    parent, dot, _ = begun.rpartition(".")
    path = tuple(parent.split(".")) if dot else ()
    there, section = _there(of, path), section_at(path, of.root)
    known = section.keys if section and "+" in sign else keys_below(path, of.root) if sign != "~" else ()
    for key in dict.fromkeys((*there, *known)):
        if is_plain(key) and not (section is RECIPE and key == "defaults"):
            field = section.by_key.get(key) if section else None
            says = (
                field.doc
                if field
                else next((text for tell in TELLS if (text := of.text(*path, key, tell))), "")
            )
            yield from _key(of, sign, (*path, key), says)


def _there(of: Outline, path: Keys) -> list[str]:
    node = of.root.at(path)
    return (
        [str(index) for index in range(len(node.value))]
        if node is not None and node.is_list
        else of.names(*path)
    )


def _key(of: Outline, sign: str, path: Keys, says: str) -> Iterator[Candidate]:
    """The key as far as it goes: with a dot where more may follow, with `=` where a value may."""
    text, node, section = ".".join(path), of.root.at(path), section_at(path, of.root)
    holds_names = len(path) == 1 and path[0] in NAMED
    if sign == "~":
        yield Candidate(f"{text}.", says, whole=False) if holds_names else Candidate(text, says)
        return
    if section or holds_names or _there(of, path) or keys_below(path, of.root):
        yield Candidate(f"{text}.", says, whole=False)
    if not holds_names and section not in MAPPINGS and not (sign == "+" and node is not None):
        yield Candidate(f"{text}=", says, whole=False)


# Config groups


def _groups(of: Outline, sign: str, begun: str) -> Iterator[Candidate]:
    """The beginning of a choice: `layout@`, and what the defaults lists choose."""
    if "." in begun:
        return
    chosen = {one.partition("@")[0] for one in of.chosen}
    for group in of.groups():
        if group == "layout" and (sign != "~" or group in chosen):
            yield Candidate(f"{group}@", "a layout for a component", whole=False)
        elif group in of.chosen and sign != "+":
            yield Candidate(f"{group}{'' if sign == '~' else '='}", whole=sign == "~")
        elif group in chosen or "+" in sign:
            yield Candidate(f"{group}@", whole=False)


def _choices(of: Outline, sign: str, begun: str) -> Iterator[Candidate]:
    """Places: where the defaults lists mount the group, and for a layout every component."""
    group, _, _ = begun.partition("@")
    places = [one for one in of.chosen if one.startswith(f"{group}@")]
    if group == "layout" and sign != "~":
        places += [f"{group}@components.{name}.parallel" for name in of.names("components")]
    for place in dict.fromkeys(places):
        component = place.split(".")[1] if place.count(".") > 1 else ""
        yield Candidate(
            f"{place}{'' if sign == '~' else '='}",
            of.text("components", component, "_target_"),
            whole=sign == "~",
        )


# Values


def _values(of: Outline, key: str, value: str) -> Iterator[Candidate]:
    group = key.partition("@")[0]
    if "@" in key or ("." not in key and group in of.groups()):
        yield from (Candidate(option, says) for option, says in of.options(group))
        return
    path = tuple(key.split("."))
    if value.startswith("["):
        head = value[: max(value.rfind("["), value.rfind(",")) + 1]
        given = re.split(r"[\[,\s]+", head)
        for one in _of(of, path, value[len(head) :]):
            if one.text not in given:
                yield Candidate(f"{head}{one.text}", one.says, whole=False)
        return
    found = list(_of(of, path, value))
    now = of.text(*path)
    if not found and re.fullmatch(r"[\w./:@+-]+", now):
        found = [Candidate(now, "as it is", whole=False)]
    yield from found


def _of(of: Outline, path: Keys, begun: str) -> Iterator[Candidate]:
    """Yields the values that the type of a field proposes."""
    is_parameter = path[0] == "pipeline" and path[2:3] == ("in",)
    field = field_at(path, of.root)
    type_ = Texts("pipeline") if is_parameter and len(path) < 5 else field.type if field else None
    match type_:
        case Endpoint():
            component, dot, _ = begun.partition(".")
            yield from _endpoints(of, component) if dot else _begun(_names(of, "components"))
        case Nested(section=section, shorthand=Text()) if section is PARALLEL:
            group = of.text("components", path[1], "group")
            for one in _names(of, "components", other_than=path[1]):
                if of.text("components", one.text, "group") == group:
                    yield one
        case Text(names=names) if names:
            yield from _names(of, names, other_than=path[1])
        case Texts(names=names, is_prefix=is_prefix) if names:
            own = path[1] if path[0] == names else ""
            yield from _begun(_names(of, names)) if is_prefix else _names(of, names, own)
        case Size(may_be_auto=may_be_auto):
            workers = _workers(of, of.text("components", path[1], "group"))
            yield from (Candidate(str(size)) for size in divisors(workers))
            yield from (Candidate("auto", AUTO),) if may_be_auto else ()
        case Boolean():
            yield from (Candidate("true"), Candidate("false"))
        case Nested(shorthand=Word(words=words)) | Word(words=words) | DeviceType(words=words):
            yield from (Candidate(word, meaning) for word, meaning in words.items())
        case DimOrder():
            yield from map(Candidate, DIMS)
        case Nested(may_be_off=True):
            yield Candidate("false")


def _begun(names: Iterable[Candidate]) -> Iterator[Candidate]:
    return (Candidate(f"{one.text}.", one.says, whole=False) for one in names)


def _names(of: Outline, top: str, other_than: str = "") -> Iterator[Candidate]:
    for name in of.names(top):
        if name != other_than:
            yield Candidate(name, next((text for tell in TELLS if (text := of.text(top, name, tell))), ""))


def _endpoints(of: Outline, component: str) -> Iterable[Candidate]:
    """Of a component's class, read as text."""
    from meshctl.recipe.code.classes import Class, Code

    found = Code([str(folder) for folder in (of.home, Path.cwd())]).find(
        of.text("components", component, "_target_")
    )
    return [Candidate(f"{component}.{name}") for name in found.endpoints] if isinstance(found, Class) else []


def _workers(of: Outline, group: str) -> int:
    """Its ranks by what a worker has of them; 1 where that is not known."""
    listed: Node | None = of.root.at(("groups", group, "ranks"))
    ranks = (
        len(listed.value)
        if listed is not None and listed.is_list
        else _number(of.text("groups", group, "ranks"))
    )
    each = _number(of.text("groups", group, "gpus_per_worker"))
    return ranks // each if ranks % each == 0 else ranks


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"[1-9]\d{0,8}", text) else 1
