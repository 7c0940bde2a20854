"""Components that send known values over every path between workers, and compare what arrives.

`doctor --run` runs them with the recipe `paths.yaml` beside this file. Each path is three stages: a receiver
asks for samples, a sender makes their rows, and a receiver takes them. The sender thus begins when the
receiver waits for it, so the time between its return and the receiver's call is that of the path.

Every value is computed from the number of its sample, of its element or of its rank, on both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from meshctl.dataclass import dataclass
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.collectives.collective import Collective
from meshctl.runtime.component import Component, copy_weights, endpoint
from meshctl.topology.mesh import even_split

PERIOD = 1021
"""Values repeat after this prime number of elements, so that a shift by a power of two shows."""


def row_values(numbers: Tensor, width: int) -> Tensor:
    """Returns the rows of these sample numbers, float32 `[n, width]`."""
    columns = torch.arange(width, device=numbers.device)
    return ((7 * numbers[:, None] + columns) % PERIOD).float()


def finish(device: torch.device) -> None:
    """Waits for the work that is queued on a device."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def gigabytes_per_s(nbytes: int, seconds: float) -> float:
    return nbytes / max(seconds, 1e-9) / 1e9


class Source(Component):
    """Asks for samples. It states their number, because a step begins with all sources that may end."""

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
        numbers = batch["number"].clone()
        rows = row_values(numbers.to(self.device), self.width)
        tokens = [torch.full((2 + int(number) % 3,), int(number)) for number in numbers]
        text = [str(int(number)) for number in numbers]
        node = torch.full((len(numbers),), self.node_rank)
        finish(self.device)
        sent = torch.full((len(numbers),), time.monotonic(), dtype=torch.float64)
        return batch.with_columns(row=rows, tokens=Ragged.of(tokens), text=text, node=node, sent=sent)

    @endpoint(collect="sum")
    def count(self, batch: Batch) -> float:
        """Returns a number for each rank, to be reduced on the way."""
        return float(batch["number"].sum())


class Receiver(Component):
    """Compares the rows that arrive."""

    def __init__(self, width: int) -> None:
        self.width = width

    @endpoint(collect="first")
    def take(self, batch: Batch) -> dict[str, float]:
        """Returns the number of rows and of wrong rows on all ranks."""
        finish(self.device)
        now = time.monotonic()
        wrong = 0
        if len(batch):
            rows, wrong, lane = batch["row"], self._count_wrong(batch), self._lane(batch)
            speed = gigabytes_per_s(rows.nbytes, now - float(batch["sent"].max()))
            self.log({lane: speed, f"{lane}_wrong": float(wrong)})
        total = self.collective("world").all_reduce(torch.tensor([len(batch), wrong]))
        return {"rows": float(total[0]), "wrong": float(total[1])}

    def _count_wrong(self, batch: Batch) -> int:
        rows, numbers = batch["row"], batch["number"].clone()
        is_wrong = (rows != row_values(numbers.to(rows.device), self.width)).any(1).cpu()
        for place, number in enumerate(numbers.tolist()):
            has_tokens = batch["tokens"][place].tolist() == [number] * (2 + number % 3)
            is_wrong[place] |= not has_tokens or batch["text"][place] != str(number)
        return int(is_wrong.sum())

    def _lane(self, batch: Batch) -> str:
        """Returns the transport by which the rows came, the name of a metric."""
        if batch["row"].device.type != "cpu":
            return "cuda"
        nodes = set(batch["node"].tolist())
        if self.device.type != "cpu" or len(nodes) > 1:
            return "mixed"
        return "shared_memory" if nodes == {self.node_rank} else "tcp"

    @endpoint(collect="sum")
    def compare(self, number: float, batch: Batch) -> dict[str, float]:
        """Compares a reduced number with that of all samples, which every rank has."""
        expected = float(batch["number"].sum())
        return {"rows": 1.0, "wrong": float(number != expected)}


class Mesh(Component):
    """Calls every collective along the mesh."""

    def __init__(self, elements: int) -> None:
        """`elements` is the number of float32 values of each rank."""
        self.elements = elements

    @endpoint(collect="sum")
    def exchange(self) -> dict[str, float]:
        """Returns the number of calls, and of those whose result was wrong."""
        peers, wrong = self.collective("fsdp"), 0.0
        values = [rank_values(rank, self.elements) for rank in range(peers.size)]
        for name, operation in OPERATIONS.items():
            own = values[peers.rank].to(self.device, copy=True)
            peers.barrier()
            finish(self.device)
            begin = time.monotonic()
            found = operation.call(peers, own)
            finish(self.device)
            speed = gigabytes_per_s(values[0].nbytes, time.monotonic() - begin)
            expected = operation.expected(values, peers.rank)
            is_wrong = float(not torch.equal(found.cpu(), expected))
            self.log({name: speed, f"{name}_wrong": is_wrong})
            wrong += is_wrong
        return {"rows": float(len(OPERATIONS)), "wrong": wrong}


