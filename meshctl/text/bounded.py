"""Texts of users' code, such as error messages, in a bounded length and without what a terminal would obey.

plain("a\\x1b[31mb\\x00")        "ab"
bounded(text, 2000)             the beginning and the end of a long text
"""

from __future__ import annotations

import re

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
"""An escape sequence of a terminal: colors, cursor movements, titles."""
MAX_LINE = 2_000
"""Maximum length of an error line, in characters."""
MAX_TEXT = 32_000
"""Maximum length of a traceback, in characters."""
UNSEEN = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Controls of bidirectional text, characters of no width, and line separators."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except tabs and line feeds."""


def message(error: BaseException) -> str:
    """Returns the message of an error, also of one that cannot be converted to a text."""
    try:
        return str(error)
    except Exception as problem:  # it is code of the user
        return f"(its message cannot be shown: {type(problem).__name__})"


def plain(text: str) -> str:
    """Returns a text without escape sequences and control characters, and with `?` for each character that is
    not seen or changes the order of others."""
    return UNSEEN.sub("?", _CONTROL.sub("", ESCAPE.sub("", text)))


def bounded(text: str, length: int) -> str:
    """Returns a plain text of about `length` characters at most: of a longer one the beginning and the
    end."""
    if len(text) > 2 * length:  # escape sequences may be cut, whose rest is harmless
        text = _shortened(text, 2 * length)
    return _shortened(plain(text), length)


def _shortened(text: str, length: int) -> str:
    left_out = len(text) - length
    if left_out <= 0:
        return text
    half = length // 2
    return f"{text[:half]} ... ({left_out} characters are left out) ... {text[-half:]}"


def escaped(text: str) -> str:
    """Returns YAML with escapes in place of the characters in `UNSEEN`, which must be in double quotes
    there."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
