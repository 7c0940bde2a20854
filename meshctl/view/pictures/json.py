"""The content of a picture as JSON: the fields of `plan/views`, as their docstrings describe them.

The same plan gives the same text. Its size grows with components and stages, not with devices.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from meshctl.plan.model import as_data
from meshctl.plan.views.topology import Topology

if TYPE_CHECKING:
    from meshctl.plan.views.difference import Difference
    from meshctl.plan.views.selection import Zoom


def draw(shown: Topology | Zoom | Difference, *of: Topology) -> str:
    """Returns the JSON text of a plan, of a part `of` it, or of a difference."""
    return json.dumps(data(shown), indent=2) + "\n"


def data(shown: Topology | Zoom | Difference) -> Any:
    """Returns plain data with the keys of the JSON format."""
    return as_data(shown)
