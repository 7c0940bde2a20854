"""What is not shown: text under a key that is a secret, wherever a config is printed, saved or quoted.

    is_secret("hf_token")                    by whole words: not `max_new_tokens`, `pad_token_id`, `author`
    hidden("open --api-key abc")             "open --api-key <redacted>": a message, a command line, a
                                             traceback
    starred(["token: abc"])                  ["token: ***"]: lines of a file, in which every character keeps
                                             its column
    arguments(["--token", "abc"])            ["--token", "<redacted>"]

Three things are looked at: the key beside a text; the option before an argument; and `known` texts, which
were found under a secret's key elsewhere or came from the environment. Lines are read without a parser, since
those that are quoted are often those that no parser takes: where it is not clear how far a secret goes, too
much is hidden. A reference (`${oc.env:NAME}`) is shown: it holds no secret.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

HIDDEN = "<redacted>"
STAR = "*"
LEAST = 4
"""Known texts with fewer characters are hidden at their own place only: elsewhere they would blot out half of
a message."""
BEGINNING = 16
"""So much of a long known text is enough to hide it: messages cut what they quote."""

Path = tuple[str, ...]
Stretch = tuple[int, int]
"""[start, stop) of a text."""

_STRONG = r"(?:^|_)(?:api_?key|password|passwd|passphrase|secret|credential|private_?key|access_?key)s?(?P<rest>_.*)?$"
_WEAK = r"(?P<before>^|.*_)(?:token|auth|authorization)$"
_OF_A_MODEL = (
    r"(?:^|_)(?:pad|bos|eos|unk|sep|cls|mask|stop|start|begin|end|first|last|next|new|per|special|additional|image|video|audio|vision|think"
    r"|tool|prompt|response|prefix|suffix|middle|placeholder)_$"
)
"""What stands before `token` where it is a piece of text that models know."""
_ABOUT = r"_(?:file|path|dir|folder|names?|ids?|env|var|variable|type|kind|length|len|size|ref|field|column|source|store)$"
"""What stands after a secret's word where the value says where the secret is, and not what it is."""
_SUSPECT = {
    "token": r"token(?![a-z])",
    "auth": r"auth(?:orization)?(?![a-z])",
    "passw": "passw",
    "passphrase": "passphrase",
    "secret": "secret",
    "credential": "credential",
    "api": r"api[-_]?key",
    "private": r"private[-_]?key",
    "access": r"access[-_]?key",
    "://": r"://[^\s/@:]*:[^\s/@]*@",
}
"""A word in small letters, and the pattern that begins with it: without any of these, a text has nothing to
hide."""
_KEY = r"(?<![\w.\-])[.\-]*(?P<key>\w[\w.\-]*)\\?[\"']?\s*[:=]\s*"
_OPTION = r"(?<![\w-])--?(?P<key>[A-Za-z][\w.\-]*)\\?[\"']?(?:\s*,\s*|\s+)(?!-)"
_LOGIN = r"://[^\s/@:]*:(?P<value>[^\s/@]+(?:@[^\s/@,\"']+)*)@"
"""Of several `@` the last one ends the password, as in what reads addresses."""
_BARE_OPTION = r"--?(?P<key>[A-Za-z][\w.\-]*)"
_BEFORE = r"(?:[&!][^\s,\[\]{}]*\s+)*(?:(?i:Bearer|Basic|Token)\s+)?"
_REFERENCE = r"\\?[\"']?\$\{[^{},]*\}\\?[\"']?"
_REFERS = r"\$\{\s*(?:vars)?\.+(?:[\w\-]+\.)*(?P<name>[\w\-]+)\s*\}"
_AFTER_QUOTE = r"\s*(?:[,\]}):;`]|$)"
_NOTHING = r"(?i:null|~|none|true|false|\?\?\?|\"\"|''|[\[{(]\s*[\]})]|\*+|<redacted>|)"
PLACEHOLDERS = {
    "none",
    "null",
    "empty",
    "dummy",
    "test",
    "auto",
    "default",
    "basic",
    "bearer",
    "true",
    "false",
    "no",
    "yes",
    "on",
    "off",
}
"""Written under a secret's key and none: nobody is warned of them, and they are not hidden elsewhere."""


@cache
def _made(pattern: str) -> re.Pattern[str]:
    """Compiled once it is needed, which for most recipes is never: all of them take as long as the reading of
    a small one."""
    return re.compile(pattern)


