"""What only torch can tell, in a child of its own: its build, what it sees of the hardware, and whether two
ranks can meet.

torch is imported once; each thing that may hang or crash is done in a fork, with a time limit of its own.
Groups meet as in a run: on a store that listens on loopback only.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from meshctl.engines.checks.probe import Answer, forked

LOOK, MEET = 40.0, 40.0
"""Seconds for a driver to answer, and for ranks to meet."""
SECONDS = 60 + LOOK + 2 * MEET
"""For all of it; the import of torch may come from a slow disk."""
JOIN = timedelta(seconds=MEET)


def tell() -> dict[str, Any]:
    """All of it, as plain data; raises what the import of torch raises."""
    begin = time.monotonic()
    import torch
    import torch.distributed as dist

    seconds = time.monotonic() - begin
    (seen,) = forked([devices], LOOK)
    count = seen.said["count"] if seen.said and seen.said["kind"] == "cuda" else 0
    has_nccl = dist.is_available() and dist.is_nccl_available()
    return {
        "version": str(torch.__version__),
        "file": str(torch.__file__),
        "seconds": seconds,
        "cuda": str(torch.version.cuda or ""),
        "hip": str(torch.version.hip or ""),
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": has_nccl,
        "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else "",  # type: ignore[no-untyped-call]
        "devices": seen.said or {},
        "devices_wrong": seen.wrong,
        "gloo_wrong": _worst(meet("gloo", 2)),
        "nccl_wrong": _worst(meet("nccl", min(count, 2))) if has_nccl and count else "",
        "nccl_ranks": min(count, 2) if has_nccl else 0,
    }


def devices() -> dict[str, Any]:
    """What torch sees; calls the driver."""
    import torch

    here = torch.accelerator.current_accelerator()
    kind = here.type if here is not None else "cuda"
    found: dict[str, Any] = {
        "kind": kind,
        "count": 0,
        "error": "",
        "driver": 0,
        "names": [],
        "capabilities": [],
        "archs": [],
    }
    if torch.version.cuda:
        found["driver"] = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()
    if kind != "cuda":
        found["count"] = torch.accelerator.device_count()
        return found
    if torch.version.cuda or torch.version.hip:
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except (RuntimeError, AssertionError) as error:
            return found | {"error": " ".join(str(error).split())}
        found["count"] = torch.cuda.device_count()
        found["names"] = [torch.cuda.get_device_name(number) for number in range(found["count"])]
        found["capabilities"] = [
            list(torch.cuda.get_device_capability(number)) for number in range(found["count"])
        ]
        found["archs"] = torch.cuda.get_arch_list()
    return found


def meet(backend: str, ranks: int) -> list[Answer]:
    """Ranks that meet on loopback and add a tensor."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        return forked([partial(_rank, backend, rank, ranks, listener) for rank in range(ranks)], MEET)


def _rank(backend: str, rank: int, ranks: int, listener: socket.socket) -> float:
    import torch
    import torch.distributed as dist

    from meshctl.engines.node.rendezvous import connect, serve
    from meshctl.engines.node.worker_env import LOOPBACK

    host, port = listener.getsockname()
    os.environ |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
    torch.set_num_threads(1)
    if rank == 0:
        store = serve(listener)
    else:
        listener.close()
        store = connect(f"{host}:{port}")
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, store=dist.PrefixStore("world", store), rank=rank, world_size=ranks, timeout=JOIN
    )
    tensor = torch.full((1 << 16,), float(rank + 1), device=device)
    dist.all_reduce(tensor)
    found, right = float(tensor[-1]), ranks * (ranks + 1) / 2
    store.set(f"left/{rank}", "")
    store.wait([f"left/{other}" for other in range(ranks)], JOIN)
    if rank == 0:
        time.sleep(0.1)  # the others have read its answer
    if found != right:
        raise ArithmeticError(f"{ranks} ranks add up to {found}, not {right}")
    return found


def _worst(answers: list[Answer]) -> str:
    """The first thing that went wrong; one that waited for another in vain comes second."""
    wrong = [found.wrong for found in answers if found.wrong]
    return min(wrong, key=lambda text: "within" in text or "imeout" in text or "imed out" in text, default="")


def parse(answer: Answer) -> Mapping[str, Any]:
    """The answer of a probe of `tell`; where torch could not be imported, only `wrong` is in it."""
    return {"wrong": answer.wrong, **(answer.said or {})}
