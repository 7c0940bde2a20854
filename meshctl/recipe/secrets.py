"""Which values of a composed recipe are secret, and a recipe, a report or a text without them.

A value is secret under a secret's key (`text/redaction.py`), and so is what such a value refers to: with `token:
${vars.mine}`, the text of `vars.mine` is one. What comes from the environment is never shown. In the lines of a file,
secrets are masked where the parser finds them. Nothing of this is done where nothing can be found, which holds for
most recipes: `validate` pays one search of the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from meshctl.diagnostics import Diagnostic, Report, Span
from meshctl.recipe import fields
from meshctl.recipe.compose.errors import MAX_DEPTH
from meshctl.recipe.compose.overrides import is_override
from meshctl.recipe.compose.references import references
from meshctl.recipe.compose.yaml_tree import BROKEN, Node, Path, leaves
from meshctl.recipe.fields import RECIPE
from meshctl.text.redaction import (
    HIDDEN,
    MAX_LINE,
    PLACEHOLDERS,
    Stretch,
    follows_option,
    hidden,
    is_reference,
    is_secret_at,
    is_suspect,
    is_telling,
    is_text,
    literals,
    logins,
    masked,
    masked_unreadable,
    referred_names,
    stretches,
    stretches_of,
)
from meshctl.topology.cluster import DEVICE_ALIASES, DEVICE_TYPES
from meshctl.topology.sizes import SIZES

OURS = {
    *DEVICE_TYPES,
    *DEVICE_ALIASES,
    *fields.TIMES,
    *fields.COLLECT_MODES,
    *fields.DISPATCH_MODES,
    *fields.EXECUTE_MODES,
    *fields.BALANCE,
    *SIZES,
    *RECIPE.keys,
    "auto",
}
"""Words of meshctl itself, which a message needs and which tell nothing."""
Lines = Mapping[str, Sequence[str]]
"""By file."""
Sources = Sequence[tuple[str, Sequence[str]]]
"""(file, its lines) of all that was read; each override is a file of one line."""
PIECE = 6
"""So long a part of a text of the environment is hidden where it stands alone."""
BLANK = r"\$\w+|\{\w*\}|<[^<>]*>"
"""What a program or a person puts a password in the place of."""
ENVIRONMENT_NAME = r"\boc\.env:\s*([^\s,{}]+)"


@dataclass(frozen=True)
class Secrets:
    """What of one recipe must not be shown."""

    paths: frozenset[Path] = frozenset()
    """The scalars whose text is secret."""
    written: tuple[str, ...] = ()
    """Secret texts that stand in the recipe."""
    environment: tuple[str, ...] = ()
    """Texts that came from the environment."""
    addresses: tuple[Path, ...] = ()
    """The scalars with a password in an address: `redis://me:abc@host`."""
    places: frozenset[tuple[str, int, int]] = frozenset()
    """(file, line, column) of the scalars at `paths` and of those that they replaced."""

    @property
    def known(self) -> tuple[str, ...]:
        return (*self.written, *self.environment)


NONE = Secrets()


class RecordingEnviron(Mapping[str, str]):
    """An environment that records the texts that were read from it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.texts: dict[str, None] = {}

    def __getitem__(self, name: str) -> str:
        text = self.environ[name]
        self.texts[text] = None
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self.environ)

    def __len__(self) -> int:
        return len(self.environ)


def secrets_of(tree: Node, sources: Sources, environ: RecordingEnviron) -> Secrets:
    """Returns the secrets of a tree whose references are as written, of the texts that it was read from, and of
    what it took from the environment."""
    text = "\n".join(line for _, lines in sources for line in lines)
    for name in re.findall(ENVIRONMENT_NAME, text) if "oc.env" in text else ():
        environ.get(name)
    if not environ.texts and not is_suspect(text):
        return Secrets()
    by_path = dict(secret_leaves(tree))
    secret = [leaf for node in by_path.values() for leaf in _replaced(node)]
    found = {piece for leaf in secret for piece in literals(str(leaf.value))}
    found |= {piece for _, leaf in leaves(tree) for piece in _inside(leaf)}
    found |= set(_of_overrides(sources))
    found -= {key for key, _ in _keys(tree)}
    written = tuple(sorted(filter(is_telling, found), key=len, reverse=True))
    return Secrets(
        paths=frozenset(by_path),
        written=written,
        environment=_of_environment(environ.texts, text, written) if environ.texts else (),
        addresses=tuple(path for path, leaf in leaves(tree) if path not in by_path and any(_passwords(leaf))),
        places=frozenset((leaf.span.file, leaf.span.line, leaf.span.column) for leaf in secret),
    )


