"""The reward of an answer that continues the alphabet: `k` for the prompt `hij`."""

from __future__ import annotations

from string import ascii_lowercase

AFTER = dict(zip(ascii_lowercase, ascii_lowercase[1:] + "a", strict=True))


def next_letter(prompt: str, response: str) -> float:
    """Returns 1 if the answer begins with the letter after the last one of the prompt, and 0 otherwise.

    The parameters of a reward function name columns of the batch.
    """
    return float(response.startswith(AFTER[prompt[-1]]))
