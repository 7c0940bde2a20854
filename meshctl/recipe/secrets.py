"""Finds the secret values of a composed recipe, and redacts them.

A value is secret if its key is the name of a secret (`text/redaction.py`), or if a secret value refers to it:
with `token: ${vars.mine}`, the text of `vars.mine` is secret. Texts from the environment are never shown. A
search of the whole text comes first, so that most recipes, which contain no secret, cost no more than that.

In reports, secrets in messages are redacted, and secrets in lines of files are masked by stars, so that marks
below a line still fit. The tree contains the place of each secret. Of a file that cannot be read completely
and may contain a secret, all lines are masked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Report, Span
from meshctl.recipe.compose import yaml_reader
from meshctl.recipe.compose.interpolation import references
from meshctl.recipe.compose.yaml_tree import BROKEN, KeyPath, Node, is_override, leaves, plain, with_leaves
from meshctl.recipe.fields import RECIPE
from meshctl.recipe.scalars import shown as shown_path
from meshctl.text.redaction import (
    HIDDEN,
    PLACEHOLDERS,
    Known,
    hides,
    is_distinctive,
    is_reference,
    is_secret_at,
    is_suspect,
    is_text,
    literals,
    mask,
    redact,
    secret_places,
    spans,
)

Sources = Sequence[tuple[str, Sequence[str]]]
"""(file name, lines) of each file that was read. An override counts as a file of one line."""
MIN_ENVIRONMENT = 5
"""Minimum length in characters of a text from the environment that is redacted wherever it occurs."""
ENVIRONMENT_NAME = r"\boc\.env:\s*([^\s,{}]+)"


@dataclass(frozen=True)
class Secrets:
    """The secrets of one recipe."""

    paths: frozenset[KeyPath] = frozenset()
    """The paths of the scalars whose text is secret."""
    written: tuple[str, ...] = ()
    """Secret texts in the recipe's files and overrides."""
    environment: tuple[str, ...] = ()
    """Texts that came from the environment."""
    places: frozenset[tuple[str, int, int]] = frozenset()
    """(file, line, column) of the scalars at `paths` and of those that they replaced."""

    @cached_property
    def known(self) -> Known:
        return Known((*self.written, *self.environment))

    @cached_property
    def written_anywhere(self) -> Known:
        return Known(self.written)


NO_SECRETS = Secrets()


class RecordingEnviron(Mapping[str, str]):
    """A mapping of environment variables that records the values that were read."""

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
    """Returns the secrets of a recipe. `tree` has unresolved references, `sources` are the texts from which
    it was read, and `environ` has recorded the values that it took from the environment."""
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
    written = tuple(sorted(filter(is_distinctive, found), key=len, reverse=True))
    return Secrets(
        paths=frozenset(by_path),
        written=written,
        environment=tuple(_of_environment(environ.texts, text, written)),
        places=frozenset((leaf.span.file, leaf.span.line, leaf.span.column) for leaf in secret),
    )


def _of_overrides(sources: Sources) -> Iterator[str]:
    """Yields the secret texts of all overrides, including refused ones, which are not in the tree."""
    for file, lines in sources:
        for line in lines if is_override(file) else ():
            for start, end in _of_override(line):
                yield from literals(line[start:end].strip("\"' "))
            yield from (line[start:end].strip("\"' ") for start, end in spans(line))


def secret_leaves(tree: Node) -> Iterator[tuple[KeyPath, Node]]:
    """Yields the scalars that are secret by their key or by the option before them, and the scalars to which
    they refer."""
    open = [(path, tree.at(path)) for path, _ in secret_places(plain(tree))]
    seen = set[KeyPath]()
    while open:
        path, leaf = open.pop()
        if leaf is None or path in seen:
            continue
        seen.add(path)
        yield path, leaf
        for _, target in references(leaf.value, path) if leaf.is_interpolated else ():
            if target is not None and _is_free(target) and (node := tree.at(target)) is not None:
                open += [((*target, *below), inner) for below, inner in leaves(node) if _has_text(inner)]


def _has_text(node: Node) -> bool:
    return node.value is not BROKEN and is_text(node.value)


def _is_free(path: KeyPath) -> bool:
    """Returns whether a value at a path can be secret. A key of the field table such as `run.dir` cannot,
    even if a secret refers to it."""
    return path[0] == "vars" or path[0] not in RECIPE.keys or (len(path) > 2 and path[2] in ("args", "env"))


def _keys(node: Node) -> Iterator[tuple[str, Node]]:
    inner = list(node.items()) or [("", item) for item in (node.value if node.is_list else ())]
    for key, item in inner:
        yield key, item
        yield from _keys(item)


def _replaced(node: Node | None) -> Iterator[Node]:
    """Yields a scalar and the scalars in the values that it replaced."""
    while node is not None:
        yield from (leaf for _, leaf in leaves(node) if _has_text(leaf))
        node = node.was


def _inside(node: Node) -> Iterator[str]:
    """Yields the secrets in a text, as in `--token=abc`."""
    if isinstance(node.value, str):
        for start, stop in spans(node.value):
            yield from literals(node.value[start:stop].strip("\"'"))


def _of_environment(texts: Iterable[str], recipe: str, written: Collection[str]) -> Iterator[str]:
    """Yields the texts from the environment, without numbers and without texts that are public in the
    recipe."""
    for text in texts:
        is_number = re.fullmatch(r"[-+]?[\d.,_]{1,8}", text) is not None
        is_public = text not in written and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", recipe) is not None
        if len(text.strip()) >= MIN_ENVIRONMENT and not is_number and not is_public:
            yield text