def _of_overrides(sources: Sources) -> Iterator[str]:
    """Yields the secret texts of all overrides, also of those that are refused and thus not in the tree."""
    for file, lines in sources:
        for line in lines if is_override(file) else ():
            for start, end in _in_override(line):
                yield from literals(line[start:end].strip("\"' "))


def secret_leaves(tree: Node) -> Iterator[tuple[Path, Node]]:
    """The scalars that are secret, and those that they refer to."""
    open, seen = list(_under_keys(tree)), set[Path]()
    while open:
        path, leaf = open.pop()
        if path in seen:
            continue
        seen.add(path)
        yield path, leaf
        for _, target in (
            references(leaf.value, path) if isinstance(leaf.value, str) and "${" in leaf.value else ()
        ):
            if target is not None and _is_free(target) and (node := tree.at(target)) is not None:
                open += [((*target, *below), inner) for below, inner in leaves(node) if _has_text(inner)]


def _under_keys(node: Node, path: Path = (), under: bool = False) -> Iterator[tuple[Path, Node]]:
    """The scalars below a secret's key, or after an option that is one."""
    if node.is_list:
        for index, item in enumerate(node.value):
            option = (
                index > 0
                and follows_option(node.value[index - 1].value)
                and not str(item.value).startswith("-")
            )
            yield from _under_keys(item, (*path, str(index)), under or option)
    elif node.is_mapping:
        for key, item in node.items():
            here = (*path, key)
            yield from _under_keys(item, here, under or is_secret_at(here))
    elif under and _has_text(node):
        yield path, node


def _has_text(node: Node) -> bool:
    return node.value is not BROKEN and is_text(node.value)


def _is_free(path: Path) -> bool:
    """Whether a recipe may say anything there: `run.dir` is no secret because a secret's text refers to it."""
    return path[0] == "vars" or path[0] not in RECIPE.keys or (len(path) > 2 and path[2] in ("args", "env"))


def _keys(node: Node) -> Iterator[tuple[str, Node]]:
    inner = list(node.items()) or [("", item) for item in (node.value if node.is_list else ())]
    for key, item in inner:
        yield key, item
        yield from _keys(item)


def _replaced(node: Node | None) -> Iterator[Node]:
    """Yields a scalar and the scalars of all that it replaced."""
    while node is not None:
        yield from (leaf for _, leaf in leaves(node) if _has_text(leaf))
        node = node.was


def _inside(node: Node) -> Iterator[str]:
    """Secrets inside of a text, as in `--token=abc`."""
    if isinstance(node.value, str):
        for start, stop in stretches(node.value):
            yield from literals(node.value[start:stop].strip("\"'"))


def _passwords(node: Node) -> Iterator[str]:
    """What is written out of the passwords in a text's addresses, but for blanks that somebody fills in."""
    for password in logins(node.value) if isinstance(node.value, str) else ():
        yield from (
            piece
            for piece in literals(password)
            if piece.lower() not in PLACEHOLDERS and not re.fullmatch(BLANK, piece)
        )


def _of_environment(texts: Iterable[str], said: str, written: Iterable[str]) -> tuple[str, ...]:
    """Texts of the environment with their parts, but for what the recipe itself says and what is no text at
    all."""
    whole = [text for text in texts if text.strip()]
    parts = [part for text in whole for part in re.split(r"[\s.,:;/@=]+", text) if len(part) >= PIECE]
    telling = dict.fromkeys(
        text for text in (*whole, *parts) if is_telling(text) and text not in OURS and not _is_number(text)
    )
    public = {
        text
        for text in telling
        if text not in written and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", said)
    }
    return tuple(sorted(telling.keys() - public, key=len, reverse=True))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[\d.,_]{1,8}", text) is not None


# Without them


def redacted(report: Report, secrets: Secrets) -> Report:
    """Returns a report without secrets: they are hidden in messages and masked in lines. A fix whose text would
    show one is left out."""
    sources = tuple((file, masked_lines(file, lines, secrets)) for file, lines in report.sources)
    covered = {
        file: shown
        for (file, lines), (_, shown) in zip(report.sources, sources, strict=True)
        if shown != tuple(lines)
    }
    texts = (f"{one.message} {one.help}" for one in report.diagnostics)
    if not covered and not secrets.known and not any(map(is_suspect, texts)):
        return report
    found = tuple(_without(one, covered, dict(report.sources), secrets.known) for one in report.diagnostics)
    return replace(report, diagnostics=found, sources=sources)


