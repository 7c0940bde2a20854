"""What all contenders of the data plane's benchmarks move: every element of a sample is the sample's number,
so it can be checked.

Nothing but torch is needed: the peers' interpreters import it too.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SAMPLES = 256
FIELDS = {"tokens": torch.int64, "logp": torch.float32, "reward": torch.float16, "mask": torch.int16}
WIDTH = 16
"""Bytes of one element of all fields."""


def share(rank: int, ranks: int) -> range:
    """The samples of one of so many equal ranks."""
    return range(rank * SAMPLES // ranks, (rank + 1) * SAMPLES // ranks)


def columns(nbytes: int, rank: int, ranks: int) -> dict[str, Tensor]:
    """A rank's share of `nbytes` in all, `[samples, elements]` each, in memory of its own: pickle ships all
    that a view is a part of."""
    return {
        name: column.clone()
        for name, column in fields_of(flat(nbytes, rank, ranks), len(share(rank, ranks))).items()
    }


def flat(nbytes: int, rank: int, ranks: int) -> Tensor:
    """The same columns one after another in one piece of memory, uint8."""
    mine = share(rank, ranks)
    memory = torch.empty(nbytes * len(mine) // SAMPLES, dtype=torch.uint8)
    for column in fields_of(memory, len(mine)).values():
        column.copy_(torch.arange(mine.start, mine.stop)[:, None].expand_as(column))
    return memory


def fields_of(memory: Tensor, samples: int) -> dict[str, Tensor]:
    """The columns that lie in uint8 `[n]`, as views."""
    elements, at, found = len(memory) // WIDTH, 0, {}
    for name, dtype in FIELDS.items():
        found[name] = memory[at : at + elements * dtype.itemsize].view(dtype).view(samples, -1)
        at += elements * dtype.itemsize
    return found


def lengths_of(nbytes: int) -> Tensor:
    """int64 `[samples]`: log-normal, at least 1, `nbytes` in all."""
    total = nbytes // WIDTH
    drawn = torch.empty(SAMPLES).log_normal_(0, 0.5, generator=torch.Generator().manual_seed(0))
    lengths = (drawn / drawn.sum() * (total - SAMPLES)).long() + 1
    lengths[: total - int(lengths.sum())] += 1
    assert int(lengths.sum()) == total
    return lengths


def check(found: Mapping[str, Tensor], samples: Tensor) -> None:
    """Raises `ValueError` unless each row of every column is all its sample's number; `samples` is int64
    `[n]`."""
    for name, dtype in FIELDS.items():
        column = found[name]
        if (
            column.dtype != dtype
            or len(column) != len(samples)
            or not bool((column.reshape(len(column), -1) == samples[:, None]).all())
        ):
            raise ValueError(f"column {name} is not what was sent")


def touch(column: Tensor) -> None:
    """Reads both ends."""
    values = column.reshape(-1)
    values[0].item(), values[-1].item()
