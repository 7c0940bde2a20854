"""References to environment variables, `${oc.env:NAME}` and `${oc.env:NAME,default}`. A plan contains no
other kinds of references.

A value from the environment stays a reference until the process that needs it resolves it, so no secret is in
a file, in an argument or in the digest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\{oc\.env:(?P<name>[^},]+)(,(?P<default>[^}]*))?\}")


class Unset(LookupError):
    """A reference without a default names an environment variable that is not set."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the environment variable {name} is not set")
        self.name = name


def names(text: str) -> tuple[str, ...]:
    """Returns the names of the variables that a text refers to."""
    return tuple(found["name"].strip() for found in _REFERENCE.finditer(text))


def filled(text: str, environ: Mapping[str, str]) -> str:
    """Returns the text with each reference replaced by the variable's value, or by the default if the
    variable is not set. Raises `Unset` if there is no default either."""

    def value(found: re.Match[str]) -> str:
        name, default = found["name"].strip(), found["default"]
        if name in environ:
            return environ[name]
        if default is None:
            raise Unset(name)
        return default.strip().strip("'\"")

    return _REFERENCE.sub(value, text)
