"""Whether what is printed may have colours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

WHEN = ("auto", "always", "never")


def coloured(out: TextIO, when: str = "auto", environ: Mapping[str, str] = os.environ) -> bool:
    """What is said counts, then NO_COLOR, then FORCE_COLOR and CLICOLOR_FORCE; else a terminal that can show
    them gets them."""
    if when != "auto":
        return when == "always"
    if environ.get("NO_COLOR"):
        return False
    if any(
        environ.get(name, "").lower() not in ("", "0", "false") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")
    ):
        return True
    return out.isatty() and environ.get("TERM") != "dumb" and environ.get("CLICOLOR") != "0"
