"""The tables of docs/models.md: which dims of `hf.Model` are tested together, and what excludes a dim.

`docs/reference.py` writes them. A pair of dims names the layout of the fewest ranks that has both, of those
in which tests compare training with one process.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from math import prod
from pathlib import Path

from meshctl.recipe.code.declarations import LAYOUT_DIMS, SEQUENCE, Layouts, declarations_of

DECLARED = Path(__file__).parents[1] / "meshctl" / "hf" / "model.py"
NOT_TESTED = "not tested"


def declared() -> Layouts:
    """Returns the `LAYOUTS` of `hf.Model`, read as text, as `validate` reads it."""
    tree = ast.parse(DECLARED.read_text(encoding="utf-8"))
    values = {
        one.target.id: one.value
        for one in ast.walk(tree)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    return declarations_of({"LAYOUTS": values["LAYOUTS"]}).layouts


def pairs(layouts: Mapping[str, Mapping[str, int]], carved: tuple[str, ...], declared: Layouts) -> str:
    """Returns the table of pairs of dims. `layouts` are the tested ones, by name, and `carved` their keys
    that share ranks with others."""
    dims = [dim for dim in LAYOUT_DIMS if declared.supports(dim)]
    dims.insert(dims.index("tp") + 1, SEQUENCE)
    ranks = {
        name: prod(size for dim, size in sizes.items() if dim not in carved)
        for name, sizes in layouts.items()
    }

    def tested(one: str, other: str) -> str:
        found = [name for name, sizes in layouts.items() if one in sizes and other in sizes]
        needed = {"pp": 2} if "vpp" in (one, other) else {}
        if one != other and declared.conflict({**needed, one: 2, other: 2}):
            return "MC416"
        return min(found, key=lambda name: (ranks[name], len(name)), default=NOT_TESTED)

    rows = []
    for number, dim in enumerate(dims):
        cells = [tested(dim, other) if at <= number else "" for at, other in enumerate(dims)]
        rows.append(f"| {_shown(dim)} | {' | '.join(cells)} |")
    head = f"| | {' | '.join(map(_shown, dims))} |"
    return "\n".join([head, "| --- |" + " --- |" * len(dims), *rows])


def exclusions(declared: Layouts) -> str:
    """Returns the table of the arguments that exclude dims."""
    rows = [
        f"| `{'.'.join(path[1:])}` | {', '.join(map(_shown, dims))} | MC417 |"
        for path, dims in declared.without.items()
    ]
    return "\n".join(["| argument | excludes | code |", "| --- | --- | --- |", *rows])


def _shown(dim: str) -> str:
    return f"`{dim}`" if dim == SEQUENCE else dim
