"""A penalty for answers that are too short or too long."""

from __future__ import annotations

from collections.abc import Sequence

from meshctl.labels import IGNORED


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
