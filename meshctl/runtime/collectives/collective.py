"""Collective operations over the ranks of a component whose coordinates differ only in some dims.

    tp = self.collective("tp")
    tp.all_reduce(loss, "mean")             in place; see `reductions.py` for the operations
    tp.reduce(loss, destination=0)          the result on one rank
    tp.all_gather(hidden)                   a list by rank; `all_gather_joined` concatenates along dim 0
    tp.gather(hidden, destination=0)        the same list on one rank
    tp.reduce_scatter(grads)                this rank's share of dim 0 of the reduced tensor
    tp.scatter(parts, source=0)             one tensor of a list for each rank
    tp.all_to_all(parts)                    a tensor to each rank, and one from each rank
    tp.broadcast(weights, source=0)         in place
    tp.send(tensor, to=1), tp.recv(1)       point to point
    tp.all_gather_object({"n": 3})          plain data and tensors, never pickled; also `broadcast_object`
    tp.differentiable.all_gather(hidden)    with a gradient; also `reduce_scatter` and `all_to_all`
    tp.group                                torch's process group

A rank, as in `destination`, is a number in the collective: 0 to size - 1, in the order of its dims. All ranks
call the same operations in the same order. A result shares no memory with its input, except that `all_reduce`
and `broadcast` work in place. Only the operations of `differentiable` have a gradient.

A collective of one rank needs no torch.distributed and returns what several ranks would, so the same code
runs without a launcher. Every strided tensor of every device is accepted: what the process group cannot carry
is carried in another form (as bytes, in a wider dtype, through CPU memory) and returned as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshctl.runtime.collectives.arguments import (
    check_reduction,
    check_tensor,
    check_tensors,
    checked_rank,
    dtype_name,
    extent,
    gather_form,
)
from meshctl.runtime.collectives.differentiable import DifferentiableCollective
from meshctl.runtime.collectives.process_group import process_group
from meshctl.runtime.collectives.reductions import REDUCTIONS, WIDER, Op
from meshctl.runtime.errors import CollectiveError as CollectiveError
from meshctl.runtime.progress import CollectiveCalls, Progress
from meshctl.runtime.transports.buffers.frames import FrameError, pack, unpack
from meshctl.topology.mesh import even_split

# torch 2.13 renamed these two.
_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Collective:
    """Ranks of a group's world, of which this process is one, and torch's process group over them."""

    def __init__(
        self,
        ranks: Sequence[int] = (0,),
        rank: int = 0,
        group: dist.ProcessGroup | None = None,
        device: torch.device = torch.device("cpu"),
        calls: CollectiveCalls | None = None,
    ) -> None:
        """`rank` is this process's index among `ranks`. `group` is None for a collective of one. `calls`
        counts the operations."""
        self.ranks = tuple(ranks)
        """The ranks in the group's world."""
        self.rank = rank
        """The index of this process among `ranks`."""
        self.device = device
        """The worker's device: where received tensors are made if nothing else decides it."""
        self.closed = False
        self._group = group
        # The operations of a collective of one rank are not counted: it has no peer to agree with.
        self._calls = calls if calls and group is not None else Progress().calls_of("")
        # torch numbers the ranks of a process group in rising order: its rank i is rank _order[i] here, and
        # rank i here is its rank _torch_ranks[i].
        self._order = sorted(range(len(self.ranks)), key=self.ranks.__getitem__)
        self._torch_ranks = sorted(range(len(self.ranks)), key=self._order.__getitem__)
        self._is_in_order = self._order == list(range(len(self.ranks)))
        backends = dist.get_backend_config(group) if group is not None else ""
        self._backends = dict(pair.split(":") for pair in backends.split(",") if pair)

    @classmethod
    def of(
        cls,
        groups: Iterable[Sequence[int]],
        rank: int,
        device: torch.device = torch.device("cpu"),
        calls: CollectiveCalls | None = None,
    ) -> Collective:
        """Returns the collective of the group that contains `rank`.

        All ranks of the world call it together, with the same groups in the same order.
        """
        mine: tuple[int, ...] = (rank,)
        group = None
        for ranks in groups:
            made = process_group(ranks, rank) if len(ranks) > 1 else None
            if rank in ranks:
                mine, group = tuple(ranks), made
        return cls(mine, mine.index(rank), group, device, calls)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def group(self) -> dist.ProcessGroup | None:
        """torch's process group, for code that takes one; None for a collective of one rank.

        torch numbers its ranks in rising order of their ranks in the world, whatever the order of `ranks`.
        """
        return self._group

    @cached_property
    def differentiable(self) -> DifferentiableCollective:
        """The operations that have a gradient."""
        return DifferentiableCollective(self)

    def __repr__(self) -> str:
        return f"Collective(ranks={self.ranks}, rank={self.rank}{', closed' * self.closed})"

    # Reductions

    def all_reduce(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Reduces in place and returns the tensor. Over gloo, 16-bit floats are reduced in 32 bits."""
        self._check("all_reduce", tensor)
        check_reduction(tensor, op)
        if self._group is None:
            return tensor
        with self._calls.call(("all_reduce", op, tensor.dtype, extent(tensor))):
            data = tensor.detach()
            result = self._reduced(data, op)
            if result is not data:
                data.copy_(result)
        return tensor

    def reduce(self, tensor: Tensor, destination: int = 0, op: Op = "sum") -> Tensor | None:
        """Returns the reduced tensor on the rank `destination`, and None on the others."""
        self._check("reduce", tensor)
        check_reduction(tensor, op)
        destination = self._peer("reduce", destination)
        data = tensor.detach()
        if self._group is None:
            return data.clone() if self.rank == destination else None
        with self._calls.call(("reduce", op, destination, data.dtype, extent(data))):
            result = self._reduced_on(destination, data, op)
        return result.to(tensor.device, tensor.dtype) if self.rank == destination else None

    def reduce_scatter(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Returns this rank's share of dim 0 of the reduced tensor. Of n rows, the first `n mod size` ranks
        get one more than the others."""
        self._check("reduce_scatter", tensor, dims=1)
        check_reduction(tensor, op)
        data = tensor.detach()
        share = even_split(len(data), self.size, self.rank)
        if self._group is None:
            return data[share.start : share.stop].clone()
        with self._calls.call(("reduce_scatter", op, data.dtype, data.shape)):
            return self._reduce_scattered(data, share, op)

    def _reduce_scattered(self, data: Tensor, share: range, op: Op) -> Tensor:
        torch_op = REDUCTIONS[op].torch_op
        if torch_op is None or not data.numel():
            return self._reduced(data, op)[share.start : share.stop].clone()
        rows = self._reducible(self._in_equal_shares(data)).view(self.size, -1)
        received = torch.empty_like(rows[0])
        rows = rows if self._is_in_order else rows[self._order]
        _scatter_single(received, rows.view(-1), torch_op, group=self._group)
        if op == "mean":
            received /= self.size
        shape = (-1, *data.shape[1:])
        return received.view(shape)[: len(share)].to(data.device, data.dtype)

    def _reduced(self, data: Tensor, op: Op) -> Tensor:
        """Returns the reduced tensor, with the device and dtype in which it was reduced. It is `data` itself
        where that was reduced in place."""
        torch_op = REDUCTIONS[op].torch_op
        if not data.numel():
            return data
        if torch_op is None:
            return REDUCTIONS[op].of_rows(self._rows(data))
        sent = self._reducible(data)
        dist.all_reduce(sent, torch_op, group=self._group)
        if op == "mean":
            sent /= self.size
        return sent

    def _reduced_on(self, destination: int, data: Tensor, op: Op) -> Tensor:
        """Returns the reduced tensor on the rank `destination`, and any tensor on the others."""
        torch_op = REDUCTIONS[op].torch_op
        if torch_op is None or not data.numel():
            return self._reduced(data, op).clone()
        result = self._reducible(data).clone()
        dist.reduce(result, self.ranks[destination], torch_op, group=self._group)
        if op == "mean":
            result /= self.size
        return result

    def _in_equal_shares(self, data: Tensor) -> Tensor:
        """Returns `data` with dim 0 padded so that every rank's share has the same number of rows."""
        total = len(data)
        if total % self.size == 0:
            return data
        longest = len(even_split(total, self.size, 0))
        padded = data.new_zeros((self.size, longest, *data.shape[1:]))
        for rank in range(self.size):
            share = even_split(total, self.size, rank)
            padded[rank, : len(share)] = data[share.start : share.stop]
        return padded

    # Gathers and scatters

    def all_gather(self, tensor: Tensor, *, uneven: bool = False) -> list[Tensor]:
        """Returns every rank's tensor, by rank. All have one shape; with `uneven` dim 0 may differ, which
        costs one more exchange."""
        self._check("all_gather", tensor, dims=int(uneven))
        with self._calls.call(gather_form("all_gather", tensor, uneven)):
            return self._gathered_uneven(tensor) if uneven else list(self._rows(tensor))

    def _gathered_uneven(self, tensor: Tensor) -> list[Tensor]:
        lengths = [int(length) for length in self._rows(torch.tensor(len(tensor)))]
        padded = tensor.detach().new_zeros((max(lengths), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor.detach()
        return [row[:length] for row, length in zip(self._rows(padded), lengths, strict=True)]

    def all_gather_joined(self, tensor: Tensor, *, uneven: bool = False) -> Tensor:
        """Returns the tensors of all ranks, concatenated along dim 0; tensors without dims become a
        vector."""
        self._check("all_gather_joined", tensor, dims=int(uneven))
        with self._calls.call(gather_form("all_gather_joined", tensor, uneven)):
            if uneven:
                return torch.cat(self._gathered_uneven(tensor))
            rows = self._rows(tensor)
        return rows.flatten(0, 1) if tensor.ndim else rows

    def gather(self, tensor: Tensor, destination: int = 0) -> list[Tensor] | None:
        """Returns every rank's tensor, by rank, on the rank `destination`, and None on the others."""
        self._check("gather", tensor)
        destination = self._peer("gather", destination)
        data = tensor.detach()
        with self._calls.call(("gather", destination, data.dtype, extent(data))):
            return self._gathered_on(destination, data)

    def _gathered_on(self, destination: int, data: Tensor) -> list[Tensor] | None:
        if self._group is None or not data.numel():
            return [data.clone() for _ in self.ranks] if self.rank == destination else None
        sent = _bytes(self._carried(data))
        is_destination = self.rank == destination
        received = [torch.empty_like(sent) for _ in self.ranks] if is_destination else None
        dist.gather(sent, received, self.ranks[destination], group=self._group)
        if received is None:
            return None
        parts = [part.view(data.dtype).view(data.shape).to(data.device) for part in received]
        return [parts[number] for number in self._torch_ranks]

    def scatter(self, tensors: Sequence[Tensor] | None = None, source: int = 0) -> Tensor:
        """Returns this rank's tensor of the list that the rank `source` gives; the others give None.

        All tensors have one shape, dtype and device type. They are announced in one exchange of plain data.
        """
        self._check_open("scatter")
        source = self._peer("scatter", source)
        if self.rank == source:
            self._check_list("scatter", tensors, uneven=False)
        if self._group is None:
            return (tensors or ())[0].detach().clone()
        parts = [part.detach() for part in tensors or ()] if self.rank == source else []
        with self._calls.call(("scatter", source)):
            return self._scattered(parts, source)

    def _scattered(self, parts: Sequence[Tensor], source: int) -> Tensor:
        """Returns this rank's tensor of `parts`, which only the rank `source` has."""
        form = [list(parts[0].shape), dtype_name(parts[0].dtype), parts[0].device.type] if parts else None
        shape, dtype, kind = self.broadcast_object(form, source)
        device = parts[0].device if parts else self._received_device(kind)
        received = torch.empty(shape, dtype=getattr(torch, dtype), device=self._carrier(device))
        if not received.numel():
            return received.to(device)
        order = [_bytes(self._carried(parts[number])) for number in self._order] if parts else None
        dist.scatter(_bytes(received), order, self.ranks[source], group=self._group)
        return received.to(device)

    def all_to_all(self, tensors: Sequence[Tensor], *, uneven: bool = False) -> list[Tensor]:
        """Sends the i-th tensor to the i-th rank. Returns the tensors that the ranks sent to this one, by
        rank.

        All have one shape; with `uneven` dim 0 may differ, which costs one more exchange.
        """
        self._check_list("all_to_all", tensors, uneven)
        first = tensors[0].detach()
        if self._group is None:
            return [first.clone()]
        equal = ("uneven", *first.shape[1:]) if uneven else (extent(first),)
        with self._calls.call(("all_to_all", first.dtype, *equal)):
            return self._all_to_all(tensors, first, uneven)

    def _all_to_all(self, tensors: Sequence[Tensor], first: Tensor, uneven: bool) -> list[Tensor]:
        lengths = [len(tensor) if uneven else 1 for tensor in tensors]
        received_lengths = lengths
        if uneven:
            ones = [1] * self.size
            received_lengths = [int(length) for length in self._exchanged(torch.tensor(lengths), ones, ones)]
        shape = first.shape[1:] if uneven else first.shape
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        counts = [length * prod(shape) for length in lengths]
        received_counts = [length * prod(shape) for length in received_lengths]
        parts = torch.split(self._exchanged(flat, counts, received_counts), received_counts)
        if not uneven:
            return [part.view(shape) for part in parts]
        return [part.view(length, *shape) for part, length in zip(parts, received_lengths, strict=True)]

    # One rank to others

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Copies the tensor of the rank `source` into every rank's tensor, and returns it."""
        self._check("broadcast", tensor)
        source = self._peer("broadcast", source)
        if self._group is None:
            return tensor
        with self._calls.call(("broadcast", source, tensor.dtype, tensor.numel())):
            if tensor.numel():
                data = tensor.detach()
                sent = self._carried(data)
                dist.broadcast(_bytes(sent), self.ranks[source], group=self._group)
                if sent is not data:
                    data.copy_(sent)
        return tensor

    def send(self, tensor: Tensor, to: int) -> None:
        """Sends a tensor to another rank of the collective, which calls `recv`. After the return the tensor
        may be changed."""
        self._check("send", tensor)
        peer = self._other("send", to)
        data = tensor.detach()
        form = _packed([list(data.shape), dtype_name(data.dtype), data.device.type])
        for message in (torch.tensor(len(form)), form, _bytes(self._carried(data))):
            if message.numel():
                dist.send(self._on_backend(message), peer, group=self._group)

    def recv(self, source: int) -> Tensor:
        """Returns the tensor that the rank `source` sends. It is on this worker's device where that has the
        same type as the sender's, else in CPU memory."""
        self._check_open("recv")
        peer = self._other("recv", source)
        length = int(self._received(peer, 1, torch.int64))
        shape, dtype, kind = unpack(self._received(peer, length, torch.uint8).cpu())
        device, found = self._received_device(kind), getattr(torch, dtype)
        nbytes = prod(shape) * found.itemsize
        if not nbytes:
            return torch.empty(shape, dtype=found, device=device)
        return (
            self._received(peer, nbytes, torch.uint8, self._carrier(device))
            .view(found)
            .view(shape)
            .to(device)
        )

    def _received(
        self, peer: int, size: int, dtype: torch.dtype, device: torch.device = torch.device("cpu")
    ) -> Tensor:
        message = self._on_backend(torch.empty(size, dtype=dtype, device=device))
        dist.recv(message, peer, group=self._group)
        return message

    def _on_backend(self, message: Tensor) -> Tensor:
        return message.to(self._carrier(message.device))

    def barrier(self) -> None:
        """Returns when every rank has called it. Work that the ranks gave to their devices may still be
        running."""
        self._check_open("barrier")
        with self._calls.call(("barrier",)):
            self.all_reduce(torch.zeros(1))

    # Plain data

    def all_gather_object(self, value: Any) -> list[Any]:
        """Returns every rank's value, by rank: plain data and tensors, which arrive in CPU memory."""
        self._check_open("all_gather_object")
        with self._calls.call(("all_gather_object",)):
            return [unpack(frame) for frame in self.all_gather(_packed(value), uneven=True)]

    def broadcast_object(self, value: Any = None, source: int = 0) -> Any:
        """Returns the value of the rank `source`: plain data and tensors, which arrive in CPU memory. The
        values of the other ranks are ignored."""
        self._check_open("broadcast_object")
        source = self._peer("broadcast_object", source)
        is_source = source == self.rank
        frame = _packed(value) if is_source else torch.empty(0, dtype=torch.uint8)
        with self._calls.call(("broadcast_object", source)):
            length = int(self.broadcast(torch.tensor(len(frame)), source))
            received = frame if is_source else torch.empty(length, dtype=torch.uint8)
            return unpack(self.broadcast(received, source))

    def close(self) -> None:
        """Destroys the process group; every rank calls it. `self.collective(...)` makes a new one."""
        group, self._group, self.closed = self._group, None, True
        if group is not None and group is not dist.group.WORLD and dist.is_initialized():
            dist.destroy_process_group(group)

    # Carriers

    def _carrier(self, device: torch.device) -> torch.device:
        """Returns the device through which a tensor of `device` travels: gloo takes CPU memory, other
        backends take that of their own device."""
        if device.type == "cpu" and "cpu" not in self._backends:
            return self.device
        is_direct = device.type == "cpu" or self._backends.get(device.type, "gloo") != "gloo"
        return device if is_direct else torch.device("cpu")

    def _received_device(self, kind: str) -> torch.device:
        """Returns the device on which a tensor from a device of the type `kind` is received."""
        return self.device if self.device.type == kind else torch.device("cpu")

    def _carried(self, data: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return data.to(self._carrier(data.device), dtype or data.dtype).contiguous()

    def _reducible(self, data: Tensor) -> Tensor:
        """Returns the tensor in a dtype that its backend reduces. gloo would add 16-bit floats in 16 bits."""
        is_gloo = self._backends.get(self._carrier(data.device).type) == "gloo"
        if is_gloo and data.is_floating_point() and data.dtype.itemsize < 4:
            return self._carried(data, torch.float32)
        return self._carried(data, WIDER.get(data.dtype))

    def _rows(self, tensor: Tensor) -> Tensor:
        """Returns every rank's tensor, stacked by rank."""
        data = tensor.detach()
        if self._group is None:
            return data.clone()[None]
        if not data.numel():
            return data.new_empty((self.size, *data.shape))
        sent = _bytes(self._carried(data))
        received = sent.new_empty(self.size * len(sent))
        _gather_single(received, sent, group=self._group)
        rows = received.view(data.dtype).view(self.size, *data.shape).to(data.device)
        return rows if self._is_in_order else rows[self._torch_ranks]

    def _exchanged(self, flat: Tensor, counts: list[int], received_counts: list[int]) -> Tensor:
        """Sends the parts of `flat` to the ranks: the next `counts[i]` elements to the rank i. Returns the
        received parts one after another: `received_counts[i]` elements from the rank i."""
        size, order = flat.element_size(), self._order
        sent = _bytes(_reordered(self._carried(flat), counts, order))
        received = sent.new_empty(sum(received_counts) * size)
        sizes, received_sizes = ([some[rank] * size for rank in order] for some in (counts, received_counts))
        dist.all_to_all_single(received, sent, received_sizes, sizes, self._group)
        by_torch_rank = [received_counts[rank] for rank in order]
        return _reordered(received.view(flat.dtype), by_torch_rank, self._torch_ranks).to(flat.device)

    # Refusals

    def _check_open(self, operation: str) -> None:
        if self.closed:
            raise CollectiveError(
                f"{operation}: this collective is closed; `self.collective(...)` makes a new one"
            )

    def _check(self, operation: str, tensor: object, dims: int = 0) -> None:
        self._check_open(operation)
        check_tensor(operation, tensor, dims)

    def _check_list(self, operation: str, tensors: object, uneven: bool) -> None:
        self._check_open(operation)
        check_tensors(operation, tensors, self.size, uneven)

    def _peer(self, operation: str, rank: int) -> int:
        return checked_rank(operation, rank, self.size)

    def _other(self, operation: str, rank: int) -> int:
        """Returns the rank of a peer in the group's world."""
        if self._peer(operation, rank) == self.rank:
            raise CollectiveError(f"{operation} needs another rank, and {self.rank} is this one")
        return self.ranks[rank]


def _reordered(flat: Tensor, lengths: list[int], order: list[int]) -> Tensor:
    """Returns consecutive parts of these lengths in another order."""
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
    """Returns the bytes of a contiguous tensor as a view."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # one element may have any stride
