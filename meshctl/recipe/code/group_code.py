"""The source files that the workers of each group import: those on the path of the group's interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from meshctl.dataclass import dataclass
from meshctl.recipe.code.classes import Code, Found, NotFound
from meshctl.recipe.code.modules import Unread

if TYPE_CHECKING:
    from meshctl.recipe.code.interpreters import Interpreter


@dataclass(frozen=True)
class GroupCode:
    launcher: Code
    """The code that the launcher's interpreter imports."""
    interpreters: Mapping[str, Interpreter] = field(default_factory=dict)
    """Group -> its interpreter, for groups that name one."""
    _codes: dict[str, Code] = field(default_factory=dict)
    """Interpreter -> its code."""

    def of(self, group: str) -> Code:
        """Returns the code of a group; that of the launcher if the packages of the group's interpreter are
        not on this machine."""
        interpreter = self.interpreters.get(group)
        if interpreter is None or not interpreter.folders:
            return self.launcher
        if interpreter.path not in self._codes:
            self._codes[interpreter.path] = Code(self.launcher.own, interpreter.folders)
        return self._codes[interpreter.path]

    def find(self, group: str, target: str) -> Found:
        """Follows the dotted path of a class of a group. A class of another interpreter whose module is not
        found is unread: its packages may be on another machine, or be found by code."""
        found = self.of(group).find(target)
        if group in self.interpreters and isinstance(found, NotFound) and not found.has_module:
            return Unread("its module was not found among the packages of its interpreter")
        return found


def group_code(
    pythons: Mapping[str, str], own: Sequence[str], installed: Sequence[str], environ: Mapping[str, str]
) -> GroupCode:
    """Returns the code of all groups. `pythons` is group -> the `python` that it names, empty for none; `own`
    are the folders of the recipe, and `installed` is the path of the launcher's interpreter."""
    named = {group: python for group, python in pythons.items() if python}
    if not named:
        return GroupCode(Code(own, installed))
    from meshctl.recipe.code.interpreters import read_interpreter  # most recipes name none

    home = own[0] if own else ""
    read = {group: read_interpreter(python, home, environ) for group, python in named.items()}
    return GroupCode(Code(own, installed), read)
