"""Redaction: secrets are hidden wherever a config is printed, saved or quoted.

    is_secret("hf_token")                  True: keys are compared by whole words, so `max_new_tokens`,
                                           `pad_token_id` and `author` are no keys of secrets
    redact("open --api-key abc")           "open --api-key <redacted>": for a message, a command line or a
                                           traceback
    mask("token: abc", [(7, 10)])          "token: ***": for a line of a file, in which every character keeps
                                           its column
    redact_arguments(["--token", "abc"])   ["--token", "<redacted>"]

A text is a secret because of the key before it, because of the option before it, because of its shape, such
as that of a GitHub token, or because it is `known`: the same text is a secret elsewhere, or came from the
environment. If the end of a secret is not certain, too much is hidden. A reference
(`${oc.env:NAME}`) is shown, because it contains no secret. `recipe/secrets.py` finds the secrets in the files
of a recipe.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

HIDDEN = "<redacted>"
STAR = "*"
MAX_LINE = 4_000
"""Maximum length in characters of a line in which `referred_names` searches references."""
MIN_KNOWN = 4
"""Minimum length in characters of a known text that is hidden wherever it occurs. A shorter secret is hidden
under its key only, because it may also be a part of ordinary words."""
MIN_PREFIX = 16
"""Number of first characters by which a longer known text is recognised, because messages cut long quotes."""

MAX_ALIKE = 8
"""Maximum number of known texts with the same first characters that are compared with a text. If there are
more, the whole word is hidden."""

Path = tuple[str, ...]
Stretch = tuple[int, int]
"""[start, end) of a text."""

_STRONG = (
    r"(?:^|_)(?:api_?key|password|passwd|passphrase|secret|credential|private_?key|access_?key)s?"
    r"(?P<rest>_.*)?$"
)
_WEAK = r"(?P<before>^|.*_)(?:token|auth|authorization)$"
_OF_A_MODEL = (
    r"(?:^|_)(?:pad|bos|eos|unk|sep|cls|mask|stop|start|begin|end|first|last|next|new|per|special|additional"
    r"|image|video|audio|vision|think|tool|prompt|response|prefix|suffix|middle|placeholder)_$"
)
"""The words before `token` in keys that mean a token of a language model, such as `pad_token`."""
_ABOUT = (
    r"_(?:file|path|dir|folder|names?|ids?|env|var|variable|type|kind|length|len|size|ref|field|column"
    r"|source|store)$"
)
"""The last words of keys that contain a word of `_STRONG` but name no secret. The value of such a key only
describes the secret, as in `password_file`."""
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
"""A word in lower case -> the pattern to search in a text that contains the word. A text without a match has
no secret under a key."""
_SHAPES = (
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9]{20,}|sk-(?:ant|proj|svcacct|admin|or)-[\w-]{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|xox[a-z]-[\w-]{10,}|AIza[\w-]{35}|nvapi-[\w-]{20,}|npm_[A-Za-z0-9]{36}|pypi-[\w-]{40,}"
    r"|wandb_v\d+_[\w-]{20,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}(?:\.[\w-]*)?|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*))"
)
"""Tokens of Hugging Face, OpenAI, Anthropic, GitHub, GitLab, AWS, Slack, Google, NVIDIA, npm, PyPI and W&B,
web tokens and private keys: they are secrets under any key."""
_SHAPE_WORDS = (
    *("hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "AKIA", "ASIA", "xox"),
    *("AIza", "nvapi-", "npm_", "pypi-", "wandb_v", "eyJ", "-----BEGIN"),
)
"""Each match of `_SHAPES` contains one of these, which are faster to find."""
_KEY = r"(?<![\w.\-])[.\-]*(?P<key>\w[\w.\-]*)\\?[\"']?\s*[:=]\s*"
_OPTION = r"(?<![\w-])--?(?P<key>[A-Za-z][\w.\-]*)\\?[\"']?(?:\s*,\s*|\s+)(?!-)"
_LOGIN = r"://[^\s/@:]*:(?P<value>[^\s/@]+(?:@[^\s/@,\"']+)*)@"
"""The login in a URL. Of several `@` the last one ends the password, as for URL parsers."""
_BARE_OPTION = r"--?(?P<key>[A-Za-z][\w.\-]*)"
_BEFORE = r"(?:[&!][^\s,\[\]{}]*\s+)*(?:(?i:Bearer|Basic|Token)\s+)?"
_REFERENCE = r"\\?[\"']?\$\{[^{},]*\}\\?[\"']?"
_REFERS = r"\$\{\s*(?:vars)?\.+(?:[\w\-]+\.)*(?P<name>[\w\-]+)\s*\}"
_NESTED = r"\$\{(?:[^{}]|\{[^{}]*\})*\}?"
"""A reference, which may contain another one, or the beginning of a reference."""
_QUOTED = r"""(?s:"(?:\\.|[^"\\])*"|'(?:''|[^'])*')"""
_FLAT = rf"(?:{_QUOTED}|[^{{}}\[\]\"'])*+"
_QUOTED_OR_BRACKETS = rf"(?s:{_QUOTED}|[{{\[]{_FLAT}(?:[{{\[]{_FLAT}[}}\]]{_FLAT})*+[}}\]]|[\"'{{\[].*)"
"""A quoted text, or brackets that contain at most one more level of brackets. If it is not closed, or has
more levels, it extends to the end of the text."""
_AFTER_QUOTE = r"\s*(?:[,\]}):;`]|$)"
_BLOCK_KEY = r"\s*(?:-\s+)*[\"']?[\w.\-]+[\"']?\s*:(?=\s|$)"
_NOTHING = r"(?i:null|~|none|true|false|\?\?\?|\"\"|''|[\[{(]\s*[\]})]|\*+|<redacted>|)"
PLACEHOLDERS = {
    *("none", "null", "empty", "dummy", "test", "auto", "default", "basic", "bearer"),
    *("true", "false", "no", "yes", "on", "off"),
}
"""Values under a secret's key that are no secrets. They cause no warning, and are not hidden elsewhere."""


