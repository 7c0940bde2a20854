"""The facts of a picture as JSON: the fields of `plan/topology.py`, `plan/zoom.py` and `plan/difference.py`,
as their docstrings say.

The same plan gives the same text. It grows with components and stages, not with devices.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from meshctl.plan.model import as_data
from meshctl.plan.views.topology import Topology

if TYPE_CHECKING:
    from meshctl.plan.views.difference import Difference
    from meshctl.plan.views.selection import Zoom

WIDTH = 140
"""What fits on a line of so many characters stands on one."""


def draw(shown: Topology | Zoom | Difference, *of: Topology) -> str:
    """A part says all of itself, so what it is part `of` is not looked at."""
    return _text(as_data(shown)) + "\n"


def _text(value: Any, indent: int = 0) -> str:
    flat = json.dumps(value)
    if not isinstance(value, (dict, list)) or not value or (indent and indent + len(flat) <= WIDTH):
        return flat
    inner, edge = " " * (indent + 2), " " * indent
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _text(item, indent + 2) for item in value) + f"\n{edge}]"
    items = (f"{inner}{json.dumps(key)}: {_text(item, indent + 2)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + f"\n{edge}}}"
