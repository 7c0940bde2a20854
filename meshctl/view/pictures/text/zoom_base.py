"""What the zooms are written on: the whole topology for names and letters, and how they say ranks and
devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshctl.plan.views.topology import Topology
from meshctl.topology.flows import Ranks
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.styled import ELLIPSIS, Line, ink, line, words_of, wrapped

MANY = 4
"""More ranks in a row than this are said by their ends."""


@dataclass(frozen=True)
class Sheet:
    topology: Topology
    marks: Marks
    width: int

    def name(self, component: str) -> Line:
        return line(self.marks.letter(component), " ", self.marks.name(component))


def headed(heading: str, body: Sequence[Line]) -> list[Line]:
    """A section, or nothing where it has no lines."""
    return [line(), line(ink(heading, "bold")), *body] if body else []


def folded(text: str, width: int) -> list[Line]:
    """The text, indented, on as many lines as it needs."""
    return [line("  ", each) for each in wrapped(words_of(text), width - 2, " ")]


def ranks_of(ranks: Ranks) -> str:
    """0 8 16; 0-5; 0 8 16 24 … 504"""
    if ranks.count > MANY and ranks.stride == 1:
        return f"{ranks.first[0]}-{ranks.last}"
    named = " ".join(map(str, ranks.first))
    return named if ranks.is_whole else f"{named} {ELLIPSIS} {ranks.last}"


def run_of(numbers: Sequence[int]) -> str:
    """3; 0-3; 0,2"""
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))