@cache
def _made(pattern: str) -> re.Pattern[str]:
    """Returns the compiled pattern. Patterns are compiled at their first use, because compiling all of them
    takes as long as reading a small recipe, and most recipes need none."""
    return re.compile(pattern)


@lru_cache(4096)
def is_secret(key: str) -> bool:
    """Returns whether a key names a secret, so that its value and all values below it are secret."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", key)
    name = "_".join(words).lower()
    if found := _made(_STRONG).search(name):
        return not _made(_ABOUT).search(found["rest"] or "")
    weak = _made(_WEAK).match(name)
    return weak is not None and not _made(_OF_A_MODEL).search(weak["before"])


def is_secret_at(path: Path) -> bool:
    """Returns whether a value of a recipe is a secret because of its key or a key above it. The names of
    groups, components, stages and parameters, which users choose, do not count as keys."""
    for index, key in enumerate(path):
        if path[0] in ("groups", "components", "pipeline") and index == 1:
            continue
        if path[0] == "pipeline" and index == 3 and path[2] == "in":
            return False
        if is_secret(key):
            return True
    return False


def is_suspect(text: str) -> bool:
    """Returns whether a text may contain a secret, by a quick search; `stretches` is exact."""
    if any(shapes(text)):
        return True
    lowered = text.lower()
    return any(word in lowered and _made(pattern).search(lowered) for word, pattern in _SUSPECT.items())


def shapes(text: str) -> Iterator[Stretch]:
    """Yields the ranges of a text that are secrets because of their shape."""
    if any(word in text for word in _SHAPE_WORDS):
        yield from (found.span() for found in _made(_SHAPES).finditer(text))


def is_token(value: Any) -> bool:
    """Returns whether a value consists of nothing but a secret with a known shape, such as a GitHub token."""
    return isinstance(value, str) and any(span == (0, len(value)) for span in shapes(value))


def is_text(value: Any) -> bool:
    """Returns whether a value under a secret's key must be hidden: it is not None, boolean, empty, or hidden
    already."""
    return not (value is None or isinstance(value, bool) or _made(_NOTHING).fullmatch(str(value)))


def is_reference(text: str) -> bool:
    """Returns whether a text consists of nothing but one reference."""
    return _made(_REFERENCE).fullmatch(text) is not None


def redact(text: str, known: Iterable[str] | Known = ()) -> str:
    """Returns a text with `<redacted>` in place of secrets. `known` are texts that are hidden wherever they
    occur."""
    known = known if isinstance(known, Known) else Known(known)
    return _without(text, [*stretches(text), *known.stretches(text)], lambda length: HIDDEN)


def redact_traceback(text: str, known: Collection[str] = ()) -> str:
    """Returns a traceback without secrets. Lines of source code, which are indented, contain names rather
    than values, so they are redacted only if they contain a `known` text."""
    lines, texts = text.splitlines(keepends=True), Known(known)
    return "".join(
        line if line.startswith("    ") and not any(one in line for one in known) else redact(line, texts)
        for line in lines
    )


def redact_arguments(argv: Sequence[str], known: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the arguments of a command without secrets: the value after `--token`, or after `--token=`, is
    hidden."""
    known = tuple(known)
    shown: list[str] = []
    for index, argument in enumerate(argv):
        if index and follows_option(argv[index - 1]) and is_text(argument) and not argument.startswith("-"):
            shown.append(argument if is_reference(argument) else HIDDEN)
        else:
            shown.append(redact_argument(argument, known))
    return tuple(shown)


