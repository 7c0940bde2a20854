"""The ranks of a component that work together along some dims of its mesh, and what they can do together.

A `Collective` of one rank needs no torch.distributed: every operation is the identity, so the same code runs alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from meshctl.mesh import DeviceMesh
from meshctl.runtime.frames import bytes_of

RUNNING = timedelta(days=30)
"""The timeout of operations: the launcher ends a job, not torch."""
Op = Literal["sum", "mean", "max", "min"]
_OPS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


@dataclass(frozen=True)
class Collective:
    ranks: tuple[int, ...]
    """Of the group's world; this process is one of them."""
    rank: int
    """This process's place among `ranks`."""
    group: dist.ProcessGroup | None = None
    """torch's process group; none for a collective of one."""

    @classmethod
    def along(cls, mesh: DeviceMesh, dims: Sequence[str], rank: int) -> Collective:
        """All ranks of the mesh call it together: each makes every group, in one order, and keeps its own."""
        mine = mesh.ranks_along(dims, rank)
        group = None
        if len(mine) > 1:
            for ranks in mesh.process_groups(dims):
                made = dist.new_group(list(ranks), timeout=RUNNING)
                group = made if ranks == mine else group
        return cls(mine, mine.index(rank), group)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_reduce(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """In place, and returned."""
        if self.group is not None:
            dist.all_reduce(tensor, _OPS[op], group=self.group)
            if op == "mean":
                tensor /= self.size
        return tensor

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, by rank; all have the same shape."""
        if self.group is None:
            return [tensor]
        gathered = [torch.empty_like(tensor) for _ in self.ranks]
        dist.all_gather(gathered, tensor.contiguous(), group=self.group)
        return gathered

    def all_gather_plain(self, value: Any) -> list[Any]:
        """Every rank's plain data (what JSON can say), by rank."""
        if self.group is None:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [int(size) for size in self.all_gather(torch.tensor([len(text)]))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(text)] = text
        return [json.loads(bytes_of(part[:size])) for part, size in zip(self.all_gather(padded), sizes, strict=True)]

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """In place, from the `source`-th rank of this collective, and returned."""
        if self.group is not None:
            dist.broadcast(tensor, group_src=source, group=self.group)
        return tensor

    def barrier(self) -> None:
        if self.group is not None:
            dist.barrier(group=self.group)
