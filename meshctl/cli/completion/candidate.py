"""One answer: a word, or as much of one as is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    text: str
    says: str = ""
    whole: bool = True
    """Nothing more belongs to this word."""
