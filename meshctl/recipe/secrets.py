"""Finds the secret values of a composed recipe, and redacts them.

A value is secret if its key is the name of a secret (`text/redaction.py`), or if a secret value refers to it:
with `token: ${vars.mine}`, the text of `vars.mine` is secret. Texts from the environment are never shown. A
search of the whole text comes first, so that most recipes, which contain no secret, cost no more than that.
`masking.py` removes secrets from reports.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic
from meshctl.recipe import fields
from meshctl.recipe.compose.overrides import is_override
from meshctl.recipe.compose.references import references
from meshctl.recipe.compose.yaml_tree import BROKEN, KeyPath, Node, leaves, plain, with_leaves
from meshctl.recipe.fields import RECIPE
from meshctl.text.redaction import (
    HIDDEN,
    PLACEHOLDERS,
    Known,
    follows_option,
    is_distinctive,
    is_secret_at,
    is_suspect,
    is_text,
    literals,
    redact,
    secret_places,
    stretches,
    stretches_of_override,
    url_passwords,
)
from meshctl.topology.cluster import DEVICE_ALIASES, DEVICE_TYPES
from meshctl.topology.sizes import SIZES

OWN_WORDS = {
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
"""Words of meshctl itself, which are not secret and which messages contain."""
Sources = Sequence[tuple[str, Sequence[str]]]
"""(file name, lines) of each file that was read. An override counts as a file of one line."""
MIN_PART = 6
"""Minimum number of characters of a part of a text from the environment that is redacted by itself."""
BLANK = r"\$\w+|\{\w*\}|<[^<>]*>"
"""A placeholder for a password, to be filled in by a program or a person."""
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
    addresses: tuple[KeyPath, ...] = ()
    """The paths of the scalars with a password in an address: `redis://me:abc@host`."""
    places: frozenset[tuple[str, int, int]] = frozenset()
    """(file, line, column) of the scalars at `paths` and of those that they replaced."""

    @property
    def known(self) -> tuple[str, ...]:
        return (*self.written, *self.environment)

    @cached_property
    def written_anywhere(self) -> Known:
        """The texts of `written`, prepared for a search in other texts."""
        return Known(self.written)


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
        environment=_of_environment(environ.texts, text, written) if environ.texts else (),
        addresses=tuple(path for path, leaf in leaves(tree) if path not in by_path and any(_passwords(leaf))),
        places=frozenset((leaf.span.file, leaf.span.line, leaf.span.column) for leaf in secret),
    )


def _of_overrides(sources: Sources) -> Iterator[str]:
    """Yields the secret texts of all overrides, including refused ones, which are not in the tree."""
    for file, lines in sources:
        for line in lines if is_override(file) else ():
            for start, end in stretches_of_override(line):
                yield from literals(line[start:end].strip("\"' "))


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
        for start, stop in stretches(node.value):
            yield from literals(node.value[start:stop].strip("\"'"))


def _passwords(node: Node) -> Iterator[str]:
    """Yields the literal parts of passwords in addresses, without placeholders."""
    for password in url_passwords(node.value) if isinstance(node.value, str) else ():
        for piece in literals(password):
            if piece.lower() not in PLACEHOLDERS and not re.fullmatch(BLANK, piece):
                yield piece


def _of_environment(texts: Iterable[str], recipe: str, written: Collection[str]) -> tuple[str, ...]:
    """Returns the texts from the environment and their parts, without numbers and without texts that are
    public in the recipe."""
    whole = [text for text in texts if text.strip()]
    parts = [part for text in whole for part in re.split(r"[\s.,:;/@=]+", text) if len(part) >= MIN_PART]
    candidates = {text for text in (*whole, *parts) if is_distinctive(text) and text not in OWN_WORDS}

    def is_public(text: str) -> bool:
        is_number = re.fullmatch(r"[-+]?[\d.,_]{1,8}", text) is not None
        is_in_recipe = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", recipe) is not None
        return is_number or (is_in_recipe and text not in written)

    return tuple(sorted((text for text in candidates if not is_public(text)), key=len, reverse=True))


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
            text = _without_literals(str(leaf.value))
        elif isinstance(leaf.value, str):
            text = redact(leaf.value, secrets.written_anywhere)
        return leaf if text == leaf.value else replace(leaf, value=text, written=text)

    return with_leaves(node, path, hidden)


def _without_literals(text: str) -> str:
    """Returns only the references in the text of a secret."""
    for piece in sorted(set(literals(text)), key=len, reverse=True):
        text = text.replace(piece, HIDDEN) if "${" in text else HIDDEN
    return text


# Warnings


def warnings(tree: Node, secrets: Secrets) -> Iterator[Diagnostic]:
    """Yields a warning for each secret in a file, because everybody who can read the file knows it and the
    run directory contains a copy."""
    reported: set[KeyPath] = set()
    for path in sorted(secrets.paths):
        leaf, name = tree.at(path), _name(tree, path)
        if leaf is None or name in reported or str(leaf.value).lower() in PLACEHOLDERS:
            continue
        if any(literals(str(leaf.value))):
            reported.add(name)
            help = f"read it from the environment: ${{oc.env:{_variable(name)}}}"
            message = f"`{name[-1]}` is a secret in plain text"
            yield Diagnostic("MC219", message, leaf.span, (), help, "warning")
    for path in secrets.addresses:
        leaf, name = tree.at(path), _name(tree, path)
        if leaf is not None:
            help = f"read it from the environment: SCHEME://USER:${{oc.env:{_variable(name)}_PASSWORD}}@HOST"
            message = f"`{name[-1]}` is an address with a password in plain text"
            yield Diagnostic("MC219", message, leaf.span, (), help, "warning")


def _variable(name: KeyPath) -> str:
    return re.sub(r"\W+", "_", name[-1]).strip("_").upper() or "SECRET"


def _name(tree: Node, path: KeyPath) -> KeyPath:
    """Returns the key path that names a secret: that of its key, or of the option before it. All items of a
    list have the same name."""
    parent = tree.at(path[:-1])
    if parent is None or not parent.is_list:
        return path
    before = parent.value[int(path[-1]) - 1].value if int(path[-1]) else None
    return (*path, str(before)) if follows_option(before) else _name(tree, path[:-1])
