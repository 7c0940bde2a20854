"""Connections that were dropped because the peer did not prove that it has the token of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

HOSTS_MAX = 64
"""The most hosts that are counted by themselves."""
OTHERS = "other hosts"


class Strangers(Counter[str]):
    """Host -> the number of its connections that were dropped."""

    def note(self, host: str, count: int = 1) -> None:
        self[host if host in self or len(self) < HOSTS_MAX else OTHERS] += count

    def note_all(self, found: Mapping[str, int]) -> None:
        for host, count in found.items():
            self.note(str(host), int(count))
