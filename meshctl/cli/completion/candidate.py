"""A candidate of shell completion: a word, or the beginning of a word."""

from __future__ import annotations

from typing import NamedTuple


class Candidate(NamedTuple):
    text: str
    description: str = ""

    @property
    def is_whole(self) -> bool:
        """True if the candidate is a complete word. The shell adds a space only after a complete word."""
        is_list = "=[" in self.text and not self.text.endswith("]")
        return not (is_list or self.text.endswith((".", "=", "@", "/", ":")))
