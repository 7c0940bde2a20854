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

WIDTH = 140
"""Columns of a value that is written on one line."""
KEYS = {
    "Exchange": {"distances": "ways"},
    "Flow": {
        **{"producer": "giver", "consumer": "taker", "producers": "speakers", "consumers": "hearers"},
        "distances": "ways",
    },
    "PlacedGroup": {"node_runs": "stretches"},
    "ComponentZoom": {"same_processes": "beside"},
    "Process": {"job_rank": "place"},
    "RankZoom": {"job_rank": "place", "job_size": "places"},
    "RankInMesh": {"is_leader": "speaks"},
    "RankRoute": {"is_producer": "gives", "leader": "teller"},
}
"""Class -> field -> key of the JSON, for keys that differ from the field. Scripts depend on the keys."""


def draw(shown: Topology | Zoom | Difference, *of: Topology) -> str:
    """Returns the JSON text of a plan, of a part `of` it, or of a difference."""
    return _text(data(shown)) + "\n"


def data(shown: Topology | Zoom | Difference) -> Any:
    """Returns plain data with the keys of the JSON format."""
    return as_data(shown, KEYS)


def _text(value: Any, indent: int = 0) -> str:
    flat = json.dumps(value)
    if not isinstance(value, (dict, list)) or not value or (indent and indent + len(flat) <= WIDTH):
        return flat
    inner, edge = " " * (indent + 2), " " * indent
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _text(item, indent + 2) for item in value) + f"\n{edge}]"
    items = (f"{inner}{json.dumps(key)}: {_text(item, indent + 2)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + f"\n{edge}}}"