def masked_lines(file: str, lines: Sequence[str], secrets: Secrets = NONE) -> tuple[str, ...]:
    """Returns the lines of a file, or the line of an override, with stars in place of what is secret."""
    places = {(line, column) for name, line, column in secrets.places if name == file}
    if not places and not secrets.written and not is_suspect("\n".join(lines)):
        return tuple(lines)
    if is_override(file):
        found = [_in_override(line) for line in lines]
    elif (by_line := _in_file(lines, places)) is None:
        lines, found = masked_unreadable(lines), [[] for _ in lines]
    else:
        found = by_line
    return tuple(
        masked(line, [*some, *stretches_of(line, secrets.written)])
        for line, some in zip(lines, found, strict=True)
    )


def _in_override(line: str) -> list[Stretch]:
    key, equals, value = line.partition("=")
    start = len(key) + len(equals)
    path = tuple(key.lstrip("+~").partition("@")[0].split("."))
    if is_secret_at(path) and is_text(value.strip()) and not is_reference(value.strip()):
        return [(start, len(line))]
    return [(start + begin, start + end) for begin, end in stretches(value, in_flow=True)]


def _in_file(lines: Sequence[str], places: Collection[tuple[int, int]]) -> list[list[Stretch]] | None:
    """Returns what is secret in each line: scalars under a secret's key, after an option that is one, and those
    that begin at `places`; in other scalars and in comments, what their text shows. None for a file that is no
    YAML."""
    found: list[list[Stretch]] = [[] for _ in lines]
    ends = [0] * len(lines)
    """Where the last token of each line ends."""

    def in_text(number: int, start: int, end: int) -> None:
        text = lines[number][start:end]
        if len(text) > MAX_LINE and is_suspect(text):
            found[number].append((start, end))
            return
        in_flow = "{" in text or "[" in text
        found[number] += [(start + begin, start + stop) for begin, stop in stretches(text, in_flow)]

    try:
        for event, is_secret in _events("\n".join(lines), places):
            for number, start, end in _extent(event, lines):
                ends[number] = max(ends[number], end)
                if is_secret:
                    found[number].append((start, end))
                elif is_secret is not None:
                    in_text(number, start, end)
    except (yaml.YAMLError, RecursionError):
        return None
    for number, end in enumerate(ends):
        if found[number] and found[number][-1][1] == end:  # a comment behind a secret may repeat it
            found[number].append(
                (end, len(lines[number].rstrip())) if "#" in lines[number][end:] else (end, end)
            )
        else:
            in_text(number, end, len(lines[number]))
    return found


