"""The ranks of a component that work together along some dims of its mesh, and what they can do together.

    tp = self.collective("tp")
    tp.all_reduce(loss, "mean")             in place                     sum, mean, max, min
    tp.all_gather(hidden)                   a list, by rank              all_gather_joined: one tensor, joined
                                            along dim 0
    tp.reduce_scatter(grads)                this rank's share of dim 0   all_to_all: a tensor for each rank,
                                            and one from each
    tp.broadcast(weights, source=0)         in place
    tp.all_gather_object({"n": 3})          plain data and tensors, never pickled; broadcast_object likewise

Ranks are those of the collective, 0 .. size - 1: by the order of its dims, whatever the ranks are called in
the world. All of them call the same operations in the same order. A result shares no memory with what was
given, only `all_reduce` and `broadcast` work in place; nothing is differentiated through.

A collective of one rank needs no torch.distributed and gives what several would: the same code runs alone.
Any strided tensor will do, of any device: what the process group cannot carry is carried in another form
(bytes, a wider dtype, over CPU memory) and comes back as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from math import prod
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from meshctl.runtime.transports.buffers.frames import FrameError, pack, unpack
from meshctl.topology.mesh import even_split, shown
from meshctl.topology.sizes import whole

RUNNING = timedelta(days=30)
"""The timeout of operations: the launcher ends a job, not torch."""
Op = Literal["sum", "mean", "max", "min"]
_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
_WIDER = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}
"""Dtypes that are reduced as another, everywhere: gloo and NCCL have no operations on them, or other ones."""
_NOT_REDUCED = (torch.uint64,)
_gather = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)  # torch 2.13 gave them other names
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class CollectiveError(ValueError):
    """An operation that its ranks cannot do together; said before any of them waits for the others."""


class Collective:
    """Some ranks of a group's world, of which this process is one, and torch's process group under them."""

    def __init__(
        self,
        ranks: Sequence[int] = (0,),
        rank: int = 0,
        group: dist.ProcessGroup | None = None,
        device: torch.device = torch.device("cpu"),
    ) -> None:
        """`rank` is this process's index among `ranks`, `group` is none for a collective of one."""
        self.ranks = tuple(ranks)
        """Of the group's world."""
        self.rank = rank
        """This process's index among `ranks`."""
        self.device = device
        """Where its tensors live if nothing else is said: the worker's device."""
        self.closed = False
        self._group = group
        # torch numbers a process group by rising ranks: its i-th is our _order[i]-th.
        self._order = sorted(range(len(self.ranks)), key=self.ranks.__getitem__)
        self._seats = sorted(range(len(self.ranks)), key=self._order.__getitem__)
        self._in_order = self._order == list(range(len(self.ranks)))
        backends = dist.get_backend_config(group) if group is not None else ""
        self._backends = dict(pair.split(":") for pair in backends.split(",") if pair)

    @classmethod
    def of(
        cls, groups: Iterable[Sequence[int]], rank: int, device: torch.device = torch.device("cpu")
    ) -> Collective:
        """The one of `groups` that has `rank`. All ranks of the world call it together, with the same groups
        in the same order."""
        mine: tuple[int, ...] = (rank,)
        group = None
        for ranks in groups:
            made = _process_group(ranks, rank) if len(ranks) > 1 else None
            if rank in ranks:
                mine, group = tuple(ranks), made
        return cls(mine, mine.index(rank), group, device)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        return f"Collective(ranks={self.ranks}, rank={self.rank}{', closed' * self.closed})"

    # Operations on tensors

    def all_reduce(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """In place, and returned. Of bools, "max" is any and "min" is all; 16-bit floats are summed over gloo
        in 32 bits."""
        self._check("all_reduce", tensor)
        _check_op(tensor, op)
        if self._group is not None and tensor.numel():
            data = tensor.detach()
            sent = self._reducible(data)
            dist.all_reduce(sent, _OPS[op], group=self._group)
            if op == "mean":
                sent /= self.size
            if sent is not data:
                data.copy_(sent)
        return tensor

    def all_gather(self, tensor: Tensor, *, uneven: bool = False) -> list[Tensor]:
        """Every rank's tensor, by rank. All have one shape; `uneven` lets dim 0 differ, for one more
        exchange, of its sizes."""
        self._check("all_gather", tensor, dims=int(uneven))
        if not uneven:
            return list(self._rows(tensor))
        lengths = [int(length) for length in self._rows(torch.tensor(len(tensor)))]
        padded = tensor.detach().new_zeros((max(lengths), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor.detach()
        return [row[:length] for row, length in zip(self._rows(padded), lengths, strict=True)]

    def all_gather_joined(self, tensor: Tensor, *, uneven: bool = False) -> Tensor:
        """Every rank's tensor in one, joined along dim 0 by rank; tensors without dims make a vector."""
        if uneven:
            return torch.cat(self.all_gather(tensor, uneven=True))
        self._check("all_gather_joined", tensor)
        return self._rows(tensor).reshape(self.size * (len(tensor) if tensor.ndim else 1), *tensor.shape[1:])

    def reduce_scatter(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """This rank's share of the reduced tensor along dim 0; where the ranks do not divide it the first
        ones have one more."""
        self._check("reduce_scatter", tensor, dims=1)
        _check_op(tensor, op)
        data = tensor.detach()
        if self._group is None:
            return data.clone()
        total, shape = len(data), data.shape[1:]
        mine = len(even_split(total, self.size, self.rank))
        most = len(even_split(total, self.size, 0))
        if not data.numel():
            return data.new_empty((mine, *shape))
        if total % self.size:
            padded = data.new_zeros((self.size, most, *shape))
            for rank in range(self.size):
                part = even_split(total, self.size, rank)
                padded[rank, : len(part)] = data[part.start : part.stop]
            data = padded
        rows = self._reducible(data).view(self.size, -1)
        received = torch.empty_like(rows[0])
        _scatter(
            received, (rows if self._in_order else rows[self._order]).view(-1), _OPS[op], group=self._group
        )
        if op == "mean":
            received /= self.size
        return received.view(most, *shape)[:mine].to(tensor.device, tensor.dtype)

    def all_to_all(self, tensors: Sequence[Tensor], *, uneven: bool = False) -> list[Tensor]:
        """Gives the i-th tensor to the i-th rank; returns what each rank has given to this one, by rank.

        All have one shape; `uneven` lets dim 0 differ, for one more exchange, of its sizes.
        """
        self._check_list(tensors, uneven)
        first = tensors[0].detach()
        if self._group is None:
            return [first.clone()]
        lengths = [len(tensor) if uneven else 1 for tensor in tensors]
        wanted = (
            [int(length) for length in self._swapped(torch.tensor(lengths), [1] * self.size, [1] * self.size)]
            if uneven
            else lengths
        )
        each = first.shape[1:] if uneven else first.shape
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        got = self._swapped(
            flat, [length * prod(each) for length in lengths], [length * prod(each) for length in wanted]
        )
        parts = torch.split(got, [length * prod(each) for length in wanted])
        return [
            part.view(length, *each) if uneven else part.view(each)
            for part, length in zip(parts, wanted, strict=True)
        ]

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """In place, from the `source`-th rank of this collective, and returned."""
        self._check("broadcast", tensor)
        source = self._source(source)
        if self._group is not None and tensor.numel():
            data = tensor.detach()
            sent = self._carried(data)
            dist.broadcast(_bytes(sent), self.ranks[source], group=self._group)
            if sent is not data:
                data.copy_(sent)
        return tensor

    def barrier(self) -> None:
        """Returns when every rank has come here; what they have given their devices to do may still be
        running."""
        self._check_open("barrier")
        self.all_reduce(torch.zeros(1))

    # Operations on plain data

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every rank's value, by rank: plain data and tensors, which arrive in CPU memory."""
        self._check_open("all_gather_object")
        return [unpack(frame) for frame in self.all_gather(_packed(value), uneven=True)]

    def broadcast_object(self, value: Any = None, source: int = 0) -> Any:
        """The value of the `source`-th rank: plain data and tensors, which arrive in CPU memory. What the
        others give is passed over."""
        self._check_open("broadcast_object")
        source = self._source(source)
        frame = _packed(value) if source == self.rank else torch.empty(0, dtype=torch.uint8)
        length = int(self.broadcast(torch.tensor(len(frame)), source))
        return unpack(
            self.broadcast(frame if source == self.rank else torch.empty(length, dtype=torch.uint8), source)
        )

    def close(self) -> None:
        """Gives the process group back; every rank does it. Whoever needs one again asks
        `self.collective(...)` for a new one."""
        group, self._group, self.closed = self._group, None, True
        if group is not None and group is not dist.group.WORLD and dist.is_initialized():
            dist.destroy_process_group(group)

    # What carries them

    def _carrier(self, device: torch.device) -> torch.device:
        """Where a tensor of this device travels: gloo takes CPU memory, other backends that of their own
        device."""
        if device.type == "cpu" and "cpu" not in self._backends:
            return self.device
        return (
            device
            if device.type == "cpu" or self._backends.get(device.type, "gloo") != "gloo"
            else torch.device("cpu")
        )

    def _carried(self, data: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return data.to(self._carrier(data.device), dtype or data.dtype).contiguous()

    def _reducible(self, data: Tensor) -> Tensor:
        narrow = (
            data.is_floating_point()
            and data.dtype.itemsize < 4
            and self._backends.get(self._carrier(data.device).type) == "gloo"
        )
        return self._carried(data, torch.float32 if narrow else _WIDER.get(data.dtype))

    def _rows(self, tensor: Tensor) -> Tensor:
        """Every rank's tensor, stacked by rank."""
        data = tensor.detach()
        if self._group is None:
            return data.clone()[None]
        if not data.numel():
            return data.new_empty((self.size, *data.shape))
        sent = _bytes(self._carried(data))
        received = sent.new_empty(self.size * len(sent))
        _gather(received, sent, group=self._group)
        rows = received.view(data.dtype).view(self.size, *data.shape).to(data.device)
        return rows if self._in_order else rows[self._seats]

    def _swapped(self, flat: Tensor, gives: list[int], takes: list[int]) -> Tensor:
        """Elements for each rank, one rank's after the other's; returns those from each rank, likewise."""
        size, order = flat.element_size(), self._order
        sent = _bytes(_reordered(self._carried(flat), gives, order))
        received = sent.new_empty(sum(takes) * size)
        dist.all_to_all_single(
            received,
            sent,
            [takes[rank] * size for rank in order],
            [gives[rank] * size for rank in order],
            self._group,
        )
        return _reordered(received.view(flat.dtype), [takes[rank] for rank in order], self._seats).to(
            flat.device
        )

    # What is refused

    def _check_open(self, operation: str) -> None:
        if self.closed:
            raise CollectiveError(
                f"{operation}: this collective is closed; `self.collective(...)` makes a new one"
            )

    def _check(self, operation: str, tensor: Tensor, dims: int = 0) -> None:
        self._check_open(operation)
        if not isinstance(tensor, Tensor):
            raise CollectiveError(f"{operation} takes a tensor, not a {type(tensor).__name__}")
        if hasattr(tensor, "to_local"):
            raise CollectiveError(
                f"{operation} takes a plain tensor, not a DTensor: give its to_local() or its full_tensor()"
            )
        if tensor.layout is not torch.strided:
            raise CollectiveError(
                f"{operation} takes a strided tensor, not one of layout {str(tensor.layout).removeprefix('torch.')}"
            )
        if tensor.ndim < dims:
            raise CollectiveError(f"{operation} goes along dim 0, and this tensor has no dims")

    def _check_list(self, tensors: Sequence[Tensor], uneven: bool) -> None:
        if not isinstance(tensors, (list, tuple)):
            raise CollectiveError(
                f"all_to_all takes a list of tensors, one for each rank, not a {type(tensors).__name__}"
            )
        if len(tensors) != self.size:
            raise CollectiveError(
                f"all_to_all takes one tensor for each of the {self.size} ranks, here are {len(tensors)}"
            )
        for tensor in tensors:
            self._check("all_to_all", tensor, dims=int(uneven))
        kinds = {(tensor.dtype, tensor.device, tuple(tensor.shape[int(uneven) :])) for tensor in tensors}
        if len(kinds) > 1:
            said = " and ".join(
                sorted(
                    f"{list(tensor.shape)} {str(tensor.dtype)[6:]} on {tensor.device}" for tensor in tensors
                )
            )
            but = "but for the size of dim 0" if uneven else "(`uneven=True` lets dim 0 differ)"
            raise CollectiveError(
                f"all_to_all takes tensors of one dtype, device and shape {but}, here are {said}"
            )

    def _source(self, source: int) -> int:
        number = whole(source)
        if number is None or not 0 <= number < self.size:
            raise CollectiveError(
                f"the source of a broadcast is a rank of its collective, 0 to {self.size - 1}, not {source!r}"
            )
        return number


def _process_group(ranks: Sequence[int], rank: int) -> dist.ProcessGroup | None:
    """torch's, over `ranks`; none for a rank that is not one of them. The world is not made twice."""
    if not dist.is_initialized():
        raise CollectiveError(
            f"the ranks {shown(ranks)} work together, and this process has no torch.distributed"
        )
    world = dist.get_world_size()
    if dist.get_rank() != rank or max(ranks) >= world:
        raise CollectiveError(
            f"this process is rank {rank} and works with {shown(ranks)}; in torch's world it is rank {dist.get_rank()} of {world}"
        )
    if len(ranks) == world:
        return dist.group.WORLD
    made = dist.new_group(list(ranks), timeout=RUNNING)
    return made if rank in ranks else None


def _check_op(tensor: Tensor, op: str) -> None:
    kind = str(tensor.dtype).removeprefix("torch.")
    if op not in get_args(Op):
        raise CollectiveError(f"there is no reduction {op!r}, there are {', '.join(get_args(Op))}")
    if tensor.dtype in _NOT_REDUCED:
        raise CollectiveError(f"a tensor of {kind} cannot be reduced")
    if tensor.dtype == torch.bool and op in ("sum", "mean"):
        raise CollectiveError(
            f"bools have no {op}: count them as numbers, or reduce with max (any) or min (all)"
        )
    if tensor.is_complex() and op in ("max", "min"):
        raise CollectiveError(f"complex numbers have no {op}")
    if op == "mean" and not tensor.is_floating_point() and not tensor.is_complex():
        raise CollectiveError(f"the mean of {kind} need not be one: reduce it as a float, or by sum")


def _reordered(flat: Tensor, lengths: list[int], order: list[int]) -> Tensor:
    """Parts of these lengths, one after the other, in another order."""
    if order == sorted(order):
        return flat
    parts = torch.split(flat, lengths)
    return torch.cat([parts[index] for index in order])


def _packed(value: Any) -> Tensor:
    try:
        return pack(value)
    except (FrameError, RecursionError) as error:
        raise CollectiveError(str(error)) from None


def _bytes(tensor: Tensor) -> Tensor:
    """Of a contiguous tensor, as a view."""
    return tensor.reshape(-1).view(torch.uint8)
