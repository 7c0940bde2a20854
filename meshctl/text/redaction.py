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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

HIDDEN = "<redacted>"
STAR = "*"
MIN_KNOWN = 4
"""Minimum length in characters of a known text that is hidden wherever it occurs. A shorter secret is hidden
under its key only, because it may also be a part of ordinary words."""
MIN_PREFIX = 16
"""Number of first characters by which a longer known text is recognised, because messages cut long quotes."""
MAX_ALIKE = 8
"""Maximum number of known texts with the same beginning that are compared with a text. If there are more, the
whole word is hidden."""

Path = tuple[str, ...]
Span = tuple[int, int]
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
_REFERENCE = r"\\?[\"']?\$\{[^{},]*\}\\?[\"']?"
_NESTED = r"\$\{(?:[^{}]|\{[^{}]*\})*\}?"
"""A reference, which may contain another one, or the beginning of a reference."""
_VALUE = (
    r"(?:[&!][^\s,\[\]{}]*\s+)*(?:(?i:Bearer|Basic|Token)\s+)?"
    r"(?:\\?\"[^\"\n]*\"|\\?'[^'\n]*'|[\[{\"'][^\n]*"
    rf"|(?:{_NESTED}|[^\s,;)\]}}`\"'])+)"
)
"""The value of a key or an option: a text in quotes, brackets up to the end of the line, or a word."""
_NOTHING = r"(?i:null|~|none|true|false|\?\?\?|\"\"|''|[\[{(]\s*[\]})]|\*+|<redacted>|)"
PLACEHOLDERS = {
    *("none", "null", "empty", "dummy", "test", "auto", "default", "basic", "bearer"),
    *("true", "false", "no", "yes", "on", "off"),
}
"""Values under a secret's key that are no secrets. They cause no warning, and are not hidden elsewhere."""


# Keys


@lru_cache(4096)
def is_secret(key: str) -> bool:
    """Returns whether a key names a secret, so that its value and all values below it are secret."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", key)
    name = "_".join(words).lower()
    if found := re.search(_STRONG, name):
        return not re.search(_ABOUT, found["rest"] or "")
    weak = re.match(_WEAK, name)
    return weak is not None and not re.search(_OF_A_MODEL, weak["before"])


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


def follows_option(argument: object) -> bool:
    """Returns whether an argument is an option such as `--token`, so that the next argument is a secret."""
    found = re.fullmatch(r"--?([A-Za-z][\w.\-]*)", argument) if isinstance(argument, str) else None
    return found is not None and is_secret(found[1])


# Secrets in a text


def is_suspect(text: str) -> bool:
    """Returns whether a text may contain a secret, by a quick search; `spans` is exact."""
    if any(shapes(text)):
        return True
    lowered = text.lower()
    return any(word in lowered and re.search(pattern, lowered) for word, pattern in _SUSPECT.items())


def shapes(text: str) -> Iterator[Span]:
    """Yields the ranges of a text that are secrets because of their shape."""
    if any(word in text for word in _SHAPE_WORDS):
        yield from (found.span() for found in re.finditer(_SHAPES, text))


def spans(text: str) -> list[Span]:
    """Returns the ranges of a text that are secret because of a key, an option, a URL or their shape."""
    if not is_suspect(text):
        return []
    found = [match.span("value") for match in re.finditer(_LOGIN, text) if hides(match["value"])]
    found += shapes(text)
    value_of = re.compile(_VALUE)
    for key_of in (re.compile(_KEY), re.compile(_OPTION)):
        position = 0
        while match := key_of.search(text, position):
            position = match.end("key")
            if is_secret_at(tuple(match["key"].split("."))):
                value = value_of.match(text, match.end())
                if value and hides(value[0]):
                    found.append(value.span())
                    position = value.end()
    return found


def hides(value: str) -> bool:
    """Returns whether the text under a secret's key must be hidden: it is neither empty, nor hidden already,
    nor a reference."""
    bare = value.strip()
    return is_text(bare) and not is_reference(bare)


def is_text(value: Any) -> bool:
    """Returns whether a value under a secret's key must be hidden: it is not None, boolean, empty, or hidden
    already."""
    return not (value is None or isinstance(value, bool) or re.fullmatch(_NOTHING, str(value)))


def is_reference(text: str) -> bool:
    """Returns whether a text consists of nothing but one reference."""
    return re.fullmatch(_REFERENCE, text) is not None


def is_distinctive(text: str) -> bool:
    """Returns whether a secret's text is hidden wherever it occurs: it is long enough, and no common word."""
    return len(text) >= MIN_KNOWN and text.lower() not in PLACEHOLDERS


