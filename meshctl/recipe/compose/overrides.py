"""Parses overrides of the command line, in Hydra's grammar.

    k=v      sets an existing value, or a key of the field table
    k={a: 1} merges into a mapping, and replaces a layout
    +k=v     adds a value that does not exist
    ++k=v    sets or adds
    ~k       deletes; ~k=v only if the value is v
    group@package=option   chooses a config

Hydra parses overrides and their scalars. A wrong override is reported and ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose import yaml_tree
from meshctl.recipe.compose.yaml_reader import MAX_DEPTH, read
from meshctl.recipe.compose.yaml_tree import Node

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override as HydraOverride

MAX_OVERRIDES = 200
MAX_LENGTH = 1 << 16
"""Maximum number of characters of all overrides."""
LAYOUT = "layout"
"""The config group of layouts. Choosing a layout replaces the whole value of a component's `parallel`."""
ENGINE_KEY = "engine"
"""The key of recipes, and the config group."""
MAX_JOBS = 1000
"""Maximum number of jobs of a multirun."""
FORM = "write KEY=VALUE to change a value, +KEY=VALUE to add a key, ~KEY to delete one"
QUOTE = "quote a value with special characters: key='a value'"
MISTAKES = (
    (r"()\s*$", "it is empty", FORM),
    (r"(-+)", "", "overrides are written without dashes: KEY=VALUE"),
    (r"[\w.@/-]+ *(:) *[^=]*$", "an override has `=` in place of `:`", "write KEY=VALUE"),
    (r"([^=]*)$", "it has no `=`", FORM),
    (r"[+~ ]*()=", "it has no key", FORM),
    (r"[^=]*(\[)", "", "write the index of a list item after a dot: key.0=value"),
    (r"[+~ ]*[^\s=]+(\s+)", "there must be no spaces in the key or before the `=`", "write KEY=VALUE"),
    (
        r"[^=]*=.*?[{,]\s*([\"'])[^\"'{}]*\1\s*:",
        "the keys of a mapping have no quotes",
        "write KEY={KEY: VALUE}",
    ),
)
"""(pattern of a text that Hydra's grammar refuses, reason, help): the first match is the explanation, and its
group is the wrong part."""


@dataclass(frozen=True)
class Override:
    """One override of the command line."""

    parsed: HydraOverride
    text: str
    file: str
    """Its name in diagnostics, e.g. `override 2`. It counts as a file of one line."""

    @property
    def group(self) -> str:
        """The config group, or the dotted key whose value is set."""
        return str(self.parsed.key_or_group)

    @property
    def target(self) -> str:
        """`group@package`, or the dotted key, without the sign `+`, `++` or `~` that precedes it."""
        return str(self.parsed.get_key_element()).lstrip("+~")

    @property
    def path(self) -> yaml_tree.KeyPath:
        return tuple(self.group.split("."))

    @property
    def is_deletion(self) -> bool:
        return bool(self.parsed.is_delete())

    @property
    def key_span(self) -> Span:
        start = re.match(r"\s*(\+\+|\+|~)?\s*", self.text)
        column = start.end() if start else 0
        return Span(self.file, 1, column + 1, max(1, len(self.text[column:].partition("=")[0].rstrip())))

    def part_span(self, index: int) -> Span:
        """Returns the span of one part of the dotted key."""
        before = sum(len(part) + 1 for part in self.path[:index])
        key = self.key_span
        return replace(key, column=key.column + before, width=len(self.path[index]))

    @property
    def value_span(self) -> Span:
        head, _, _ = self.text.partition("=")
        if not self.value_text:
            return self.key_span
        column = self.text.index(self.value_text, len(head) + 1)
        return Span(self.file, 1, column + 1, len(self.value_text))

    @property
    def value_text(self) -> str:
        return self.text.partition("=")[2].strip()

    def node(self) -> Node:
        """Returns the value as a tree. Each part of a mapping or list has its own span if the value is also
        YAML, in contrast to a function such as `sort([3, 1])`."""
        value, span = self.parsed.value(), self.value_span
        if isinstance(value, (dict, list)):
            text = " " * (span.column - 1) + self.value_text  # keeps the columns
            tree = read(text.encode(), self.file).tree
            if tree is not None and yaml_tree.plain(tree) == value:
                return replace(tree, key=self.key_span)
        return replace(yaml_tree.of_plain(value, span, self.key_span), written=self.value_text)


def is_layout(package: str | None) -> bool:
    """Returns whether a config at this package is a component's layout."""
    return re.fullmatch(r"(_global_\.)?components\.[^.]+\.parallel", package or "") is not None


def is_engine(package: str | None) -> bool:
    """Returns whether a config at this package is the engine of the recipe."""
    return (package or "").removeprefix("_global_.") == ENGINE_KEY


def file_of(number: int) -> str:
    return f"override {number}"


# Parsing


