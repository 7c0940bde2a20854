"""Rewards of an answer that equals the solution, has a given form, or has an acceptable length."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshctl.labels import IGNORED


def exact_match(response: str, solution: object, *, pattern: str = "", ignore_case: bool = False) -> float:
    """Returns 1 if the answer equals the solution apart from spaces at both ends, and 0 otherwise.

    pattern: a regular expression that finds the answer in the response, such as `#### (.+)`. The answer is
        the last match, or its first group. Without a pattern, the answer is the whole response.
    ignore_case: whether upper and lower case are equal.
    """
    answer = response
    if pattern:
        matches = list(re.finditer(pattern, response))
        if not matches:
            return 0.0
        answer = matches[-1][1 if matches[-1].re.groups else 0] or ""
    found, expected = answer.strip(), str(solution).strip()
    if ignore_case:
        found, expected = found.casefold(), expected.casefold()
    return float(found == expected)


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


def length(labels: Sequence[int], *, max_tokens: int, min_tokens: int = 0, buffer_tokens: int = 0) -> float:
    """Returns 0 for an answer of an acceptable length, and a penalty of at most 1 as a negative number
    otherwise.

    max_tokens, buffer_tokens: the penalty of a long answer grows linearly from 0 at `max_tokens` -
        `buffer_tokens` tokens to 1 at `max_tokens`, and is 1 for longer ones (the soft overlong punishment of
        Yu et al., 2025, arXiv 2503.14476, equation 13).
    min_tokens: the penalty of a short answer shrinks linearly from 1 without a token to 0 at this length.
    """
    tokens = sum(label != IGNORED for label in labels)
    if tokens < min_tokens:
        return tokens / min_tokens - 1
    accepted = max_tokens - buffer_tokens
    if tokens <= accepted:
        return 0.0
    return -1.0 if tokens > max_tokens else (accepted - tokens) / buffer_tokens
