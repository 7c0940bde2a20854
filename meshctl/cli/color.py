"""Decides whether output has colors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

WHEN = ("auto", "always", "never")


def has_color(out: TextIO, when: str = "auto", environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether output to a stream has colors. The first of these decides: `when` if it is not "auto",
    NO_COLOR, FORCE_COLOR or CLICOLOR_FORCE, and whether the stream is a terminal that can show colors."""
    if when != "auto":
        return when == "always"
    if environ.get("NO_COLOR"):
        return False
    if any(
        environ.get(name, "").lower() not in ("", "0", "false") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")
    ):
        return True
    return out.isatty() and environ.get("TERM") != "dumb" and environ.get("CLICOLOR") != "0"
