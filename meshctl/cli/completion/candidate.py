"""One answer of shell completion: a word, or the beginning of one."""

from __future__ import annotations

from typing import NamedTuple


class Candidate(NamedTuple):
    text: str
    description: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether nothing more belongs to the word; else the shell adds no space behind it."""
        is_list = "=[" in self.text and not self.text.endswith("]")
        return not (is_list or self.text.endswith((".", "=", "@", "/", ":")))
