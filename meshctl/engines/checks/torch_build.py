"""Facts that torch reports about its build and its visible devices, as plain data.

Both functions run in the child process of a topic, because the import may be slow and a driver may hang or
crash.
"""

from __future__ import annotations

import time
from typing import Any


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