class Known:
    """Texts that are secrets wherever they occur, also if a message has cut them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.by_beginning: dict[str, list[str]] = {}
        for text in texts:
            if len(text) >= MIN_KNOWN:
                self.by_beginning.setdefault(text[:MIN_KNOWN], []).append(text)

    def spans(self, text: str) -> Iterator[Span]:
        """Yields the ranges of a text that are known texts or their first characters."""
        position = 0
        while self.by_beginning and position <= len(text) - MIN_KNOWN:
            alike = self.by_beginning.get(text[position : position + MIN_KNOWN], ())
            stop = max((_end(text, position, one) for one in alike[:MAX_ALIKE]), default=0)
            if len(alike) > MAX_ALIKE:
                stop = max(stop, position + len(text[position:].split(maxsplit=1)[0]))
            if stop:
                yield position, stop
            position = stop or position + 1


def _end(text: str, start: int, known: str) -> int:
    """Returns the end of a known text, or of a beginning of it, at `start`; 0 if it is not there. A short one
    must be a word of its own."""
    pairs = zip(text[start : start + len(known)], known, strict=False)
    common = next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(known), len(text) - start)
    )
    is_word = not (text[start - 1 : start].isalnum() or text[start + common : start + common + 1].isalnum())
    is_whole = common == len(known) and (is_word or common >= 2 * MIN_KNOWN)
    return start + common if is_whole or common >= MIN_PREFIX else 0


# Redaction


def redact(text: str, known: Iterable[str] | Known = ()) -> str:
    """Returns a text with `<redacted>` in place of secrets. `known` are texts that are hidden wherever they
    occur."""
    known = known if isinstance(known, Known) else Known(known)
    return _without(text, [*spans(text), *known.spans(text)], lambda length: HIDDEN)


def mask(line: str, found: Iterable[Span]) -> str:
    """Returns a line with stars of the same width in place of some of its text."""
    return _without(line, found, lambda length: STAR * length)


def _without(text: str, found: Iterable[Span], instead: Callable[[int], str]) -> str:
    pieces, position = list[str](), 0
    for start, stop in sorted(found):
        if stop > position:
            pieces += (
                [text[position:start], instead(stop - start)]
                if start >= position
                else [instead(stop - position)]
            )
            position = stop
    return "".join([*pieces, text[position:]])


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
    texts = Known(known)
    shown: list[str] = []
    for before, argument in zip(("", *argv), argv, strict=False):
        option, sign, value = argument.partition("=")
        is_named = bool(sign) and is_secret_at(tuple(option.lstrip("-+~").split(".")))
        if follows_option(before) and not argument.startswith("-"):
            shown.append(HIDDEN if hides(argument) else argument)
        elif is_named and hides(value):
            shown.append(f"{option}={HIDDEN}")
        else:
            shown.append(redact(argument, texts))
    return tuple(shown)


def command_line(argv: Sequence[str], known: Iterable[str] = ()) -> str:
    """Returns a command line without secrets, quoted for a shell."""
    return shlex.join(redact_arguments(argv, known)).replace(shlex.quote(HIDDEN), HIDDEN)


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
    elif (under and is_text(value)) or (isinstance(value, str) and (0, len(value)) in shapes(value)):
        yield path, value


def literals(text: str) -> Iterator[str]:
    """Yields the literal parts of a secret's text: everything outside of references, and the defaults in
    references."""
    pieces, position = [], 0
    for found in re.finditer(_NESTED, text):
        pieces.append(text[position : found.start()])
        resolver, comma, default = found[0][2:].removesuffix("}").partition(",")
        if comma and resolver.strip().startswith("oc."):
            pieces.append(default.strip().strip("'\""))
        position = found.end()
    yield from (piece for piece in (*pieces, text[position:]) if is_text(piece.strip()))


def holds_literal(value: Any) -> bool:
    """Returns whether plain data contain a secret as literal text, so that a file of them must be private."""
    if any(any(literals(str(item))) for _, item in secret_places(value)):
        return True
    if isinstance(value, Mapping):
        return any(map(holds_literal, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds_literal, value))
    return isinstance(value, str) and bool(spans(value))
