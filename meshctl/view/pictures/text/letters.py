"""The letter and color of each component in a picture.

The group of a program has no components, so it has a lowercase letter of its own.
"""

from __future__ import annotations

from functools import cached_property

from meshctl.dataclass import dataclass
from meshctl.plan.views.topology import PlacedComponent, PlacedGroup, Topology, letters_of
from meshctl.view.pictures.text.styled import PALETTE, Line, Segment, joined, styled

IDLE = "·"
MAX_LETTERS = 3
"""Longer runs of letters are written as the first and the last: A-D."""


@dataclass(frozen=True)
class Marks:
    """The letters, names and colors of a topology's components, for all parts of a picture.

    The letter of a component is bold and in its color: the style `C0`, `C1` and so on. The styles `c0`, `c1`
    and so on are the same colors without bold.
    """

    topology: Topology

    @cached_property
    def components(self) -> dict[str, PlacedComponent]:
        return {component.name: component for component in self.topology.components}

    @cached_property
    def groups(self) -> dict[str, PlacedGroup]:
        return {group.name: group for group in self.topology.groups}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.components)}

    @cached_property
    def _programs(self) -> dict[str, Segment]:
        programs = [group.name for group in self.topology.groups if not group.components]
        first = len(self.topology.components)
        return {
            name: _mark(letters_of(number).lower(), first + number) for number, name in enumerate(programs)
        }

    def letter(self, component: str) -> Segment:
        if component not in self._numbers:
            return Segment("?")
        return _mark(self.components[component].letter, self._numbers[component])

    def name(self, component: str) -> Segment:
        """Returns the name of a component in its color, not in bold."""
        return styled(component, self.letter(component).style.lower())

    def group_letter(self, group: str) -> Segment:
        """Returns the letter of a group without components."""
        return self._programs[group]

    def of_group(self, group: str) -> Line:
        """Returns the letters of a group: ABC, A-F, A-F H, AA AB."""
        if group in self._programs:
            return Line(self._programs[group])
        names = self.groups[group].components if group in self.groups else ()
        runs: list[list[str]] = []  # of neighbouring letters
        for name in names:
            if runs and self._numbers[name] == self._numbers[runs[-1][-1]] + 1:
                runs[-1].append(name)
            else:
                runs.append([name])
        is_apart = any(len(self.letter(name).text) > 1 for name in names) or any(
            len(run) > MAX_LETTERS for run in runs
        )
        words: list[Line] = []
        for run in runs:
            if len(run) > MAX_LETTERS:
                words.append(Line(self.letter(run[0]), "-", self.letter(run[-1])))
            else:
                words += [Line(self.letter(name)) for name in run]
        return joined(words, " " if is_apart else "")


def _mark(letter: str, number: int) -> Segment:
    return styled(letter, f"C{number % len(PALETTE)}")
