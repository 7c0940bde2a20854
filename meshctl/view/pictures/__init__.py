"""How a plan looks: a file for each format.

    draw(topology)           every format: the whole plan; text also takes the width, whether in colour and
                             the number of lines
    draw(zoom, topology)     a file that draws one part more closely
    draw(difference)         a file that draws what changes from one plan to another

A new format is a file here with `draw`, or a folder of them, and a line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    suffixes: tuple[str, ...]
    """Of files that are written in it where nothing else is said."""
    whole: str
    """The file here that draws all of it."""
    zoom: str = ""
    """The file that draws one part; empty where none does."""
    difference: str = ""
    selects: bool = False
    """Whether it draws the whole with the part chosen."""


OVER: Mapping[str, str] = {
    "process": "in process",
    "node": "shared memory",
    "nodes": "tcp",
    "device": "cuda ipc",
    "devices": "nccl",
}
"""By which way a route's samples travel, from how far it goes. Between nodes they go once to each node, and
on there in shared memory. The last two are for tensors that lie on devices; what lies on the CPU beside them
goes by shared memory and tcp."""

FORMATS: Mapping[str, Format] = {
    "text": Format((".txt",), "text.picture", zoom="text.zoom", difference="text.diff"),
    "json": Format((".json",), "json", zoom="json", difference="json"),
    "mermaid": Format((".mmd", ".mermaid"), "mermaid"),
    "svg": Format((".svg",), "svg"),
    "html": Format((".html", ".htm"), "html", selects=True),
}
