"""Invisible characters, and characters that change the order in which a terminal or a browser draws
others."""

from __future__ import annotations

import re

UNSEEN = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Controls of bidirectional text, characters of no width, and line separators."""


def escaped(text: str) -> str:
    """Returns YAML with escapes in place of the characters in `UNSEEN`, which must be in double quotes
    there."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