@lru_cache(4096)
def is_secret(key: str) -> bool:
    """Whether the value of a key, or what is below it, is a secret."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", key)
    name = "_".join(words).lower()
    if found := _made(_STRONG).search(name):
        return not _made(_ABOUT).search(found["rest"] or "")
    weak = _made(_WEAK).match(name)
    return weak is not None and not _made(_OF_A_MODEL).search(weak["before"])


def is_secret_at(path: Path) -> bool:
    """Whether a value at this place of a recipe is a secret: by its key, or one above it. Names that users
    give to groups, components and stages are no keys, nor are those of a call's parameters."""
    for index, key in enumerate(path):
        if path[0] in ("groups", "components", "pipeline") and index == 1:
            continue
        if path[0] == "pipeline" and index == 3 and path[2] == "in":
            return False
        if is_secret(key):
            return True
    return False


def is_suspect(text: str) -> bool:
    """Whether there may be something to hide; cheap."""
    lowered = text.lower()
    return any(word in lowered and _made(pattern).search(lowered) for word, pattern in _SUSPECT.items())


def is_text(value: Any) -> bool:
    """Whether a value under a secret's key has something to hide."""
    return not (value is None or isinstance(value, bool) or _made(_NOTHING).fullmatch(str(value)))


def hidden(text: str, known: Iterable[str] = ()) -> str:
    """A text for people, without what is secret in it."""
    return _without(text, [*stretches(text), *_of_known(text, known)], lambda length: HIDDEN)


def traced(text: str, known: Collection[str] = ()) -> str:
    """A traceback: its source code, which is indented, has keys and no values, and stays readable."""
    lines = text.splitlines(keepends=True)
    return "".join(
        line if line.startswith("    ") and not any(one in line for one in known) else hidden(line, known)
        for line in lines
    )


def arguments(argv: Sequence[str], known: Iterable[str] = ()) -> tuple[str, ...]:
    """A command line: what follows `--token`, or stands behind it, is hidden."""
    known = tuple(known)
    shown: list[str] = []
    for index, argument in enumerate(argv):
        if index and follows_option(argv[index - 1]) and is_text(argument) and not argument.startswith("-"):
            shown.append(argument if _made(_REFERENCE).fullmatch(argument) else HIDDEN)
        else:
            shown.append(argument_shown(argument, known))
    return tuple(shown)


def command_line(argv: Sequence[str], known: Iterable[str] = ()) -> str:
    """A command line as a shell would take it, but for what is hidden."""
    return shlex.join(arguments(argv, known)).replace(shlex.quote(HIDDEN), HIDDEN)


def argument_shown(argument: str, known: Iterable[str] = ()) -> str:
    """One argument: after `--token=` everything is the value."""
    option, sign, value = argument.partition("=")
    if (
        sign
        and is_text(value)
        and is_secret_at(tuple(option.lstrip("-+~").split(".")))
        and not _made(_REFERENCE).fullmatch(value)
    ):
        return f"{option}={HIDDEN}"
    return hidden(argument, known)


def follows_option(argument: object) -> bool:
    """Whether the argument after this one is a secret."""
    found = _made(_BARE_OPTION).fullmatch(argument) if isinstance(argument, str) else None
    return found is not None and is_secret(found["key"])


def starred(lines: Sequence[str], known: Iterable[str] = ()) -> tuple[str, ...]:
    """The lines of a file or an override, with stars of the same width over what is secret."""
    known = tuple(known)
    if not known and not is_suspect("\n".join(lines)):
        return tuple(lines)
    stretches = _Lines(_referred(lines)).read(lines)
    return tuple(
        _starred(line, [*found, *_of_known(line, known)])
        for line, found in zip(lines, stretches, strict=True)
    )


def secrets_in(lines: Sequence[str]) -> Iterator[str]:
    """The texts that `starred` would cover."""
    for line, found in zip(lines, _Lines(_referred(lines)).read(lines), strict=True):
        for start, stop in _joined(found):
            yield from (piece.strip("\"' ") for piece in literals(line[start:stop]))