# Redaction


def shown(node: Node, secrets: Secrets, path: KeyPath = ()) -> Node:
    """Returns the value at a path with secrets redacted. References are kept."""
    places = {found for found, _ in secret_places(plain(node), path, is_secret_at(path))}
    is_below = path in secrets.paths

    def hidden(leaf: Node, here: KeyPath) -> Node:
        text = leaf.value
        if leaf.from_environment:
            text = HIDDEN
        elif (is_below or here in secrets.paths or here in places) and _has_text(leaf):
            text = str(leaf.value)
            for piece in sorted(set(literals(text)), key=len, reverse=True):
                text = text.replace(piece, HIDDEN) if "${" in text else HIDDEN
        elif isinstance(leaf.value, str):
            text = redact(leaf.value, secrets.written_anywhere)
        return leaf if text == leaf.value else replace(leaf, value=text, written=text)

    return with_leaves(node, path, hidden)


# Reports


def redact_report(report: Report, secrets: Secrets) -> Report:
    """Returns a report without secrets. A fix whose text contains a secret is dropped."""
    lines = dict(report.sources)
    shown = {file: mask_lines(file, lines[file], secrets) for file in lines}

    def is_masked(span: Span) -> bool:
        if not 0 < span.line <= len(lines.get(span.file, ())):
            return False
        part, row = slice(span.column - 1, span.column - 1 + span.width), span.line - 1
        return lines[span.file][row][part] != shown[span.file][row][part]

    def redacted(one: Span) -> Span:
        return replace(one, label=redact(one.label, secrets.known)) if one.label else one

    found = tuple(
        replace(
            one,
            message=redact(one.message, secrets.known),
            primary=redacted(one.primary) if one.primary else None,
            seconds=tuple(map(redacted, one.seconds)),
            help=redact(one.help, secrets.known),
            fixes=() if any(is_masked(fix.span) for fix in one.fixes) else one.fixes,
        )
        for one in report.diagnostics
    )
    return replace(report, diagnostics=found, sources=tuple(shown.items()))


def mask_lines(file: str, lines: Sequence[str], secrets: Secrets = NO_SECRETS) -> tuple[str, ...]:
    """Returns the lines of a file, or the line of an override, with secrets masked by stars. Of a
    file that cannot be read completely and may contain a secret, all lines are masked."""
    places = {(line, column) for name, line, column in secrets.places if name == file}
    if not places and not secrets.written and not is_suspect("\n".join(lines)):
        return tuple(lines)
    found: list[list[tuple[int, int]]] = [list(secrets.written_anywhere.spans(line)) for line in lines]
    if is_override(file):
        return tuple(mask(line, [*found[0], *_of_override(line), *spans(line)]) for line in lines)
    if places or is_suspect("\n".join(lines)):
        text = yaml_reader.read("\n".join(lines).encode(), file)
        if text.tree is None or text.refused:
            return tuple(mask(line, [(0, len(line))]) for line in lines)
        secret = {path for path, _ in secret_leaves(text.tree)}
        for path, leaf in leaves(text.tree):
            is_secret = path in secret or (leaf.span.line, leaf.span.column) in places
            _add(leaf, is_secret and not is_reference(str(leaf.value)), lines, found)
    for line, hidden in zip(lines, found, strict=True):
        if (comment := re.search(r"(^|\s)#.*", line)) and is_suspect(comment[0]):
            hidden.append(comment.span())
    return tuple(mask(line, hidden) for line, hidden in zip(lines, found, strict=True))


def _add(leaf: Node, is_secret: bool, lines: Sequence[str], found: list[list[tuple[int, int]]]) -> None:
    """Adds the secret ranges of a scalar in each of its lines: all of a secret one, and the comment behind
    it, which may repeat it."""
    first = leaf.span.line - 1
    for number in range(first, min(first + leaf.lines, len(lines))):
        line = lines[number]
        start, end = leaf.span.column - 1, leaf.span.column - 1 + leaf.span.width
        if number > first:
            start, end = len(line) - len(line.lstrip()), len(line.rstrip())
        if is_secret:
            is_last = re.match(r"\s*(#|$)", line[end:]) is not None
            found[number].append((start, len(line.rstrip()) if is_last else end))
        else:
            found[number] += [(start + begin, start + stop) for begin, stop in spans(line[start:end])]


def _of_override(line: str) -> list[tuple[int, int]]:
    """Returns the secret range of `key=value`, an override of the command line: the whole value."""
    key, equals, value = line.partition("=")
    path = tuple(key.lstrip("+~").partition("@")[0].split("."))
    is_secret = is_secret_at(path) or (value.startswith(("{", "[")) and bool(spans(value)))
    return [(len(key) + len(equals), len(line))] if is_secret and hides(value) else []


# Warnings


def warnings(tree: Node, secrets: Secrets) -> Iterator[Diagnostic]:
    """Yields a warning for each secret in a file, because everybody who can read the file knows it and the
    run directory contains a copy."""
    for path in sorted(secrets.paths):
        leaf = tree.at(path)
        if leaf is None or str(leaf.value).lower() in PLACEHOLDERS or not any(literals(str(leaf.value))):
            continue
        message = f"`{shown_path(path)}` is a secret in plain text"
        help = "read it from the environment: ${oc.env:NAME}"
        yield Diagnostic("MC219", message, leaf.span, (), help, "warning")
