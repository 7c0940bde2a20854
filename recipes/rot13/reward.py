"""The reward of an answer to a prompt of pairs.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def right_letters(response: str, chosen: Sequence[Mapping[str, str]]) -> float:
    """Returns the fraction of the letters of the right answer, `chosen`, that are in their place."""
    solution = chosen[0]["content"]
    right = sum(one == other for one, other in zip(response, solution, strict=False))
    return right / max(len(solution), len(response))