def _referred(lines: Sequence[str]) -> frozenset[str]:
    """The names of the values that secrets refer to, by their last key: with `token: ${vars.mine}`, `mine`
    holds a secret."""
    said: list[tuple[str, str]] = []
    for line in lines:
        if "${" in line and len(line) <= LONG:
            keys = [(found.end(), found["key"].rpartition(".")[2]) for found in _made(_KEY).finditer(line)]
            for found in _made(_REFERS).finditer(line):
                said += [(key, found["name"]) for end, key in keys if end <= found.start()][-1:]
    names: set[str] = set()
    while more := {name for key, name in said if is_secret(key) or key in names} - names:
        names |= more
    return frozenset(names)


def is_telling(text: str) -> bool:
    """Whether a secret's text may be hidden wherever it stands, without blotting out words of everybody's."""
    return len(text) >= LEAST and text.lower() not in PLACEHOLDERS


def _starred(line: str, found: Collection[Stretch]) -> str:
    return _without(line, found, lambda length: STAR * length) if found else line


def _without(text: str, found: Iterable[Stretch], instead: Callable[[int], str]) -> str:
    pieces, position = [], 0
    for start, stop in _joined(found):
        pieces += [text[position:start], instead(stop - start)]
        position = stop
    return "".join([*pieces, text[position:]])


def _joined(found: Iterable[Stretch]) -> list[Stretch]:
    joined: list[Stretch] = []
    for start, stop in sorted(found):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _of_known(text: str, known: Iterable[str]) -> Iterator[Stretch]:
    """Where known texts stand, or as much of their beginning as is left of them."""
    for one in known:
        if len(one) < LEAST:
            continue
        begins, position = one[:BEGINNING], 0
        while (start := text.find(begins, position)) >= 0:
            stop = start + len(begins)
            while stop < len(text) and stop - start < len(one) and text[stop] == one[stop - start]:
                stop += 1
            position = stop
            whole_word = len(one) >= 2 * LEAST or not (
                text[start - 1 : start].isalnum() or text[stop : stop + 1].isalnum()
            )
            if whole_word:
                yield start, stop


# One text


def stretches(text: str, in_flow: bool = False, names: Collection[str] = ()) -> list[Stretch]:
    """What is secret in a text by the keys and options that stand in it; `in_flow`: it is YAML between
    brackets. `names` are more keys."""
    if not names and not is_suspect(text):
        return []
    found = [match.span("value") for match in _made(_LOGIN).finditer(text) if _hides(match["value"])]
    for pattern, of_option in ((_KEY, False), (_OPTION, True)):
        position = 0
        while match := _made(pattern).search(text, position):
            position = max(match.end(), match.start() + 1)
            path = tuple(match["key"].split("."))
            if not (is_secret_at(path) or path[-1] in names):
                position = match.end("key")
                continue
            stop = _end(text, match.end(), in_flow and not (of_option and "," not in match[0]))
            if stop > match.end() and _hides(text[match.end() : stop]):
                found.append((match.end(), stop))
                position = stop
    return found


def logins(text: str) -> Iterator[str]:
    """The passwords in the addresses of a text: `abc` in `redis://me:abc@host`."""
    if "://" in text and "@" in text:
        yield from (match["value"] for match in _made(_LOGIN).finditer(text) if _hides(match["value"]))


def _hides(value: str) -> bool:
    """Whether there is something to hide in what stands under a secret's key."""
    bare = value.strip()
    return not (_made(_NOTHING).fullmatch(bare) or _made(_REFERENCE).fullmatch(bare))


def _end(text: str, start: int, in_flow: bool) -> int:
    """Where the value that begins here ends; in doubt too late."""
    if match := _made(_BEFORE).match(text, start):  # an anchor, a tag, the kind of an authorization
        start = match.end()
    first = text[start : start + 1]
    if first in ("'", '"'):
        return _quoted_end(text, start)
    if first in ("{", "["):
        return _bracket_end(text, start)
    position, ends = start, ",]}\n" if in_flow else " \t\n,;)]}`"
    while position < len(text):
        if text.startswith("${", position):
            position = _bracket_end(text, position + 1)
            continue
        if text[position] in ends:
            break
        if text[position] in "'\"" and _made(_AFTER_QUOTE).match(text, position + 1):
            break
        position += 1
    return position


def _quoted_end(text: str, start: int) -> int:
    quote, position = text[start], start + 1
    while position < len(text):
        if text.startswith("\\" if quote == '"' else "''", position):  # what escapes the next character
            position += 1
        elif text[position] == quote:
            return position + 1
        position += 1
    return len(text)


