"""The lookup of a function that a recipe names: by a key of a table, or by the dotted path of a user's
function. It does not load torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from meshctl.package import install_command


def import_function(
    kind: str, table: Mapping[str, str], name: str, error: type[Exception], extra: str = ""
) -> Callable[..., Any]:
    """Returns the function `name`. `name` is a key of `table`, which has dotted paths as its values, or a
    dotted path. `kind` names the kind of the function in messages, and `extra` the extra that installs what
    the functions of the table import. Raises `error` if the function does not exist. An import that fails
    inside the function's module raises its own error."""
    module, _, attribute = table.get(name, name).rpartition(".")
    if not module:
        raise error(_unknown(kind, table, name))
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as missing:
        if extra and name in table:
            command = install_command(extra)
            raise error(f"{kind} `{name}`: {missing.name} is not installed: {command}") from None
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise
        raise error(f"{kind} `{name}`: module {missing.name!r} does not exist") from None
    if not callable(found):
        raise error(f"{kind} `{name}`: module {module} has no function {attribute!r}")
    return found  # type: ignore[no-any-return]


def _unknown(kind: str, table: Mapping[str, str], name: str) -> str:
    near = get_close_matches(name, table, n=1)
    suggestion = f", did you mean `{near[0]}`" if near else ""
    return (
        f"{kind} `{name}` does not exist{suggestion}; the names are {', '.join(table)}, and a function of "
        "your own is a dotted path"
    )
