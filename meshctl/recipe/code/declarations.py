"""Reads the class attributes in which a component class declares its model and the layouts that it supports.

    class Trainer(Component):
        MODEL = "args.model"                       # the argument that names the model
        LAYOUTS = {                                # the layouts that the class supports
            "dims": ("dp", "fsdp", "tp"),          # other dims have size 1
            "excludes": (("fsdp", "tp"),),         # in each pair, one dim must have size 1
            "tp_plan": "transformers",             # tp needs the plan that the library has for the model
        }

Both are literals and may be inherited. All keys of `LAYOUTS` may be left out. `MODEL` may be a list of
arguments: values of a later one replace those of the model's config.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshctl.topology.sizes import DIMS

MODEL, LAYOUTS = "MODEL", "LAYOUTS"
ARGUMENT = re.compile(r"args(\.\w+)+", re.ASCII)
TP_PLANS = ("transformers",)
"""The libraries whose plans are read."""
LAYOUT_DIMS = (*DIMS, "ulysses", "ep", "etp", "vpp")
"""The dims that `LAYOUTS` can name."""


@dataclass(frozen=True)
class Layouts:
    """The layouts that a component class supports."""

    dims: tuple[str, ...] | None = None
    """The dims that may have a size above 1; None for all dims."""
    excludes: tuple[tuple[str, str], ...] = ()
    """Pairs of dims that must not both have a size above 1."""
    tp_plan: str = ""
    """The library whose plan for the model's architecture tp needs; empty if it needs none."""

    def supports(self, dim: str) -> bool:
        return self.dims is None or dim not in LAYOUT_DIMS or dim in self.dims

    def conflict(self, sizes: Mapping[str, int]) -> tuple[str, str] | None:
        """Returns the first excluded pair whose dims both have a size above 1; None if there is none."""
        for one, other in self.excludes:
            if sizes.get(one, 1) > 1 and sizes.get(other, 1) > 1:
                return one, other
        return None


@dataclass(frozen=True)
class Declarations:
    model: tuple[tuple[str, ...], ...] = ()
    """The key paths, below the component, of the values that name the model or contain values of its config.
    Later ones take precedence."""
    layouts: Layouts = Layouts()
    wrong: tuple[tuple[str, str], ...] = ()
    """(attribute, reason why it is ignored) of each wrong declaration."""


def declarations_of(values: Mapping[str, ast.expr | None]) -> Declarations:
    """Reads the declarations among class attributes. `values` maps their names to their values; None for an
    attribute without a value."""
    wrong: list[tuple[str, str]] = []
    model: tuple[tuple[str, ...], ...] = ()
    layouts = Layouts()
    if MODEL in values:
        found = _literal(values[MODEL])
        names = found if isinstance(found, (list, tuple)) and found else [found]
        if all(isinstance(name, str) and ARGUMENT.fullmatch(name) for name in names):
            model = tuple(tuple(name.split(".")) for name in names)
        else:
            wrong.append((MODEL, 'it is not the name of an argument, such as "args.model"'))
    if LAYOUTS in values:
        read = _layouts(_literal(values[LAYOUTS]))
        if isinstance(read, Layouts):
            layouts = read
        else:
            wrong.append((LAYOUTS, read))
    return Declarations(model, layouts, tuple(wrong))


def _literal(value: ast.expr | None) -> Any:
    """Returns the value of a literal; None for another expression."""
    try:
        return ast.literal_eval(value) if value is not None else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _layouts(value: Any) -> Layouts | str:
    """Returns the layouts that a literal describes, or the reason why it is invalid."""
    if not isinstance(value, dict) or not value.keys() <= {"dims", "excludes", "tp_plan"}:
        return 'it is not a literal mapping of "dims", "excludes" and "tp_plan"'
    dims, excludes = value.get("dims"), value.get("excludes", ())
    if dims is not None and not _is_dims(dims):
        return f'"dims" is not a list of {", ".join(LAYOUT_DIMS)}'
    if not isinstance(excludes, (list, tuple)) or not all(
        _is_dims(pair) and len(pair) == 2 for pair in excludes
    ):
        return '"excludes" is not a list of pairs of dims'
    tp_plan = value.get("tp_plan", "")
    if "tp_plan" in value and tp_plan not in TP_PLANS:
        return f'"tp_plan" is not "{" or ".join(TP_PLANS)}"'
    pairs = tuple((pair[0], pair[1]) for pair in excludes)
    return Layouts(None if dims is None else tuple(dims), pairs, tp_plan)


def _is_dims(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(dim, str) and dim in LAYOUT_DIMS for dim in value
    )