def _is_open(text: str) -> bool:
    """Whether a value begins with a quote or a bracket that it does not close."""
    first = text[:1]
    return (first in ("'", '"') and not (len(text) > 1 and text[-1] == first)) or (
        first in ("{", "[") and _brackets(text) > 0
    )


def _bracket_end(text: str, start: int) -> int:
    depth = 0
    for position, character in _bare(text, start):
        depth += (character in "{[") - (character in "}]")
        if depth == 0:
            return position + 1
    return len(text)


def _bare(text: str, start: int = 0) -> Iterator[tuple[int, str]]:
    """The characters that are in no quotes, and at the end a quote that is not closed; one opens where a
    value may begin."""
    position, before = start, ","
    while position < len(text):
        character = text[position]
        if character in "'\"" and before in "[{,:(-=":
            stop = _quoted_end(text, position)
            if stop == len(text) and _is_open(text[position:]):
                yield stop, character
            before, position = character, stop
            continue
        yield position, character
        before = before if character.isspace() else character
        position += 1


# Lines of YAML

_BLOCK_KEY = r"\s*(?:-\s+)*(?:\?\s+)?(?P<quote>[\"']?)(?P<key>[^\s\"'#\[\]{},&*!|>%@`-][^\"'#\[\]{}]*?)(?P=quote)\s*:(?=\s|$)"
_OVERRIDE = r"\s*[+~]*(?P<key>[\w.@/\-$:]+)\s*=\s*"
_ITEM = r"\s*(?:-\s+)+"
LONG = 4_000
"""Of a line with so many characters, all from the first suspicious word on is hidden: nobody reads it, and it
takes no time."""


class _Lines:
    """Reads line by line: the keys that are open, brackets that are, and the secret that goes on."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self.names = names
        """Keys of secrets beside those that say so."""
        self.open: list[tuple[int, str]] = []
        """(column, key) of the block keys above."""
        self.depth = 0
        """Of brackets."""
        self.hiding: int | None = None
        """The column of a secret's key: what is indented more belongs to it."""
        self.items = False
        """So do list items in its own column, since nothing stood behind it."""
        self.next = False
        """The next value, on a line of its own, is a secret: an option's argument, or one in brackets."""
        self.goes_on = False
        """A secret in this line has a quote or a bracket that it does not close."""
        self.quote = ""
        """One that is open, of what is no secret."""
        self.begins = 0
        """The column of the line with which quotes and brackets that are open began."""

    def read(self, lines: Sequence[str]) -> list[list[Stretch]]:
        return [self.whole(line) for line in lines]

    def whole(self, line: str) -> list[Stretch]:
        self.goes_on, quote, self.quote = False, self.quote, ""
        if not quote and self.depth == 0:
            self.begins = len(line) - len(line.lstrip())
        found = self.quoted(line, quote) if quote else self.line(line)
        if self.goes_on:
            self.hiding, self.items, self.quote = self.begins, False, ""
        return found

    def quoted(self, line: str, quote: str) -> list[Stretch]:
        """A line that begins within a text that is no secret."""
        stop = _quoted_end(quote + line, 0) - 1
        if stop == len(line) and _is_open(quote + line):
            self.quote = quote
            return stretches(line, names=self.names)
        after = self.values(line[stop:], self.depth > 0)
        return [
            *stretches(line[:stop], names=self.names),
            *((stop + begin, stop + end) for begin, end in after),
        ]

    def line(self, line: str) -> list[Stretch]:
        if len(line) > LONG:
            found = [
                match.start()
                for pattern in _SUSPECT.values()
                if (match := _made(pattern).search(line.lower()))
            ]
            return [(min(found), len(line))] if found else []
        bare = line.strip()
        column = len(line) - len(line.lstrip())
        if self.hiding is not None:
            if (
                not bare
                or column > self.hiding
                or (self.items and column == self.hiding and bare.startswith("-"))
            ):
                return self.below(line)
            self.hiding, self.depth = None, 0
        if match := _made(_OVERRIDE).match(line) if self.depth == 0 else None:
            if self.is_secret(tuple(match["key"].partition("@")[0].split("."))):
                return self.to_end(line, match.end())
            return [
                (match.end() + start, match.end() + stop)
                for start, stop in self.values(line[match.end() :], in_flow=True)
            ]
        if self.depth == 0 and (match := _made(_BLOCK_KEY).match(line)):
            return self.key(line, match)
        return self.values(line, in_flow=self.depth > 0)

    def key(self, line: str, match: re.Match[str]) -> list[Stretch]:
        column = match.start("key") - len(match["quote"])
        while self.open and self.open[-1][0] >= column:
            self.open.pop()
        self.open.append((column, match["key"]))
        start = match.end()
        if not self.is_secret(tuple(key for _, key in self.open)):
            return [(start + begin, start + stop) for begin, stop in self.values(line[start:], in_flow=False)]
        value = re.sub(r"(^|\s)#.*", "", line[start:]).strip()
        if not _made(_REFERENCE).fullmatch(value):
            self.hiding, self.items = column, not value
        return self.to_end(line, start)

    def is_secret(self, path: Path) -> bool:
        return is_secret_at(path) or path[-1] in self.names

    def below(self, line: str) -> list[Stretch]:
        """A line of a secret that began above."""
        match = _made(_BLOCK_KEY).match(line)
        start = match.end() if match else item.end() if (item := _made(_ITEM).match(line)) else 0
        return self.to_end(line, start)

    def to_end(self, line: str, start: int) -> list[Stretch]:
        start += len(line[start:]) - len(line[start:].lstrip())
        stop = len(line.rstrip())
        return [(start, stop)] if stop > start and _hides(line[start:stop]) else []

    def values(self, text: str, in_flow: bool) -> list[Stretch]:
        """What is secret in the rest of a line that is under no secret's key."""
        found = self.argument(text, in_flow) if self.next else []
        inside = in_flow or self.depth > 0 or "{" in text or "[" in text
        found += stretches(text, inside, self.names)
        self.goes_on = any(stop == len(text) and _is_open(text[start:stop]) for start, stop in found)
        self.depth = max(0, self.depth + _brackets(text))
        self.quote = next((character for position, character in _bare(text) if position == len(text)), "")
        last = text.strip().rstrip(",")
        item = _made(_ITEM).sub("", f" {last}", count=1) if not inside else re.split(r"[,\[{]", last)[-1]
        option = (
            item.strip().strip("\"'").removesuffix(":").rstrip("\"'") if inside else item.strip().strip("\"'")
        )
        self.next = follows_option(option) or (inside and last.endswith(":") and self.is_secret(("", option)))
        return found

    def argument(self, text: str, in_flow: bool) -> list[Stretch]:
        start = item.end() if (item := _made(_ITEM).match(text)) else len(text) - len(text.lstrip())
        stop = _end(text, start, True) if in_flow else len(text.rstrip())
        value = text[start:stop]
        return [(start, stop)] if value and not value.startswith("-") and _hides(value) else []


