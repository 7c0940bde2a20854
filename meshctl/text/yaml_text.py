"""Writes plain data as YAML in block style, for files that a person reads and another tool parses.

A text is quoted unless every YAML parser reads it as the same text, so `yes`, `1e3` and `12:30` are quoted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@+-]*")
"""Texts that no YAML parser takes for something else, unless they are one of `WORDS`."""
WORDS = re.compile(r"true|false|yes|no|on|off|y|n|null|nan|inf", re.IGNORECASE)
BLOCK = re.compile(r"[^\s\0-\x1f\x7f-\x9f](?:[^\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]*[^\n])?\n")
"""Texts of lines that are written as they are: no control characters, no blank at the start, one line end."""
UNSEEN = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that YAML does not allow in a quoted text, or whose lines end there."""


def yaml_text(*documents: Any) -> str:
    """Returns documents of mappings, sequences, texts, numbers, booleans and None."""
    return "---\n".join("".join(f"{line}\n" for line in _lines(one)) for one in documents)


def _lines(value: Any) -> Iterator[str]:
    """Yields the lines of a value that begins on a line of its own."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _item(f"{_scalar(str(key))}:", item)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        for item in value:
            if isinstance(item, str):
                yield from _item("-", item)
                continue
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" if line else "" for line in rest)
    else:
        yield _scalar(value)


def _item(start: str, value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.count("\n") and BLOCK.fullmatch(value):
        yield f"{start} |"
        yield from (f"  {line}" if line else "" for line in value[:-1].split("\n"))
    elif isinstance(value, (Mapping, list, tuple)) and value:
        yield start
        yield from (f"  {line}" if line else "" for line in _lines(value))
    else:
        yield f"{start} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and PLAIN.fullmatch(value) and not WORDS.fullmatch(value):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) if isinstance(value, str) else text