def _extent(event: Any, lines: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yields (line, first column, end) of what an event covers, all from 0."""
    first, last = event.start_mark, event.end_mark
    for number in range(first.line, min(last.line + 1, len(lines))):
        line = lines[number]
        start = first.column if number == first.line else len(line) - len(line.lstrip())
        end = last.column if number == last.line else len(line.rstrip())
        yield number, min(start, end), end


def _events(text: str, places: Collection[tuple[int, int]]) -> Iterator[tuple[Any, bool | None]]:
    """Yields the parser's events that cover text, each with whether it is a secret; None for what is no value."""
    open: list[_Open] = []
    names = {(name,) for name in referred_names(text.splitlines())}
    events: Iterator[Any] = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            open.pop()
            yield event, None
        if not isinstance(event, yaml.NodeEvent):
            continue
        parent = open[-1] if open else _Open((), False, is_mapping=False)
        value = event.value if isinstance(event, yaml.ScalarEvent) else ""
        is_collection = isinstance(event, yaml.CollectionStartEvent)
        if parent.is_mapping and parent.key is None:
            parent.key = value
            if is_collection:
                open.append(_Open(parent.path, parent.under, isinstance(event, yaml.MappingStartEvent)))
            else:
                yield event, None
            continue
        path = parent.path if parent.key is None else (*parent.path, parent.key)
        is_option = value.startswith("-") and not value.startswith("- ")
        follows = not parent.is_mapping and follows_option(parent.before) and not is_option
        under = parent.under or follows or is_secret_at(path) or path[-1:] in names
        parent.before, parent.key = value, None
        if is_collection:
            if len(open) > MAX_DEPTH:
                raise yaml.YAMLError
            open.append(_Open(path, under, isinstance(event, yaml.MappingStartEvent)))
        elif isinstance(event, yaml.ScalarEvent):
            mark: Any = event.start_mark
            is_marked = under or (mark.line + 1, mark.column + 1) in places
            yield event, is_marked and is_text(value) and not is_reference(value)


@dataclass
class _Open:
    """A mapping or a list whose end the parser has not reached."""

    path: Path
    under: bool
    is_mapping: bool
    key: str | None = None
    """The key whose value comes next."""
    before: str = ""
    """The last item."""


def _without(found: Diagnostic, covered: Lines, lines: Lines, known: tuple[str, ...]) -> Diagnostic:
    def span(one: Span) -> Span:
        return replace(one, says=hidden(one.says, known)) if one.says else one

    def shows(one: Span) -> bool:
        if one.file not in covered or one.line > len(covered[one.file]):
            return False
        part = slice(one.column - 1, one.column - 1 + one.width)
        return covered[one.file][one.line - 1][part] != lines[one.file][one.line - 1][part]

    return replace(
        found,
        message=hidden(found.message, known),
        primary=span(found.primary) if found.primary else None,
        seconds=tuple(map(span, found.seconds)),
        help=hidden(found.help, known),
        fixes=() if any(shows(fix.span) for fix in found.fixes) else found.fixes,
    )


def shown(node: Node, secrets: Secrets, path: Path = (), under: bool = False) -> Node:
    """What stands at a path, with its secrets hidden: references and everything else stay as written.
    `under`: it is one as a whole."""
    under = under or path in secrets.paths or is_secret_at(path)
    if isinstance(node.value, dict):
        return replace(
            node, value={key: shown(item, secrets, (*path, key), under) for key, item in node.value.items()}
        )
    if isinstance(node.value, list):
        options = [False, *(follows_option(item.value) for item in node.value)]
        items = enumerate(node.value)
        return replace(
            node,
            value=[
                shown(item, secrets, (*path, str(index)), under or options[index]) for index, item in items
            ],
        )
    if node.from_environment:
        return replace(node, value=HIDDEN, written=HIDDEN)
    if under and _has_text(node):
        text = without_literals(str(node.value))
        return replace(node, value=text, written=text) if text != node.value else node
    if isinstance(node.value, str):
        text = hidden(node.value, secrets.written)
        return replace(node, value=text, written=text) if text != node.value else node
    return node


def without_literals(text: str) -> str:
    """A secret's text: its references, and nothing else."""
    for piece in sorted(set(literals(text)), key=len, reverse=True):
        text = text.replace(piece, HIDDEN) if "${" in text else HIDDEN
    return text


# What is said of them


def warnings(tree: Node, secrets: Secrets) -> Iterator[Diagnostic]:
    """A secret in a file is everybody's who may read it, and a run's folder has it once more."""
    said: set[Path] = set()
    for path in sorted(secrets.paths):
        leaf, named = tree.at(path), _named(tree, path)
        if (
            leaf is None
            or named in said
            or str(leaf.value).lower() in PLACEHOLDERS
            or not any(literals(str(leaf.value)))
        ):
            continue
        said.add(named)
        help = f"let the environment say it: ${{oc.env:{_variable(named)}}}"
        yield Diagnostic(
            "MC219", f"`{named[-1]}` is a secret, written out in the recipe", leaf.span, (), help, "warning"
        )
    for path in secrets.addresses:
        leaf, named = tree.at(path), _named(tree, path)
        if leaf is not None:
            help = f"let the environment say it: ://USER:${{oc.env:{_variable(named)}_PASSWORD}}@HOST"
            yield Diagnostic(
                "MC219",
                f"`{named[-1]}` is an address with its password written out",
                leaf.span,
                (),
                help,
                "warning",
            )


def _variable(named: Path) -> str:
    return re.sub(r"\W+", "_", named[-1]).strip("_").upper() or "SECRET"


def _named(tree: Node, path: Path) -> Path:
    """What a secret is called: by its key, or by the option before it; all items of a list together."""
    parent = tree.at(path[:-1])
    if parent is None or not parent.is_list:
        return path
    before = parent.value[int(path[-1]) - 1].value if int(path[-1]) else None
    return (*path, str(before)) if follows_option(before) else _named(tree, path[:-1])
