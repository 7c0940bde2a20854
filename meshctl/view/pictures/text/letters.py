"""The letter and color of each component in a picture, and the letters on a device.

The group of a program has no components, so it has a lowercase letter of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from meshctl.plan.views.topology import PlacedComponent, PlacedGroup, Topology
from meshctl.view.pictures.text.styled import PALETTE, Ink, Line, ink, line

IDLE = "·"


def color_of(number: int) -> str:
    return f"c{number % len(PALETTE)}"


def letters_of(number: int) -> str:
    """a, b, ... z, aa, ab, ..."""
    text = ""
    while number >= 0:
        number, last = divmod(number, 26)
        text, number = chr(ord("a") + last) + text, number - 1
    return text


@dataclass(frozen=True)
class Marks:
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
    def _letters(self) -> dict[str, Ink]:
        return {
            component.name: ink(component.letter, color_of(number).upper())
            for number, component in enumerate(self.topology.components)
        }

    @cached_property
    def _programs(self) -> dict[str, Ink]:
        """The letters of groups without components."""
        programs = [group.name for group in self.topology.groups if not group.components]
        first = len(self.topology.components)
        return {
            name: ink(letters_of(number), color_of(first + number).upper())
            for number, name in enumerate(programs)
        }

    def letter(self, component: str) -> Ink:
        return self._letters.get(component, Ink("?"))

    def name(self, component: str) -> Ink:
        """Returns the name of a component in its color."""
        return ink(component, self.letter(component).style.lower())

    def group_letter(self, group: str) -> Ink:
        """Returns the letter of a group without components."""
        return self._programs[group]

    def of_group(self, group: str) -> Line:
        """Returns the letters of the components of a group, with long runs shortened: ABC, A-F, A-F H."""
        names = self.groups[group].components if group in self.groups else ()
        return line(self._programs[group]) if group in self._programs else self.of_components(names)

    def of_components(self, names: Sequence[str]) -> Line:
        """Returns AB, A-D, A-D G, AA-AD: runs of four and more are shortened, and names of several letters
        are separated."""
        runs: list[list[str]] = []
        for name in names:
            if runs and self._numbers[name] == self._numbers[runs[-1][-1]] + 1:
                runs[-1].append(name)
            else:
                runs.append([name])
        apart = (
            " "
            if any(len(self.letter(name).text) > 1 for name in names) or any(len(run) > 3 for run in runs)
            else ""
        )
        made: Line = ()
        for run in runs:
            if len(run) > 3:
                made = line(made, apart if made else "", self.letter(run[0]), "-", self.letter(run[-1]))
            else:
                for name in run:
                    made = line(made, apart if made else "", self.letter(name))
        return made

    def of_cell(self, groups: Sequence[str]) -> Line:
        """Returns the letters of the groups on a device, with a + between colocated ones."""
        if not groups:
            return line(ink(IDLE, "faint"))
        made: Line = ()
        for group in groups:
            made = line(made, "+" if made else "", self.of_group(group))
        return made
