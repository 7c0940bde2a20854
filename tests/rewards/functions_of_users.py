"""Reward functions as users write them, in a module that neither loads torch nor belongs to meshctl."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def plain(response: str, solution: str) -> bool:
    return response == solution


def number(response: str) -> float:
    return float(response)


def several(response: str, *, scale: float = 1.0) -> dict[str, float]:
    return {"reward": scale * len(response), "words": len(response.split())}


def with_default(response: str, bonus: float = 0.5) -> float:
    return bonus


def types(value: object, tokens: list[int], flag: bool) -> dict[str, float]:
    assert value == {"a": (1, 2), 3: 2**70}, value
    assert tokens == [1, 2] and flag is True
    return {"reward": 1}


def process(response: str) -> float:
    return os.getpid()


def files(response: str) -> float:
    """Returns the number of open sockets and of other files than the standard ones."""
    return len([one for one in os.listdir("/proc/self/fd") if int(one) > 2])


def obedient(response: str, folder: str) -> float:
    """Does what the response asks for."""
    if response == "hang":
        Path(folder, f"hangs-{os.getpid()}").touch()
        Path(folder, "pid").write_text(str(os.getpid()))
        while True:
            time.sleep(60)
    if response == "start":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(folder, "child").write_text(str(child.pid))
        child.wait()
    if response == "die":
        os.kill(os.getpid(), 11)
    if response == "exit":
        sys.exit("enough")
    if response == "raise":
        raise KeyError("no such thing")
    if response == "nan":
        return float("nan")
    if response == "text":
        return "good"  # type: ignore[return-value]
    return 1.0
