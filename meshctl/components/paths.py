"""The components of `meshctl doctor --run`, which runs them with the recipe `paths.yaml` beside this file.
Each computes what must arrive from the numbers of samples, elements or ranks, and raises if something else
does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.component import Component, copy_weights, endpoint

PERIOD = 1021
"""Values repeat after this prime number of elements, so that a shift by a power of two shows."""


def expect(is_right: bool, what: str) -> None:
    """Raises `RuntimeError` for a wrong value."""
    if not is_right:
        raise RuntimeError(f"{what}: wrong values arrived")


def row_values(numbers: Tensor, width: int) -> Tensor:
    """Returns the rows of these sample numbers, float32 `[n, width]`."""
    columns = torch.arange(width, device=numbers.device)
    return ((7 * numbers[:, None] + columns) % PERIOD).float()


def tokens_of(number: int) -> Tensor:
    return torch.full((2 + number % 3,), number)


class Source(Component):
    """Returns the numbers of its samples. It has a length, because a source without one may end in any step,
    and each step would begin with a call of it."""

    def __len__(self) -> int:
        return 1 << 40

    @endpoint
    def ask(self, samples: range) -> Batch:
        numbers = torch.tensor(samples, dtype=torch.int64)
        return Batch({"number": numbers}, ids=numbers)


class Sender(Component):
    """Makes the rows of samples: numbers, a few tokens, and text."""

    def __init__(self, width: int) -> None:
        """`width` is the number of float32 values of a row."""
        self.width = width

    @endpoint
    def make(self, batch: Batch) -> Batch:
        rows = row_values(batch["number"].to(self.device), self.width)
        numbers = batch["number"].tolist()
        tokens = Ragged.of([tokens_of(number) for number in numbers])
        return batch.with_columns(row=rows, tokens=tokens, text=[str(number) for number in numbers])

    @endpoint(collect="sum")
    def count(self, batch: Batch) -> float:
        """Returns a number for each rank, to be reduced on the way."""
        return float(batch["number"].sum())


class Receiver(Component):
    """Compares the rows that arrive."""

    def __init__(self, width: int, samples: int) -> None:
        """`samples` is the number of samples of a step."""
        self.width, self.samples = width, samples

    @endpoint(collect="sum")
    def take(self, batch: Batch) -> dict[str, float]:
        """Compares every value, and the samples of all ranks: each one has arrived equally often."""
        seen = torch.zeros(self.samples)
        if len(batch):
            rows, numbers = batch["row"], batch["number"].clone()
            expect(torch.equal(rows, row_values(numbers.to(rows.device), self.width)), "rows")
            for place, number in enumerate(numbers.tolist()):
                expect(batch["tokens"][place].tolist() == tokens_of(number).tolist(), "tokens")
                expect(batch["text"][place] == str(number), "text")
            seen += torch.bincount(numbers % self.samples, minlength=self.samples)
        seen = self.collective("world").all_reduce(seen)
        expect(bool(seen.min() == seen.max()) and bool(seen.all()), "samples")
        return {"rows": float(len(batch))}

    @endpoint(collect="sum")
    def compare(self, number: float, batch: Batch) -> dict[str, float]:
        """Compares a reduced number with that of all samples, which every rank has."""
        expect(number == float(batch["number"].sum()), "a reduced number")
        return {"rows": 1.0}


class Mesh(Component):
    """Calls collectives along the mesh."""

    def __init__(self, elements: int) -> None:
        """`elements` is the number of float32 values of each rank."""
        self.elements = elements

    def _values(self, rank: int) -> Tensor:
        values = (torch.arange(self.elements) + 13 * rank) % PERIOD
        return values.float().to(self.device)

    @endpoint(collect="sum")
    def exchange(self) -> dict[str, float]:
        peers = self.collective("fsdp")
        rank, size = peers.rank, peers.size
        all_values = [self._values(one) for one in range(size)]
        total = torch.stack(all_values).sum(0)
        parts = [list(values.tensor_split(size)) for values in all_values]
        found = {
            "all_reduce": (peers.all_reduce(self._values(rank)), total),
            "all_gather": (peers.all_gather_joined(self._values(rank)), torch.cat(all_values)),
            "reduce_scatter": (peers.reduce_scatter(self._values(rank)), total.tensor_split(size)[rank]),
            "broadcast": (peers.broadcast(self._values(rank), source=size - 1), all_values[-1]),
            "all_to_all": (
                torch.cat(peers.all_to_all(parts[rank], uneven=True)),
                torch.cat([one[rank] for one in parts]),
            ),
        }
        for name, (result, expected) in found.items():
            expect(torch.equal(result, expected), name)
        return {"rows": float(len(found))}


class Weights(Component):
    """Parameters that are split along one dim over all ranks: the two ends of a sync."""

    def __init__(self, size: int, dim: str, split: int) -> None:
        """Each parameter is float32 `[size, size]`. The mesh has the dim `dim`, along whose ranks the tensor
        dim `split` is split."""
        self.size, self.dim, self.split = size, dim, split

    def setup(self) -> None:
        self.module = nn.ParameterDict({name: self._parameter() for name in NAMES})

    def _parameter(self) -> nn.Parameter:
        empty = torch.zeros(self.size, self.size, device=self.device)
        if self.world_size > 1:
            empty = distribute_tensor(empty, self.torch_mesh[self.dim], [Shard(self.split)])
        return nn.Parameter(empty, requires_grad=False)

    def _expected(self, name: str, step: int) -> Tensor:
        """Returns this rank's part of a parameter after the sync of a step."""
        numbers = torch.arange(self.size)
        whole = (31 * numbers[:, None] + numbers + 17 * step + NAMES.index(name)) % PERIOD
        return whole.float().chunk(self.world_size, self.split)[self.rank]

    def _own(self) -> Iterator[tuple[str, Tensor]]:
        for name in NAMES:
            parameter = self.module[name]
            yield name, parameter.to_local() if isinstance(parameter, DTensor) else parameter.data

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        if self.split == SENT:
            for name, own in self._own():
                own.copy_(self._expected(name, self.step))
        return self.module.named_parameters()

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        copy_weights(stream, self.module)

    @endpoint(collect="sum")
    def check(self) -> dict[str, float]:
        """Compares the parameters with what was sent in this step."""
        for name, own in self._own():
            expect(torch.equal(own.cpu(), self._expected(name, self.step)), f"weights `{name}`")
        return {"rows": float(len(NAMES))}


NAMES = ("first", "second")
"""The parameters of `Weights`."""
SENT = 0
"""The tensor dim along which the sender of a sync is split."""
