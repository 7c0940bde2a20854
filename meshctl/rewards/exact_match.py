"""The reward of an answer that equals the solution."""

from __future__ import annotations

import re


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
