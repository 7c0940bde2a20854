"""Reads and writes YAML scalars by OmegaConf's rules: 1e3 is a float, a date is text."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import yaml

from meshctl.text.bounded import UNSEEN, escaped

MAX_DIGITS = 100
"""Maximum number of characters of a number. Python refuses to convert much longer ones."""
CORE = "tag:yaml.org,2002:"
SCALARS = {"str", "int", "float", "bool", "null"}
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
FLOAT = re.compile(
    rf"(?:[-+]?{_DIGITS}\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?{_DIGITS}[eE][-+]?[0-9]+|\.{_DIGITS}(?:[eE][-+][0-9]+)?"
    rf"|[-+]?{_DIGITS}(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
"""Texts that OmegaConf parses as a float."""


def dump(value: Any) -> str:
    """Returns plain data as YAML text. Reading the text returns the same data."""
    text: str = yaml.dump(
        value, Dumper=_dumper(), sort_keys=False, default_flow_style=None, allow_unicode=True, width=120
    )
    return escaped(text)


def scalar(written: str) -> Any:
    """Returns the value of a plain YAML scalar. A text that is not a valid scalar is returned unchanged."""
    parser = loader_class()("")
    try:
        tag = parser.resolve(yaml.ScalarNode, written, (True, False))
        return written if is_too_long(tag, written) else construct(parser, yaml.ScalarNode(tag, written))
    except ValueError:
        return written
    finally:
        parser.dispose()


@cache
def scalar_resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Returns OmegaConf's rules for the types of scalars, by their first character: 1e3 is a float, a date is
    text.

    The rules are copied, because importing OmegaConf's loader takes longer than reading a recipe.
    """
    resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items():
        resolvers[first] = [pair for pair in pairs if pair[0] != CORE + "timestamp"]
    for first in "-+0123456789.":
        resolvers.setdefault(first, []).append((CORE + "float", FLOAT))
    return resolvers


@cache
def loader_class() -> Any:
    """Returns a loader class with the parser in C, if there is one, and with OmegaConf's rules for
    scalars."""

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers = scalar_resolvers()

    return Loader


@cache
def _dumper() -> Any:
    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        yaml_implicit_resolvers = scalar_resolvers()

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, data: str) -> Any:
        style = '"' if UNSEEN.search(data) else None
        return dumper.represent_scalar(CORE + "str", data, style=style)

    Dumper.add_representer(str, text)
    return Dumper


def is_too_long(tag: str, written: str) -> bool:
    return len(written) > MAX_DIGITS and tag in (CORE + "int", CORE + "float")


def construct(loader: Any, node: Any) -> Any:
    constructors = {
        "int": loader.construct_yaml_int,
        "float": loader.construct_yaml_float,
        "bool": loader.construct_yaml_bool,
        "null": lambda node: None,
        "str": lambda node: node.value,
    }
    return constructors.get(node.tag.removeprefix(CORE), constructors["str"])(node)
