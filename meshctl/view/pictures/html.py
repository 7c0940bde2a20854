"""The topology as a page: one file that loads nothing, with the data of the JSON format and a script that
derives the rest.

    page.html    the frame          page.css     the style
    mesh.js      the arithmetic     page.js      the behavior, with map.js, pipeline.js and worker.js

The size of the page grows with components and not with devices. Its policy forbids the network, and all
styles and scripts except these, by their hashes. Names from recipes are data, and are escaped in text.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from importlib.resources import files
from typing import Any

from meshctl.plan.views.selection import Selection
from meshctl.plan.views.topology import Topology
from meshctl.text.bounded import UNSEEN
from meshctl.topology.cluster import DIRECT
from meshctl.view.pictures import OVER
from meshctl.view.pictures.colors import HUES, properties
from meshctl.view.pictures.json import data
from meshctl.view.pictures.svg import escaped

SCRIPTS = ("mesh.js", "page.js", "map.js", "pipeline.js", "worker.js")
GAP = re.compile(r"\{([a-z_]+)\}")
HUE = """\
.hN { background: var(--hN-tint); color: var(--hN-text); border-color: var(--hN-line) }
.fN { background: var(--hN-line) }
"""
UNSAFE = re.compile("[<>&\ud800-\udfff]")
"""Characters that could end a script or begin a comment, and surrogates."""


def draw(topology: Topology, selection: Selection = Selection()) -> str:
    """Returns the page, with the selection made when it opens."""
    known = f"const HUES = {len(HUES)}, OVER = {as_json(OVER)}, DIRECT = {json.dumps(DIRECT)};"
    hues = "".join(HUE.replace("N", str(number)) for number in range(len(HUES)))
    css, script = (
        f"\n:root {{ {properties()}}}\n{hues}{_read('page.css')}",
        "\n".join(['"use strict";', known, *map(_read, SCRIPTS), "begin();"]),
    )
    chosen = "{}:{}".format(*selection.rank) if selection.rank else ""
    others = {"component": selection.component, "dim": selection.dim, "node": selection.node}
    parts = {
        "policy": policy(css, script),
        "title": escaped(f"{topology.name} · meshctl"),
        "style": css,
        "script": script,
        "facts": as_json(data(topology)),
        "first": as_json({"select": chosen, **others, "samples": selection.samples}),
    }
    return GAP.sub(lambda gap: parts[gap[1]], _read("page.html"))


def _read(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def policy(css: str, script: str) -> str:
    """Returns the content security policy of a page that loads nothing, with one style and one script."""
    style, code = (b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (css, script))
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{code}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def as_json(data: Any) -> str:
    """Returns JSON for a script element. Names cannot end the element, because special characters are
    escaped. The page shows invisible characters as escapes."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    text = UNSEEN.sub(lambda found: json.dumps(ascii(found[0])[1:-1])[1:-1], text)
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
