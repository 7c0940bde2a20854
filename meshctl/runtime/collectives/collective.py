"""Collective operations over the ranks of a component whose coordinates differ only in some dims.

    tp = self.collective("tp")
    tp.all_reduce(loss, "mean")             in place; see `Op` for the operations
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

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import cached_property
from math import prod
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from meshctl.runtime.errors import CollectiveError as CollectiveError
from meshctl.runtime.progress import CollectiveCalls, Form, Progress
from meshctl.runtime.transports.buffers.frames import FrameError, pack, tensor_of, unpack
from meshctl.topology.mesh import even_split, shown
from meshctl.topology.sizes import whole

RUNNING = timedelta(days=30)
"""The timeout of torch's operations, which no job reaches: the launcher ends a job that hangs."""

Op = Literal["sum", "mean", "product", "max", "min"]
TORCH_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
"""Reduction -> torch's operation. The sum is divided for a mean."""
REFUSED = {
    "bools": "sum mean product",
    "integers": "mean",
    "floats": "",
    "complex numbers": "product max min",
}
"""Kind of dtypes -> the reductions that do not exist for it."""
ADVICE = {
    "bools": ": count them as numbers, or reduce with max (any) or min (all)",
    "integers": ": reduce it as a float, or by sum",
}
WIDER = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}
"""Dtype -> the dtype that it is reduced as. gloo and NCCL reduce different dtypes; what one of them lacks is
reduced as a wider one everywhere, so that a component gives the same result on both."""

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
        return f"Collective(ranks={self.ranks}, rank={self.rank})"

    # Reductions

    def all_reduce(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Reduces in place and returns the tensor. Over gloo, 16-bit floats are reduced in 32 bits."""
        self._check("all_reduce", tensor, op=op)
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
        self._check("reduce", tensor, op=op)
        destination = self._peer("reduce", destination)
        data = tensor.detach()
        if self._group is None:
            return data.clone() if self.rank == destination else None
        with self._calls.call(("reduce", op, destination, data.dtype, extent(data))):
            result = self._reduced(data.clone(), op, destination)
        return result.to(tensor.device, tensor.dtype) if self.rank == destination else None

    def reduce_scatter(self, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Returns this rank's share of dim 0 of the reduced tensor. Of n rows, the first `n mod size` ranks
        get one more than the others."""
        self._check("reduce_scatter", tensor, dims=1, op=op)
        data = tensor.detach()
        share = even_split(len(data), self.size, self.rank)
        if self._group is None:
            return data[share.start : share.stop].clone()
        with self._calls.call(("reduce_scatter", op, data.dtype, data.shape)):
            if not data.numel():
                return data[share.start : share.stop].clone()
            parts = [even_split(len(data), self.size, rank) for rank in range(self.size)]
            if len(data) % self.size:
                shares = torch.split(data, list(map(len, parts)))
                data = torch.nn.utils.rnn.pad_sequence(list(shares), batch_first=True)
            rows = self._reducible(data).view(self.size, -1)
            received = torch.empty_like(rows[0])
            rows = rows if self._is_in_order else rows[self._order]
            _scatter_single(received, rows.view(-1), TORCH_OPS[op], group=self._group)
            mine = self._averaged(received, op).view((-1, *tensor.shape[1:]))
            return mine[: len(share)].to(data.device, data.dtype)

    def _reduced(self, data: Tensor, op: Op, destination: int | None = None) -> Tensor:
        """Returns the reduced tensor, with the device and dtype in which it was reduced. It is `data` itself
        where that was reduced in place."""
        if not data.numel():
            return data
        sent = self._reducible(data)
        if destination is None:
            dist.all_reduce(sent, TORCH_OPS[op], group=self._group)
        else:
            dist.reduce(sent, self.ranks[destination], TORCH_OPS[op], group=self._group)
        return self._averaged(sent, op)

    def _averaged(self, total: Tensor, op: Op) -> Tensor:
        return total.div_(self.size) if op == "mean" else total

    # Gathers and scatters

    def all_gather(self, tensor: Tensor, *, uneven: bool = False) -> list[Tensor]:
        """Returns every rank's tensor, by rank. All have one shape; with `uneven` dim 0 may differ, which
        costs one more exchange."""
        self._check("all_gather", tensor, dims=int(uneven))
        with self._calls.call(_form_of("all_gather", tensor, uneven)):
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
        with self._calls.call(_form_of("all_gather_joined", tensor, uneven)):
            if uneven:
                return torch.cat(self._gathered_uneven(tensor))
            rows = self._rows(tensor)
        return rows.flatten(0, 1) if tensor.ndim else rows

    def gather(self, tensor: Tensor, destination: int = 0) -> list[Tensor] | None:
        """Returns every rank's tensor, by rank, on the rank `destination`, and None on the others."""
        self._check("gather", tensor)
        destination = self._peer("gather", destination)
        data, shape, size = tensor.detach(), tensor.shape, tensor.numel()
        if self._group is None:
            return [data.clone()]
        with self._calls.call(("gather", destination, data.dtype, extent(data))):
            counts = [size * (rank == destination) for rank in range(self.size)]
            received = [size * (self.rank == destination)] * self.size
            flat = self._exchanged(data.reshape(-1), counts, received)
        parts = torch.split(flat, received)
        return [part.view(shape) for part in parts] if self.rank == destination else None

    def scatter(self, tensors: Sequence[Tensor] | None = None, source: int = 0) -> Tensor:
        """Returns this rank's tensor of the list that the rank `source` gives; the others give None.

        All tensors have one shape, dtype and device type. They are announced in one exchange of plain data.
        """
        source = self._peer("scatter", source)
        if self.rank == source:
            self._check_list("scatter", tensors, uneven=False)
        if self._group is None:
            return (tensors or ())[0].detach().clone()
        parts = [part.detach() for part in tensors or ()] if self.rank == source else []
        form = [list(parts[0].shape), _name(parts[0].dtype), parts[0].device.type] if parts else None
        with self._calls.call(("scatter", source)):
            shape, dtype, kind = self.broadcast_object(form, source)
            none = torch.empty(0, dtype=getattr(torch, dtype), device=self._received_device(kind))
            flat = torch.cat([part.reshape(-1) for part in parts]) if parts else none
            size = prod(shape)
            received = [size * (rank == source) for rank in range(self.size)]
            return self._exchanged(flat, [size * bool(parts)] * self.size, received).view(shape)

    def all_to_all(self, tensors: Sequence[Tensor], *, uneven: bool = False) -> list[Tensor]:
        """Sends the i-th tensor to the i-th rank. Returns the tensors that the ranks sent to this one, by
        rank.

        All have one shape; with `uneven` dim 0 may differ, which costs one more exchange.
        """
        self._check_list("all_to_all", tensors, uneven)
        first = tensors[0].detach()
        if self._group is None:
            return [first.clone()]
        with self._calls.call(_form_of("all_to_all", first, uneven)):
            lengths = [len(tensor) if uneven else 1 for tensor in tensors]
            received_lengths = lengths
            if uneven:
                ones = [1] * self.size
                received_lengths = [int(one) for one in self._exchanged(torch.tensor(lengths), ones, ones)]
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
        form = _packed([list(data.shape), _name(data.dtype), data.device.type])
        for message in (torch.tensor(len(form)), form, _bytes(self._carried(data))):
            if message.numel():
                dist.send(message.to(self._carrier(message.device)), peer, group=self._group)

    def recv(self, source: int) -> Tensor:
        """Returns the tensor that the rank `source` sends. It is on this worker's device where that has the
        same type as the sender's, else in CPU memory."""
        peer = self._other("recv", source)
        length = int(self._received(peer, 1, torch.int64))
        shape, dtype, kind = unpack(self._received(peer, length, torch.uint8).cpu())
        device, found = self._received_device(kind), getattr(torch, dtype)
        nbytes = prod(shape) * found.itemsize
        if not nbytes:
            return torch.empty(shape, dtype=found, device=device)
        received = self._received(peer, nbytes, torch.uint8, self._carrier(device))
        return received.view(found).view(shape).to(device)

    def _received(
        self, peer: int, size: int, dtype: torch.dtype, device: torch.device = torch.device("cpu")
    ) -> Tensor:
        message = torch.empty(size, dtype=dtype, device=self._carrier(device))
        dist.recv(message, peer, group=self._group)
        return message

    def barrier(self) -> None:
        """Returns when every rank has called it. Work that the ranks gave to their devices may still be
        running."""
        with self._calls.call(("barrier",)):
            self.all_reduce(torch.zeros(1))

    # Plain data

    def all_gather_object(self, value: Any) -> list[Any]:
        """Returns every rank's value, by rank: plain data and tensors, which arrive in CPU memory."""
        with self._calls.call(("all_gather_object",)):
            return [unpack(frame) for frame in self.all_gather(_packed(value), uneven=True)]

    def broadcast_object(self, value: Any = None, source: int = 0) -> Any:
        """Returns the value of the rank `source`: plain data and tensors, which arrive in CPU memory. The
        values of the other ranks are ignored."""
        source = self._peer("broadcast_object", source)
        is_source = source == self.rank
        frame = _packed(value) if is_source else torch.empty(0, dtype=torch.uint8)
        with self._calls.call(("broadcast_object", source)):
            length = int(self.broadcast(torch.tensor(len(frame)), source))
            received = frame if is_source else torch.empty(length, dtype=torch.uint8)
            return unpack(self.broadcast(received, source))

    # Carriers

    def _carrier(self, device: torch.device) -> torch.device:
        """Returns the device through which a tensor of `device` travels: gloo takes CPU memory, other
        backends take that of their own device."""
        if device.type == "cpu" and "cpu" not in self._backends:
            return self.device
        is_direct = device.type == "cpu" or self._backends.get(device.type, "gloo") != "gloo"
        return device if is_direct else torch.device("cpu")

    def _received_device(self, kind: str) -> torch.device:
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

    # Refusals, which are raised before any rank waits

    def _check(self, operation: str, tensor: object, dims: int = 0, op: str = "") -> None:
        """Requires a plain, strided tensor with at least `dims` dims, and a dtype that `op` reduces."""
        if not isinstance(tensor, Tensor):
            raise CollectiveError(f"{operation} takes a tensor, not a {type(tensor).__name__}")
        if hasattr(tensor, "to_local"):
            raise CollectiveError(
                f"{operation} takes a plain tensor, not a DTensor: give its to_local() or its full_tensor()"
            )
        if tensor.layout is not torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise CollectiveError(f"{operation} takes a strided tensor, not one of layout {layout}")
        if tensor.ndim < dims:
            raise CollectiveError(f"{operation} goes along dim 0, but this tensor has no dims")
        if op and (reason := refusal(tensor.dtype, op)):
            raise CollectiveError(reason)

    def _check_list(self, operation: str, tensors: object, uneven: bool) -> None:
        """Requires a tensor for each rank, all of one dtype, device and shape; with `uneven` dim 0 may
        differ."""
        count = len(tensors) if isinstance(tensors, (list, tuple)) else f"a {type(tensors).__name__}"
        if count != self.size:
            raise CollectiveError(
                f"{operation} takes a list with one tensor for each of the {self.size} ranks, not {count}"
            )
        assert isinstance(tensors, (list, tuple))
        for tensor in tensors:
            self._check(operation, tensor, dims=int(uneven))
        if len({(tensor.dtype, tensor.device, tuple(tensor.shape[int(uneven) :])) for tensor in tensors}) > 1:
            forms = {f"{list(tensor.shape)} {_name(tensor.dtype)} on {tensor.device}" for tensor in tensors}
            rule = "except for the size of dim 0" if uneven else "(`uneven=True` lets dim 0 differ)"
            same = "of one dtype, device and shape" + f" {rule}" * (operation == "all_to_all")
            raise CollectiveError(f"{operation} takes tensors {same}, not {' and '.join(sorted(forms))}")

    def _peer(self, operation: str, rank: int) -> int:
        number = whole(rank)
        if number is None or not 0 <= number < self.size:
            ranks = f"0 to {self.size - 1}"
            raise CollectiveError(f"{operation} names a rank of its collective, {ranks}, not {rank!r}")
        return number

    def _other(self, operation: str, rank: int) -> int:
        if self._peer(operation, rank) == self.rank:
            raise CollectiveError(f"{operation} needs another rank, and {self.rank} is this one")
        return self.ranks[rank]


Tensors = tuple[Tensor, ...]
Operation = Callable[..., Tensors]


class DifferentiableCollective:
    """The operations of a collective that have a gradient: `self.collective("tp").differentiable`. Tensors
    are floats or complex numbers.

    The gradient of an operation is another collective operation, so all ranks run the backward pass together
    and in the same order, as they ran the forward pass.

    | forward | backward |
    | --- | --- |
    | all_gather | reduce_scatter by sum: every rank's loss uses every rank's tensor |
    | reduce_scatter | all_gather, divided by the number of ranks for a mean |
    | all_to_all | all_to_all |
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective

    def all_gather(self, tensor: Tensor, *, uneven: bool = False) -> Tensor:
        """Returns the tensors of all ranks, concatenated along dim 0, as `Collective.all_gather_joined`
        does."""
        it, has_dims, lengths = self._collective, bool(tensor.ndim), list[int]()

        def forward(tensor: Tensor) -> Tensors:
            if not uneven:
                return (it.all_gather_joined(tensor),)
            parts = it.all_gather(tensor, uneven=True)
            lengths.extend(map(len, parts))
            return (torch.cat(parts),)

        def backward(grad: Tensor) -> Tensors:
            if uneven:
                parts = torch.split(grad, lengths)
                return (torch.stack(it.all_to_all(parts, uneven=True)).sum(0),)
            share = it.reduce_scatter(grad)
            return (share if has_dims else share[0],)

        [gathered] = _applied(forward, backward, tensor)
        return gathered

    def reduce_scatter(self, tensor: Tensor, op: Literal["sum", "mean"] = "sum") -> Tensor:
        """Returns this rank's share of dim 0 of the sum or mean, as `Collective.reduce_scatter` does."""
        if op not in ("sum", "mean"):
            raise CollectiveError(f"a differentiable reduce_scatter is by sum or mean, not {op!r}")
        it = self._collective

        def backward(grad: Tensor) -> Tensors:
            whole = it.all_gather_joined(grad, uneven=True)
            return (whole / it.size if op == "mean" else whole,)

        [share] = _applied(lambda tensor: (it.reduce_scatter(tensor, op),), backward, tensor)
        return share

    def all_to_all(self, tensors: Sequence[Tensor], *, uneven: bool = False) -> list[Tensor]:
        """Sends the i-th tensor to the i-th rank and returns those received, as `Collective.all_to_all`
        does."""

        def exchange(*parts: Tensor) -> Tensors:
            return tuple(self._collective.all_to_all(parts, uneven=uneven))

        return list(_applied(exchange, exchange, *tensors))


class _Applied(Function):
    """An operation whose gradient is another operation."""

    @staticmethod
    def forward(ctx: Any, run: Operation, gradient: Operation, *tensors: Tensor) -> Tensors:
        ctx.gradient = gradient
        return run(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, *ctx.gradient(*grads)


def _applied(run: Operation, gradient: Operation, *tensors: Tensor) -> Tensors:
    results: Tensors = _Applied.apply(run, gradient, *tensors)  # type: ignore[no-untyped-call]
    return results


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


def refusal(dtype: torch.dtype, op: str) -> str:
    """Returns the reason why tensors of a dtype cannot be reduced by `op`, or an empty text."""
    if op not in TORCH_OPS:
        return f"{op!r} is not a reduction; the reductions are {', '.join(TORCH_OPS)}"
    if dtype == torch.uint64:
        return "a tensor of uint64 cannot be reduced"
    kind = "complex numbers" if dtype.is_complex else "floats" if dtype.is_floating_point else "integers"
    kind = "bools" if dtype == torch.bool else kind
    if op not in REFUSED[kind].split():
        return ""
    return f"{_name(dtype) if kind in ('integers', 'floats') else kind} have no {op}{ADVICE.get(kind, '')}"


def extent(tensor: Tensor) -> tuple[int, ...]:
    """Returns the part of a shape that must be equal on all ranks: all sizes other than 1."""
    return tuple([size for size in tensor.shape if size != 1])


def _form_of(operation: str, tensor: Tensor, uneven: bool) -> Form:
    """Returns the part of the arguments of an operation that must be equal on all ranks."""
    equal = ("uneven", *tensor.shape[1:]) if uneven else (extent(tensor),)
    return operation, tensor.dtype, *equal


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _reordered(flat: Tensor, lengths: list[int], order: list[int]) -> Tensor:
    if order == sorted(order):
        return flat
    parts = torch.split(flat, lengths)
    return torch.cat([parts[index] for index in order])


def _packed(value: Any) -> Tensor:
    try:
        return tensor_of(pack(value))
    except (FrameError, RecursionError) as error:
        raise CollectiveError(str(error)) from None


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # one element may have any stride
