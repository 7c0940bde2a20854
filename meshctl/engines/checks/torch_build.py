"""Facts that torch reports about its build and its visible devices, as plain data.

`build` and `devices` run in the child process of a topic, because the import may be slow and a driver may
hang or crash.
"""

from __future__ import annotations

import importlib.util
import re
import time
from pathlib import Path
from typing import Any

STATED = {"__version__": "version", "cuda": "cuda", "hip": "hip"}
"""Name in torch's `version.py` -> key of the fact."""


def build() -> dict[str, Any]:
    """Imports torch and returns facts about its build. Returns only the key `error` if the import fails."""
    begin = time.monotonic()
    try:
        import torch
    except Exception as error:  # broken installations raise anything
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return {
        "version": str(torch.__version__),
        "file": str(torch.__file__),
        "seconds": time.monotonic() - begin,
        "cuda": str(torch.version.cuda or ""),
        "hip": str(torch.version.hip or ""),
    }


def read() -> dict[str, Any]:
    """Returns facts about the build from torch's `version.py`, which is read as text, without an import.
    Returns an empty dict if it is not found."""
    found = importlib.util.find_spec("torch")
    version = Path(found.origin).with_name("version.py") if found and found.origin else None
    if version is None or not version.is_file():
        return {}
    text = version.read_text()
    stated = {name: re.search(rf"^{name}\b.*=\s*['\"]([^'\"]*)", text, re.M) for name in STATED}
    facts = {STATED[name]: match[1] if match else "" for name, match in stated.items()}
    return {**facts, "file": str(found.origin) if found else ""}


def devices() -> dict[str, Any]:
    """Returns the devices that torch sees. Calls the driver."""
    import torch

    accelerator = torch.accelerator.current_accelerator()
    found: dict[str, Any] = {"kind": accelerator.type if accelerator is not None else "cuda", "count": 0}
    if torch.version.cuda:
        found["driver"] = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()
    if found["kind"] != "cuda":
        return found | {"count": torch.accelerator.device_count()}
    if not (torch.version.cuda or torch.version.hip):
        return found
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return found | {"error": " ".join(str(error).split())}
    numbers = range(torch.cuda.device_count())
    return found | {
        "count": len(numbers),
        "names": [torch.cuda.get_device_name(number) for number in numbers],
        "capabilities": [list(torch.cuda.get_device_capability(number)) for number in numbers],
        "archs": torch.cuda.get_arch_list(),
    }
