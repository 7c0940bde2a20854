"""One world of real processes over gloo for many checks. Each check runs in all processes, one check after
another.

    @check
    def sums(rank: int) -> None: ...

A check fails if a rank raises. The other ranks may wait for it, so the world ends at the first failed check.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from tests.hang import HANG_S

Check = Callable[[int], None]
PASSED = "passed"
LOADED_LATE = ("torch._dynamo", "torch.distributed.fsdp", "torch.testing")
"""The modules that torch imports in the first operations of a mesh. They are imported once, before the fork."""


def run(size: int, checks: Sequence[Check], folder: Path) -> dict[str, str]:
    """Returns name -> "passed", or the errors by rank, for each check. Processes are forked before the
    store's threads exist."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for module in LOADED_LATE:
        importlib.import_module(module)
    listener = socket.create_server(("127.0.0.1", 0))
    children = {}
    for rank in range(size):
        if pid := os.fork():
            children[rank] = pid
            continue
        try:
            _work(rank, size, listener.getsockname()[1], checks, folder)
        finally:
            os._exit(0)
    store = TCPStore(
        "127.0.0.1",
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    begun, end = 0, time.monotonic() + HANG_S
    try:
        while children and time.monotonic() < end and not list(folder.glob("*.failed")):
            children = {rank: pid for rank, pid in children.items() if _is_running(rank, pid, folder)}
            if (number := len(list(folder.iterdir()))) > begun:
                begun, end = number, time.monotonic() + HANG_S
            time.sleep(0.01)
    finally:
        for pid in children.values():
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        del store
    return {check.__name__: _verdict(check, size, folder) for check in checks}


def _is_running(rank: int, pid: int, folder: Path) -> bool:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended and os.WIFSIGNALED(status):
        (folder / f"{rank}.txt").write_text(f"it died of {signal.Signals(os.WTERMSIG(status)).name}")
        (folder / f"{rank}.failed").touch()
    return not ended


def _work(rank: int, size: int, port: int, checks: Sequence[Check], folder: Path) -> None:
    try:
        torch.set_num_threads(1)
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=HANG_S))
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=HANG_S)
        )
        for check in checks:
            doing = folder / f"{check.__name__}-{rank}"
            doing.touch()
            check(rank)
            dist.barrier()
            doing.write_text(json.dumps(PASSED))
        dist.destroy_process_group()
    except BaseException:
        (folder / f"{rank}.txt").write_text(traceback.format_exc())
        time.sleep(0.5)  # for others that fail in the same check
        (folder / f"{rank}.failed").touch()


def _verdict(check: Check, size: int, folder: Path) -> str:
    texts = []
    for rank in range(size):
        doing, fault = folder / f"{check.__name__}-{rank}", folder / f"{rank}.txt"
        if not doing.exists():
            texts.append(
                f"rank {rank} did not come here: {fault.read_text() if fault.exists() else 'it waits in an earlier check'}"
            )
        elif not doing.read_text():
            texts.append(f"rank {rank}: {fault.read_text() if fault.exists() else 'it waits here'}")
    return "\n".join(texts) or PASSED
