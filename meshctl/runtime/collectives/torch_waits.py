"""The time that a rank waits for torch's own collectives: those of FSDP2, DTensor and torch.distributed, as
they are called from Python.

    count_waits(progress)       from now on, the waits of this thread are part of its seconds in collectives

A rank that is slow in such a step waits less than its peers. On gloo the wait takes the time; with NCCL it
only adds to a stream, so the waits of ranks on CUDA stay unknown. Waits in C++ (DDP, compiled code) are not
counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

if TYPE_CHECKING:
    from meshctl.runtime.progress import Progress

_progress_of: dict[int, Progress] = {}
"""Thread -> the progress to which it adds its waits."""


def count_waits(progress: Progress) -> None:
    _progress_of[threading.get_ident()] = progress
    if not hasattr(functional.wait_tensor, "__wrapped__"):
        work: Any = dist.Work
        work.wait, functional.wait_tensor = _timed(work.wait), _timed(functional.wait_tensor)


def _timed(wait: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(wait)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return wait(*args, **kwargs)
        progress = _progress_of.get(threading.get_ident())
        if progress is None:
            return wait(*args, **kwargs)
        begin = perf_counter()
        try:
            return wait(*args, **kwargs)
        finally:
            progress.add_wait(perf_counter() - begin)

    return timed
