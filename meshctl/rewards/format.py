"""The reward of an answer that has a given form."""

from __future__ import annotations

import re
from collections.abc import Sequence


def format(response: str, *, tags: Sequence[str] = ("think", "answer"), pattern: str = "") -> float:
    """Returns 1 if the response has the form of `pattern`, and 0 otherwise.

    tags: without a pattern, the response consists of `<TAG>...</TAG>` for each of these tags, in this order,
        each of them once, with spaces between them only (DeepSeek-AI, 2025, arXiv 2501.12948, section 2.2.1).
    pattern: a regular expression that matches the whole response. Its `.` also matches line breaks.
    """
    if pattern:
        return float(re.fullmatch(pattern, response, re.DOTALL) is not None)
    parts = [f"<{tag}>.*?</{tag}>" for tag in map(re.escape, tags)]
    is_in_order = re.fullmatch(r"\s*".join(["", *parts, ""]), response, re.DOTALL) is not None
    marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]
    return float(is_in_order and all(response.count(mark) == 1 for mark in marks))
