"""Reads files of other systems as keys with values and places: YAML, TOML, command lines, and Python.

    actor.lr: 1e-6                                Given("actor.lr", 1e-6, Span("a.yaml", 1, 11))
    python -m verl.trainer.main_ppo actor.lr=1e-6      the same, with the word `verl.trainer.main_ppo`
    trl sft --learning_rate 1e-5                  Given("learning_rate", 1e-5, ...), with two words

The items of mappings are joined by dots, and so are the numbers of the items of a list of mappings.
"""

from __future__ import annotations

import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshctl.diagnostics import Diagnostic, Span
from meshctl.foreign.model import Given, Source, Unreadable
from meshctl.foreign.python import calls_in
from meshctl.foreign.shell import read_shell
from meshctl.recipe.compose import yaml_reader
from meshctl.recipe.compose.yaml_scalars import scalar
from meshctl.recipe.compose.yaml_tree import Node, plain

YAML_SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 1 << 20
REFERENCE = re.compile(r"\$\{([^${}]*)\}")
RESOLVERS: Mapping[str, Callable[..., Any]] = {
    "mul": operator.mul,
    "div": operator.truediv,
    "add": operator.add,
    "max": max,
    "min": min,
}
"""Functions of references, such as `${mul:2, 3}`."""
REFERENCES_MAX = 32
ITEM = re.compile(r"\.\d+(?=\.|$)")
"""The number of an item in a key."""
HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?")


def read(files: Iterable[Path]) -> Source:
    """Returns what all files state. A later file replaces keys of an earlier one, and a list as a whole, and
    a command line those of all files.
    References of OmegaConf, such as `${policy.model_name}`, are put in. Raises `Unreadable`."""
    found, last = list[Source](), dict[str, Given]()
    for file in sorted(files, key=lambda one: one.suffix not in (*YAML_SUFFIXES, ".toml", ".py")):
        one = _read(file)
        found.append(one)
        lists = tuple({ITEM.split(given.key)[0] + "." for given in one.given if ITEM.search(given.key)})
        kept = {key: given for key, given in last.items() if not (ITEM.search(key) and key.startswith(lists))}
        last = {**kept, **{given.key: given for given in one.given}}
    values = {one.key: one.value for one in last.values()}
    words = tuple(word for one in found for word in one.words)
    given = tuple(_resolved(one, values) for one in last.values())
    return Source(given, words, tuple(source for one in found for source in one.sources))


def _resolved(one: Given, values: Mapping[str, Any]) -> Given:
    """Returns a key whose references are replaced by values; one that cannot be makes it unknown."""
    value = one.value
    for _ in range(REFERENCES_MAX):
        found = REFERENCE.search(value) if isinstance(value, str) and not one.unknown else None
        if found is None:
            return replace(one, value=value)
        name, colon, rest = found[1].strip().partition(":")
        try:
            if colon:
                new = RESOLVERS[name](*(scalar(part.strip()) for part in rest.split(",")))
            else:
                above = one.key.split(".")[: -(len(name) - len(name.lstrip("."))) or None] * name.startswith(
                    "."
                )
                new = values[".".join([*above, name.lstrip(".")])]
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            break
        value = new if found[0] == value else value[: found.start()] + str(new) + value[found.end() :]
    return replace(one, unknown=str(one.value))


def _read(file: Path) -> Source:
    try:
        data = file.read_bytes()[: MAX_BYTES + 1]
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise Unreadable(f"`{file}` cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise Unreadable(f"`{file}` is not UTF-8") from None
    if len(data) > MAX_BYTES:
        raise Unreadable(f"`{file}` is larger than {MAX_BYTES >> 20} MiB")
    name, lines = str(file), tuple(text.splitlines())
    sources = ((name, lines),)
    if file.suffix in YAML_SUFFIXES:
        parsed = yaml_reader.read(data, name)
        if parsed.tree is None or parsed.found:
            raise Unreadable(parsed.found[0] if parsed.found else Diagnostic("MC001", f"`{name}` is empty"))
        return Source(tuple(_flat(parsed.tree, "")), (), sources)
    if file.suffix == ".toml":
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise Unreadable(f"`{name}` is not TOML: {error}") from None
        return Source(tuple(_of_toml(values, name, lines)), (), sources)
    if file.suffix == ".py":
        return Source(tuple(calls_in(text, name)), (), sources)
    given, words = read_shell(text, name)
    return Source(tuple(given), tuple(words), sources)


def _flat(node: Node, path: str) -> Iterator[Given]:
    items: Iterable[tuple[str, Node]] = node.items()
    if node.is_list and any(one.is_mapping for one in node.value):
        items = ((str(number), one) for number, one in enumerate(node.value))
    elif not node.is_mapping or not node.value:
        if path:
            yield Given(path, plain(node), node.span)
        return
    for key, item in items:
        yield from _flat(item, f"{path}.{key}" if path else key)


def _of_toml(values: Mapping[str, Any], name: str, lines: Sequence[str]) -> Iterator[Given]:
    """Yields the keys of a TOML file. `tomllib` has no places: they are looked up in the lines."""
    places, section = dict[str, Span](), ""
    for number, line in enumerate(lines, 1):
        if header := HEADER.fullmatch(line):
            section = header[1]
        elif found := re.match(r"\s*([\w.\"'-]+)\s*=\s*", line):
            key = f"{section}.{found[1]}" if section else found[1]
            width = len(line[found.end() :].partition(" #")[0].rstrip()) or 1
            places[re.sub(r"[\"'\s]", "", key)] = Span(name, number, found.end() + 1, width)
    yield from _of_mapping(values, "", places, Span(name, 1, 1))


def _of_mapping(value: Any, path: str, places: Mapping[str, Span], usual: Span) -> Iterator[Given]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _of_mapping(item, f"{path}.{key}" if path else str(key), places, usual)
    elif path:
        yield Given(path, value, places.get(path, usual))
