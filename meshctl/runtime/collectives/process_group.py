"""torch's process groups, made for the ranks of a collective."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from meshctl.runtime.errors import CollectiveError
from meshctl.topology.mesh import shown

RUNNING = timedelta(days=30)
"""The timeout of torch's operations, which no job reaches: the launcher ends a job that hangs."""


def lift_timeouts() -> None:
    """Gives process groups that torch or a component makes without a timeout, as those of a mesh, the timeout
    `RUNNING`. torch's own is 30 minutes, and 10 for NCCL, after which it ends the process."""
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        if getattr(distributed_c10d, name, None) is not None:  # None in a torch without NCCL
            setattr(distributed_c10d, name, RUNNING)


def process_group(ranks: Sequence[int], rank: int) -> dist.ProcessGroup | None:
    """Returns torch's process group over `ranks`; None for a rank outside of it. For all ranks of the world
    it is torch's own WORLD. Raises `CollectiveError` if this process does not have `rank` in torch's
    world."""
    if not dist.is_initialized():
        raise CollectiveError(
            f"a collective of the ranks {shown(ranks)} needs torch.distributed, which is not initialized here"
        )
    world = dist.get_world_size()
    if dist.get_rank() != rank or max(ranks) >= world:
        raise CollectiveError(
            f"this process is rank {rank} and works with {shown(ranks)}; "
            f"in torch's world it is rank {dist.get_rank()} of {world}"
        )
    if len(ranks) == world:
        return dist.group.WORLD
    made = dist.new_group(list(ranks), timeout=RUNNING)
    return made if rank in ranks else None
