"""The reward of a mathematical answer that is equal to the solution, by math-verify."""

from __future__ import annotations

import logging

from math_verify import parse, verify

EXTRA = "rewards"
ANCHORS = ("$", "\\boxed", "\\(", "\\[")
"""Text that begins a formula in LaTeX."""
logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limits are off


def math(response: str, solution: object) -> float:
    """Returns 1 if the response contains an answer that is equal to the solution, and 0 otherwise.

    The answer is a formula in LaTeX, preferably in `\\boxed{}`, or a number. The solution is one too, and may
    be without `$`. The time limit is that of the component; math-verify's own is a signal, which only a main
    thread can use. Raises ValueError if no formula is found in the solution.
    """
    text = str(solution)
    has_anchor = any(anchor in text for anchor in ANCHORS)
    expected = parse(text if has_anchor else f"${text}$", parsing_timeout=None)
    if not expected:
        raise ValueError(f"no formula is found in the solution {text!r:.60}")
    answer = parse(response, parsing_timeout=None)
    return float(verify(expected, answer, timeout_seconds=None))