def rank_values(rank: int, elements: int) -> Tensor:
    """Returns the values that a rank contributes, float32 `[elements]`."""
    return ((torch.arange(elements) + 13 * rank) % PERIOD).float()


@dataclass(frozen=True)
class Operation:
    call: Callable[[Collective, Tensor], Tensor]
    """Runs on every rank, with its own values."""
    expected: Callable[[Sequence[Tensor], int], Tensor]
    """Returns what a rank must get, from the values of all ranks."""


def _total(values: Sequence[Tensor], rank: int = 0) -> Tensor:
    return torch.stack(list(values)).sum(0)


def _share(tensor: Tensor, size: int, rank: int) -> Tensor:
    share = even_split(len(tensor), size, rank)
    return tensor[share.start : share.stop]


def _reduce(peers: Collective, own: Tensor) -> Tensor:
    found = peers.reduce(own, destination=0)
    return peers.broadcast(own if found is None else found, source=0)


def _gather_and_scatter(peers: Collective, own: Tensor) -> Tensor:
    return peers.scatter(peers.gather(own, destination=0), source=0)


def _all_to_all(peers: Collective, own: Tensor) -> Tensor:
    parts = [_share(own, peers.size, rank).contiguous() for rank in range(peers.size)]
    return torch.cat(peers.all_to_all(parts, uneven=True))


def _pass_on(peers: Collective, own: Tensor) -> Tensor:
    """Sends to the next rank and receives from the previous one."""
    after, before = (peers.rank + 1) % peers.size, (peers.rank - 1) % peers.size
    if peers.size == 1:
        return own
    if peers.rank == 0:
        peers.send(own, after)
        return peers.recv(before)
    found = peers.recv(before)
    peers.send(own, after)
    return found


OPERATIONS: Mapping[str, Operation] = {
    "all_reduce": Operation(lambda peers, own: peers.all_reduce(own), _total),
    "reduce": Operation(_reduce, _total),
    "all_gather": Operation(
        lambda peers, own: peers.all_gather_joined(own), lambda values, rank: torch.cat(list(values))
    ),
    "reduce_scatter": Operation(
        lambda peers, own: peers.reduce_scatter(own),
        lambda values, rank: _share(_total(values), len(values), rank),
    ),
    "broadcast": Operation(
        lambda peers, own: peers.broadcast(own, source=peers.size - 1), lambda values, rank: values[-1]
    ),
    "gather_scatter": Operation(_gather_and_scatter, lambda values, rank: values[rank]),
    "all_to_all": Operation(
        _all_to_all, lambda values, rank: torch.cat([_share(one, len(values), rank) for one in values])
    ),
    "send_recv": Operation(_pass_on, lambda values, rank: values[rank - 1]),
}
"""The operations of a collective that are compared."""


class Weights(Component):
    """Parameters that are split along one dim over all ranks: the two ends of a sync."""

    def __init__(self, size: int, dim: str, split: int) -> None:
        """Each parameter is float32 `[size, size]`. The mesh has the dim `dim`, along whose ranks the tensor
        dim `split` is split."""
        self.size, self.dim, self.split = size, dim, split

    def setup(self) -> None:
        self.module = nn.ParameterDict({name: self._parameter() for name in NAMES})
        sent = torch.zeros(1, dtype=torch.float64, device=self.device)
        self.module[SENT_AT] = nn.Parameter(sent, requires_grad=False)

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
        """Yields the name and this rank's part of each parameter."""
        for name in NAMES:
            parameter = self.module[name]
            yield name, parameter.to_local() if isinstance(parameter, DTensor) else parameter.data

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        if self.split == SENT:
            for name, own in self._own():
                own.copy_(self._expected(name, self.step))
            self.module[SENT_AT].data.fill_(time.monotonic())
        return self.module.named_parameters()

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        begin = time.monotonic()
        copy_weights(stream, self.module)
        finish(self.device)
        self.seconds = time.monotonic() - max(begin, float(self.module[SENT_AT]))

    @endpoint(collect="sum")
    def check(self) -> dict[str, float]:
        """Compares the parameters with what was sent in this step."""
        wrong, nbytes = 0.0, 0
        for name, own in self._own():
            wrong += not torch.equal(own.cpu(), self._expected(name, self.step))
            nbytes += own.nbytes
        self.log({"sync": gigabytes_per_s(nbytes, self.seconds)})
        return {"rows": float(len(NAMES)), "wrong": wrong}


NAMES = ("first", "second")
"""The parameters of `Weights` that are compared."""
SENT_AT = "sent_at"
"""Its parameter with the time at which a sync began."""
SENT = 0
"""The tensor dim along which the sender of a sync is split."""
