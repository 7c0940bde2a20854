"""The formats of a picture of a plan: one module for each.

    draw(topology)           every format: the whole plan; text has further arguments for width, color and
                             lines
    draw(zoom, topology)     one part of a plan
    draw(difference)         the difference of two plans

A new format is a module with `draw`, or a folder of them, and a line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from meshctl.dataclass import dataclass

if TYPE_CHECKING:
    from meshctl.plan.views.rank import Exchange
    from meshctl.plan.views.topology import Flow


@dataclass(frozen=True)
class Format:
    suffixes: tuple[str, ...]
    """The suffixes of files that are written in this format by default."""
    whole: str
    """The module that draws a whole plan."""
    zoom: str = ""
    """The module that draws one part of a plan; empty if there is none."""
    difference: str = ""
    """The module that draws the difference of two plans; empty if there is none."""
    selects: bool = False
    """True if the picture of a whole plan can open with a part selected."""


OVER: Mapping[str, str] = {
    "process": "in process",
    "node": "shared memory",
    "nodes": "tcp",
    "device": "cuda ipc",
    "devices": "nccl",
    "devices_or_nodes": "nccl or tcp",
}
"""The transport of a route, by its distance. Between nodes, samples are sent once to each node and shared in
memory there. The last three are for tensors on devices; tensors on the CPU use shared memory and tcp."""


def transports_of(route: Flow | Exchange, words: Mapping[str, str] = OVER) -> str:
    """Returns the transports of a route: `in process`, or `in process, cuda ipc` if its links differ."""
    return ", ".join(dict.fromkeys(words[distance] for distance in route.distances))


FORMATS: Mapping[str, Format] = {
    "text": Format((".txt",), "text.picture", zoom="text.zoom", difference="text.diff"),
    "json": Format((".json",), "json", zoom="json", difference="json"),
    "mermaid": Format((".mmd", ".mermaid"), "mermaid"),
    "svg": Format((".svg",), "svg"),
    "html": Format((".html", ".htm"), "html", selects=True),
}