def command_line(argv: Sequence[str], known: Iterable[str] = ()) -> str:
    """Returns a command line without secrets, quoted for a shell."""
    return shlex.join(redact_arguments(argv, known)).replace(shlex.quote(HIDDEN), HIDDEN)


def redact_argument(argument: str, known: Iterable[str] = ()) -> str:
    """Returns one argument without secrets; all that follows `--token=` is its value."""
    option, sign, value = argument.partition("=")
    if (
        sign
        and is_text(value)
        and is_secret_at(tuple(option.lstrip("-+~").split(".")))
        and not is_reference(value)
    ):
        return f"{option}={HIDDEN}"
    return redact(argument, known)


def follows_option(argument: object) -> bool:
    """Returns whether an argument is an option such as `--token`, so that the next argument is a secret."""
    found = _made(_BARE_OPTION).fullmatch(argument) if isinstance(argument, str) else None
    return found is not None and is_secret(found["key"])


def referred_names(lines: Iterable[str]) -> frozenset[str]:
    """Returns the keys of the values to which secrets refer, directly or through others: `mine` for the line
    `token: ${vars.mine}`."""
    references: list[tuple[str, str]] = []
    for line in lines:
        if "${" in line and len(line) <= MAX_LINE:
            keys = [(found.end(), found["key"].rpartition(".")[2]) for found in _made(_KEY).finditer(line)]
            for found in _made(_REFERS).finditer(line):
                references += [(key, found["name"]) for end, key in keys if end <= found.start()][-1:]
    names: set[str] = set()
    while more := {name for key, name in references if is_secret(key) or key in names} - names:
        names |= more
    return frozenset(names)


def mask_unreadable(lines: Sequence[str]) -> tuple[str, ...]:
    """Returns the lines of a file with a syntax error. A line that may contain a secret is masked as a whole.

    The lines that follow it are masked too, up to the next block key that is outside of brackets and quotes
    and not indented more than the line.
    """
    names = referred_names(lines)
    shown: list[str] = []
    column: int | None = None
    """Indentation of the line that may hold a secret, as long as its value may go on."""
    depth, quotes = 0, 0
    for line in lines:
        indent = len(line) - len(line.lstrip())
        is_outside = depth <= 0 and quotes % 2 == 0
        is_next_key = is_outside and _made(_BLOCK_KEY).match(line) is not None
        goes_on = column is not None and not (is_next_key and indent <= column)
        depth += line.count("{") + line.count("[") - line.count("}") - line.count("]")
        if goes_on or is_suspect(line) or stretches(line, names=names):
            column = column if goes_on else indent
            quotes = (quotes if goes_on else 0) + line.count("'") + line.count('"')
            shown.append(mask(line, [(indent, len(line.rstrip()))]))
        else:
            column, quotes = None, 0
            shown.append(line)
    return tuple(shown)


def is_distinctive(text: str) -> bool:
    """Returns whether a secret's text is hidden wherever it occurs: it is long enough, and no common word."""
    return len(text) >= MIN_KNOWN and text.lower() not in PLACEHOLDERS


def mask(line: str, found: Iterable[Stretch]) -> str:
    """Returns a line with stars of the same width in place of some of its text."""
    return _without(line, found, lambda length: STAR * length)


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