def hydra_errors() -> tuple[type[Exception], ...]:
    """Returns the exception types that Hydra and OmegaConf raise for invalid text."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    return HydraException, OmegaConfBaseException, ValueError, AssertionError


def parse(texts: Sequence[str]) -> tuple[list[Override], list[Diagnostic]]:
    """Returns the overrides that are syntactically valid, and diagnostics about the others."""
    length, exceeded = sum(map(len, texts)), ""
    if len(texts) > MAX_OVERRIDES:
        exceeded = f"{len(texts)} overrides exceed the limit of {MAX_OVERRIDES}"
    elif length > MAX_LENGTH:
        exceeded = f"overrides of {length:,} characters exceed the limit of {MAX_LENGTH:,}"
    if exceeded:
        return [], [Diagnostic("MC206", f"{exceeded}; put them into a recipe")]
    results = [_parse(text, file_of(number)) for number, text in enumerate(texts, 1)]
    overrides = [one for one in results if isinstance(one, Override)]
    return overrides, [one for one in results if isinstance(one, Diagnostic)]


@cache
def _parser() -> OverridesParser:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _parse(text: str, file: str) -> Override | Diagnostic:
    if is_too_deep(text):
        part = "key" if text.partition("=")[0].count(".") > MAX_DEPTH else "value"
        message = f"this is not a valid override: its {part} is nested deeper than {MAX_DEPTH} levels"
        return Diagnostic(
            "MC206", message, Span(file, 1, 1, len(text)), help="this is the limit for a recipe"
        )
    try:
        parsed = _parser().parse_rule(text, "override")
    except hydra_errors() as error:
        return _explained(text, file, error)
    override = Override(parsed, text, file)
    return _refusal(override) or override


def _explained(text: str, file: str, error: BaseException | None = None) -> Diagnostic:
    """Returns the diagnostic for a text that is not a valid override. Hydra's grammar reports at most the
    position at which it stopped."""
    cause = getattr(error, "__cause__", None)
    token = getattr(cause, "offendingToken", None)
    stop = token.column if token is not None else getattr(cause, "startIndex", None)
    start, width, reason, help = 0, len(text), "", QUOTE
    if isinstance(stop, int) and 0 <= stop < len(text):
        start, width, reason = stop, 1, f"`{text[stop]}` is not allowed here"
    for pattern, why, what in MISTAKES:
        if found := re.match(pattern, text):
            start, stop = next(span for span in found.regs[1:] if span[0] >= 0)
            width, reason, help = stop - start, why, what
            break
    message = f"this is not a valid override{': ' if reason else ''}{reason}"
    return Diagnostic("MC206", message, Span(file, 1, start + 1, max(1, width)), help=help)


def is_too_deep(text: str) -> bool:
    """Returns whether brackets, including quoted ones, or parts of a key are nested deeper than any recipe
    needs."""
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return max(deepest, text.partition("=")[0].count(".")) > MAX_DEPTH


def _refusal(override: Override) -> Diagnostic | None:
    """Returns a diagnostic about an override that the grammar accepts and that is still wrong; None if it is
    valid."""
    if not all(override.path):
        return _explained(override.text, override.file)
    if override.parsed.is_sweep_override():
        message = f"`{override.value_text}` is a sweep over several values, which only `launch -m` accepts"
        help = "give one value; write key='a,b' for a comma in a text, and key=[1,2] for a list"
        return Diagnostic("MC207", message, override.value_span, help=help)
    if re.split(r"[./]", override.group)[0] == "hydra":
        return Diagnostic("MC216", "an override cannot configure Hydra itself", override.key_span)
    if override.path[0] == "defaults":
        message = "an override cannot change the defaults list"
        help = "choose an option of a config group: layout@components.NAME.parallel=OPTION"
        return Diagnostic("MC221", message, override.key_span, help=help)
    return None


# Sweeps: `key=1,2`, `key=choice(a,b)`, `key=range(1,4)`, `group=glob(*)`, and tag, sort, shuffle of these


class CannotSweep(Exception):
    """The sweeps cannot be expanded. The message names an override without values, or the number of jobs if
    it is too large."""


@dataclass(frozen=True)
class Job:
    """One combination of a multirun."""

    overrides: tuple[str, ...]
    swept: tuple[str, ...]
    """The overrides that differ between jobs."""


def expand(texts: Sequence[str], options: Callable[[str], Sequence[str]]) -> list[Job]:
    """Returns the jobs of a command line: the product of all sweeps, in Hydra's order: the last sweep varies
    fastest. `options` returns the configs of a group, for `glob`.

    An override that cannot be parsed is passed to every job, where it is reported. Raises `CannotSweep`.
    """
    values = [_values(text, options) for text in texts]
    count = math.prod(len(some) for some in values)
    if count > MAX_JOBS:
        raise CannotSweep(f"the sweeps make more than {MAX_JOBS:,} jobs")
    is_swept = [len(some) > 1 for some in values]
    jobs = []
    for overrides in product(*values):
        swept = tuple(text for text, varies in zip(overrides, is_swept, strict=True) if varies)
        jobs.append(Job(overrides, swept))
    return jobs


def _values(text: str, options: Callable[[str], Sequence[str]]) -> list[str]:
    """Returns an override for each value of a sweep. Returns a text that is not a sweep unchanged."""
    if is_too_deep(text) or len(text) > MAX_LENGTH:
        return [text]
    from hydra.core.override_parser.overrides_parser import OverridesParser

    # The part of Hydra's config loader that is used to expand a `glob`
    loader: Any = SimpleNamespace(get_group_options=lambda group, results_filter=None: [*options(group)])
    parser = OverridesParser.create(config_loader=loader)
    try:
        (parsed,) = parser.parse_overrides([text])
        if not parsed.is_sweep_override():
            return [text]
        key = parsed.get_key_element()
        values = [f"{key}={value}" for value in islice(parsed.sweep_string_iterator(), MAX_JOBS + 1)]
    except hydra_errors():
        return [text]
    if not values:
        raise CannotSweep(f"`{text}` has no value")
    return values
