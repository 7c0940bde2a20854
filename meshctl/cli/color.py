"""Whether output has colors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

WHEN = ("auto", "always", "never")


def has_color(out: TextIO, when: str = "auto", environ: Mapping[str, str] = os.environ) -> bool:
    """Whether output to a stream has colors: `when` decides, then NO_COLOR, then FORCE_COLOR and
    CLICOLOR_FORCE, and otherwise whether the stream is a terminal that can show them."""
    if when != "auto":
        return when == "always"
    if environ.get("NO_COLOR"):
        return False
    if any(
        environ.get(name, "").lower() not in ("", "0", "false") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")
    ):
        return True
    return out.isatty() and environ.get("TERM") != "dumb" and environ.get("CLICOLOR") != "0"