class Known:
    """Texts that are secrets wherever they occur. A text is recognised by its first `MIN_PREFIX` characters,
    because messages cut long quotes."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.by_beginning: dict[str, list[str]] = {}
        for text in texts:
            if len(text) >= MIN_KNOWN:
                self.by_beginning.setdefault(text[:MIN_PREFIX], []).append(text)
        self.sorted = sorted(self.by_beginning)
        self.starts = {beginning[:MIN_KNOWN] for beginning in self.sorted}
        self.lengths = sorted({len(beginning) for beginning in self.by_beginning}, reverse=True)

    def __bool__(self) -> bool:
        return bool(self.by_beginning)

    def stretches(self, text: str) -> Iterator[Stretch]:
        """Yields the ranges of a text that are known texts, or the beginnings of known texts that were
        cut."""
        position = 0
        while self and position <= len(text) - MIN_KNOWN:
            is_start = text[position : position + MIN_KNOWN] in self.starts
            stop = (self._end(text, position) or self._cut_end(text, position)) if is_start else 0
            if stop:
                yield position, stop
            position = stop or position + 1

    def _end(self, text: str, start: int) -> int:
        """Returns the end of the longest known text that begins at `start`; 0 if there is none."""
        is_after_word = text[start - 1 : start].isalnum()
        for length in self.lengths:
            known = self.by_beginning.get(text[start : start + length], ())
            stop = max((_common(text, start, one) for one in known[:MAX_ALIKE]), default=0)
            if len(known) > MAX_ALIKE:
                stop += len(text[stop:].split(maxsplit=1)[0]) if text[stop : stop + 1].strip() else 0
            is_word = not (is_after_word or text[stop : stop + 1].isalnum())
            if stop and (is_word or length >= 2 * MIN_KNOWN):
                return stop
        return 0

    def _cut_end(self, text: str, start: int) -> int:
        """Returns where a message has cut a known text that begins at `start`, at `...`; 0 if it has not."""
        stop = text.find("...", start, start + MIN_PREFIX + 3)
        if stop <= start:
            return 0
        index = bisect_left(self.sorted, text[start:stop])
        return stop if index < len(self.sorted) and self.sorted[index].startswith(text[start:stop]) else 0


def _common(text: str, start: int, known: str) -> int:
    """Returns the end of the range from `start` on in which the text is equal to the beginning of `known`.
    The first `MIN_PREFIX` characters are equal."""
    stop = start + min(len(known), MIN_PREFIX)
    while stop < len(text) and stop - start < len(known) and text[stop] == known[stop - start]:
        stop += 1
    return stop


def stretches_of_override(line: str) -> list[Stretch]:
    """Returns the secret ranges of `key=value`, an override of the command line."""
    key, equals, value = line.partition("=")
    start = len(key) + len(equals)
    path = tuple(key.lstrip("+~").partition("@")[0].split("."))
    if is_secret_at(path) and _hides(value):
        return [(start, len(line))]
    return [(start + begin, start + end) for begin, end in stretches(value, in_flow=True)]


# Secrets in one text


def stretches(text: str, in_flow: bool = False, names: Collection[str] = ()) -> list[Stretch]:
    """Returns the ranges of a text that are secret because of a key, an option, a URL or their shape.

    With `in_flow` the text is YAML between brackets, so a value ends at a comma or a bracket. `names` are
    further keys of secrets.
    """
    if not names and not is_suspect(text):
        return []
    found = [match.span("value") for match in _made(_LOGIN).finditer(text) if _hides(match["value"])]
    found += shapes(text)
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


def url_passwords(text: str) -> Iterator[str]:
    """Yields the passwords in the URLs of a text: `abc` for `redis://me:abc@host`."""
    if "://" in text and "@" in text:
        yield from (match["value"] for match in _made(_LOGIN).finditer(text) if _hides(match["value"]))


def _hides(value: str) -> bool:
    """Returns whether the text under a secret's key must be hidden: it is neither empty, nor hidden already,
    nor a reference."""
    bare = value.strip()
    return not (_made(_NOTHING).fullmatch(bare) or is_reference(bare))


def _end(text: str, start: int, in_flow: bool) -> int:
    """Returns the end of the value that begins at `start`. If it is not certain, the end is too late rather
    than too early."""
    if match := _made(_BEFORE).match(text, start):
        start = match.end()
    value = _made(_QUOTED_OR_BRACKETS).match(text, start) or _made(_bare(in_flow)).match(text, start)
    return value.end() if value else start


def _bare(in_flow: bool) -> str:
    """Returns the pattern of a value without quotes or brackets; references in it may contain anything."""
    ends = ",\\]}\\n" if in_flow else " \\t\\n,;)\\]}`"
    return rf"(?:{_NESTED}|[^{ends}'\"$]|\$|['\"](?!{_AFTER_QUOTE}))*"


# Data


def secret_places(value: Any, path: Path = (), under: bool = False) -> Iterator[tuple[Path, Any]]:
    """Yields (path, value) of every scalar in plain data that is a secret because of a key, the option before
    it or its shape. With `under`, the data is the value of a secret's key."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            here = (*path, str(key))
            yield from secret_places(item, here, under or is_secret_at(here))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            is_option = isinstance(item, str) and item.startswith("-") and not item.startswith("- ")
            option = index > 0 and follows_option(value[index - 1]) and not is_option
            yield from secret_places(item, (*path, str(index)), under or option)
    elif is_token(value) or (under and is_text(value)):
        yield path, value


def literals(text: str) -> Iterator[str]:
    """Yields the literal parts of a secret's text: everything outside of references, and the defaults in
    references."""
    pieces, position = [], 0
    for found in _made(_NESTED).finditer(text):
        pieces.append(text[position : found.start()])
        resolver, comma, default = found[0][2:].removesuffix("}").partition(",")
        if comma and resolver.strip().startswith("oc."):
            pieces.append(default.strip().strip("'\""))
        position = found.end()
    yield from (piece for piece in (*pieces, text[position:]) if is_text(piece.strip()))


def holds_literal(value: Any) -> bool:
    """Returns whether plain data contain a secret as literal text, so that a file of them must be private."""
    return any(any(literals(str(item))) for _, item in secret_places(value)) or _holds_embedded(value)


def _holds_embedded(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_embedded, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_embedded, value))
    return isinstance(value, str) and bool(stretches(value))
