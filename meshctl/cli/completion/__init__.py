"""Shell completion. The shell scripts in this folder call `meshctl complete SHELL`.

    meshctl val|                                          line.py: commands and options of the command line
    meshctl launch --only r|                              sources.py: values of options and arguments;
                                                          `cli/app.py` names the callback of each
    meshctl launch a.yaml groups.train.|                  overrides.py: keys of this recipe, and keys that a
                                                          recipe can have
    meshctl launch a.yaml layout@components.actor.p|      config groups and their options
    meshctl launch a.yaml groups.train.device_type=|      words, and names of the recipe

Typer's own scripts are not used, because they add a space after `groups.` and do not complete values after
`=`. The recipe is composed as by `validate`, nothing is executed, and any error results in no candidates.
"""

from __future__ import annotations

from typing import NamedTuple


class Candidate(NamedTuple):
    """A word, or the beginning of a word."""

    text: str
    description: str = ""

    @property
    def is_whole(self) -> bool:
        """True if the candidate is a complete word. The shell adds a space only after a complete word."""
        return not self.text.endswith((".", "=", "@", "/", ":"))
