"""Finds the call site in the user's code, the innermost frame outside of this package and of torch."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType

import torch

from meshctl.package import PACKAGE_DIR
from meshctl.run.progress import SITE, padded

SITES_MAX = 4096
"""Number of call sites that are kept as text."""
_LIBRARIES = (str(PACKAGE_DIR / "runtime") + os.sep, str(Path(torch.__file__).parent) + os.sep)
"""Code in these folders is not the user's."""
_sites: dict[tuple[str, int], tuple[str, bytes]] = {}
_is_library: dict[str, bool] = {}


def call_site(frame: FrameType | None) -> tuple[str, bytes]:
    """Returns `FILE:LINE` of the innermost frame in the user's code, from `frame` on, as text and as in the
    progress record; empty texts where there is none."""
    while frame is not None:
        name = frame.f_code.co_filename
        library = _is_library.get(name)
        if library is None:
            library = _is_library[name] = name.startswith(_LIBRARIES)
        if not library:
            return _site(name, frame.f_lineno)
        frame = frame.f_back
    return _site("", 0)


def _site(name: str, line: int) -> tuple[str, bytes]:
    found = _sites.get((name, line))
    if found is None:
        if len(_sites) >= SITES_MAX:
            _sites.clear()
        text = f"{name.removeprefix(os.getcwd() + os.sep)}:{line}" if name else ""
        found = _sites[name, line] = text, padded(text, SITE.stop - SITE.start)
    return found
