"""Which values of a composed recipe are secret, and a recipe, a report or a text without them.

A value is secret under a secret's key (`redaction.py`), and so is what such a value refers to: with `token:
${vars.mine}`, the text of `vars.mine` is one. What comes from the environment is never shown. Nothing of this
is looked for where nothing can be found, which is so for most recipes: `validate` pays one search of the
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshctl.diagnostics import Diagnostic, Report, Span
from meshctl.recipe import fields
from meshctl.recipe.compose.interpolation import references
from meshctl.recipe.compose.yaml_tree import BROKEN, Node, Path, leaves
from meshctl.recipe.fields import RECIPE
from meshctl.text.redaction import (
    HIDDEN,
    PLACEHOLDERS,
    follows_option,
    hidden,
    is_secret_at,
    is_suspect,
    is_telling,
    is_text,
    literals,
    logins,
    starred,
    stretches,
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
PIECE = 6
"""So long a part of a text of the environment is hidden where it stands alone."""
BLANK = r"\$\w+|\{\w*\}|<[^<>]*>"
"""What a program or a person puts a password in the place of."""
ASKED = r"\boc\.env:\s*([^\s,{}]+)"


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

    @property
    def known(self) -> tuple[str, ...]:
        return (*self.written, *self.environment)


class Heard(Mapping[str, str]):
    """An environment that remembers what it was asked for."""

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


def secrets_of(tree: Node, sources: Iterable[tuple[str, Sequence[str]]], heard: Heard) -> Secrets:
    """What is secret in a tree with its references as written, in the texts it was read from, and in what it
    took of the environment."""
    text = "\n".join(line for _, lines in sources for line in lines)
    for name in re.findall(ASKED, text) if "oc.env" in text else ():
        heard.get(name)
    if not heard.texts and not is_suspect(text):
        return Secrets()
    places = dict(secret_leaves(tree))
    names = {key for key, _ in _keys(tree)}
    written = {piece for node in places.values() for piece in _written(node)}
    written |= {piece for _, leaf in leaves(tree) for piece in _inside(leaf)}
    kept = tuple(
        sorted(
            {piece for piece in written if is_telling(piece) and piece not in names}, key=len, reverse=True
        )
    )
    addresses = tuple(path for path, leaf in leaves(tree) if path not in places and any(_passwords(leaf)))
    return Secrets(
        frozenset(places), kept, _of_environment(heard.texts, text, kept) if heard.texts else (), addresses
    )


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


def _written(node: Node | None) -> Iterator[str]:
    """The secret texts of a scalar and of all that it replaced."""
    while node is not None:
        for _, leaf in leaves(node):
            yield from literals(str(leaf.value)) if _has_text(leaf) else ()
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
    """A report that quotes none: messages without, lines with stars in their place. A fix that would show one
    is left out."""
    sources = tuple((file, starred(lines, secrets.written)) for file, lines in report.sources)
    covered = {
        file: shown
        for (file, lines), (_, shown) in zip(report.sources, sources, strict=True)
        if shown != tuple(lines)
    }
    if (
        not covered
        and not secrets.known
        and not any(is_suspect(f"{one.message} {one.help}") for one in report.diagnostics)
    ):
        return report
    found = tuple(_without(one, covered, dict(report.sources), secrets.known) for one in report.diagnostics)
    return replace(report, diagnostics=found, sources=sources)


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
