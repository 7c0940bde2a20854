"""torch's process groups, made for the ranks of a collective."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from meshctl.runtime.errors import CollectiveError
from meshctl.topology.mesh import shown

RUNNING = timedelta(days=30)
"""The timeout of torch's operations, which no job reaches: the launcher ends a job that hangs."""


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