def _brackets(text: str) -> int:
    """How many more are opened than closed; those in quotes and comments do not count."""
    depth = 0
    for position, character in _bare(text):
        if character == "#" and (position == 0 or text[position - 1].isspace()):
            break
        depth += (character in "{[") - (character in "}]")
    return depth


# Data


def secret_places(value: Any, path: Path = (), under: bool = False) -> Iterator[tuple[Path, Any]]:
    """(path, value) of every scalar in plain data that is a secret by its key or by the option before it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            here = (*path, str(key))
            yield from secret_places(item, here, under or is_secret_at(here))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            option = (
                index > 0
                and follows_option(value[index - 1])
                and not (isinstance(item, str) and item.startswith("-"))
            )
            yield from secret_places(item, (*path, str(index)), under or option)
    elif under and is_text(value):
        yield path, value


def literals(text: str) -> Iterator[str]:
    """What is written out in a secret's text: all but its references, and of these the defaults."""
    rest, position = [], 0
    while (start := text.find("${", position)) >= 0:
        stop = _bracket_end(text, start + 1)
        rest.append(text[position:start])
        resolver, comma, default = text[start + 2 : stop].removesuffix("}").partition(",")
        if comma and resolver.strip().startswith("oc."):
            rest.append(default.strip().strip("'\""))
        position = stop
    yield from (piece for piece in (*rest, text[position:]) if is_text(piece.strip()))


def holds_literal(value: Any) -> bool:
    """Whether plain data have a secret written out in them, so that a file of them is its owner's alone."""
    return any(any(literals(str(item))) for _, item in secret_places(value)) or _holds_embedded(value)


def _holds_embedded(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_embedded, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_embedded, value))
    return isinstance(value, str) and bool(stretches(value))
