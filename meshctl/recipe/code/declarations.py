"""Reads the class attributes in which a component class declares its model, the layouts that it supports, and
the length of the sequences that it gives.

    class Trainer(Component):
        MODEL = "args.model"                       # the argument that names the model
        LAYOUTS = {                                # the layouts that the class supports
            "dims": ("dp", "fsdp", "tp"),          # other dims have size 1
            "excludes": (("fsdp", "tp"),),         # in each pair, one dim must have size 1
            "tp_plan": "transformers",             # tp needs the plan that the library has for the model
        }

    class Texts(Component):
        SEQUENCE_LENGTH = "args.max_length"        # the argument with the most tokens of a sequence

They are literals and may be inherited. All keys of `LAYOUTS` may be left out. `MODEL` may be a list of
arguments: values of a later one replace those of the model's config.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshctl.topology.sizes import DIMS

MODEL, LAYOUTS, SEQUENCE_LENGTH = "MODEL", "LAYOUTS", "SEQUENCE_LENGTH"
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
    sequence_length: tuple[str, ...] = ()
    """The key path, below the component, of the most tokens of a sequence that it gives; empty if none is
    declared."""
    wrong: tuple[tuple[str, str], ...] = ()
    """(attribute, reason why it is ignored) of each wrong declaration."""


def declarations_of(values: Mapping[str, ast.expr | None]) -> Declarations:
    """Reads the declarations among class attributes. `values` maps their names to their values; None for an
    attribute without a value."""
    found = {name: _literal(values[name]) for name in (MODEL, LAYOUTS, SEQUENCE_LENGTH) if name in values}
    wrong: list[tuple[str, str]] = []
    model: tuple[tuple[str, ...], ...] = ()
    layouts = Layouts()
    length: tuple[str, ...] = ()
    if MODEL in found:
        stated = found[MODEL]
        names = stated if isinstance(stated, (list, tuple)) and stated else [stated]
        model = tuple(_argument(name) for name in names)
        if not all(model):
            model = ()
            wrong.append((MODEL, 'it is not the name of an argument, such as "args.model"'))
    if LAYOUTS in found:
        read = _layouts(found[LAYOUTS])
        if isinstance(read, Layouts):
            layouts = read
        else:
            wrong.append((LAYOUTS, read))
    if SEQUENCE_LENGTH in found:
        length = _argument(found[SEQUENCE_LENGTH])
        if not length:
            wrong.append((SEQUENCE_LENGTH, 'it is not the name of an argument, such as "args.max_length"'))
    return Declarations(model, layouts, length, tuple(wrong))


def _argument(name: Any) -> tuple[str, ...]:
    """Returns the key path of an argument, `("args", "model")`; empty for anything else."""
    return tuple(name.split(".")) if isinstance(name, str) and ARGUMENT.fullmatch(name) else ()


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
