"""The base class of transports. A transport is one way to carry frames to some job ranks.

A transport owns the memory of its frames (`lease`, `alloc`), sends messages (`post`), and calls
`DataPlane.on_message` for each message that it receives. `DataPlane` does the rest: slots, credits and
waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from meshctl.runtime.transports.buffers.frames import Frame, unpack


class Lease(NamedTuple):
    """Memory for one frame, from `lease` until it is delivered."""

    to: tuple[int, ...]
    """Job ranks of the receivers."""
    tag: int
    frame: Tensor
    """uint8 `[n]`."""
    out_of_band: Sequence[Tensor] = ()
    """Tensors that travel with the frame and are not copied into it."""
    state: Any = None
    """The transport's own record of the lease."""

    @property
    def nbytes(self) -> int:
        """The number of bytes in the frame and in the tensors that travel out of band."""
        return self.frame.nbytes + sum(tensor.nbytes for tensor in self.out_of_band)


@dataclass(eq=False, slots=True)
class Delivery:
    """A received frame with its out-of-band tensors."""

    frame: Tensor | bytes
    """uint8 `[n]`, or bytes where it is small."""
    out_of_band: Sequence[Tensor] = ()
    """uint8 `[n]` each."""
    is_complete: bool = True
    """False while a transfer from another device still brings some of the tensors."""

    @property
    def nbytes(self) -> int:
        """As `Lease.nbytes`."""
        return len(self.frame) + sum(tensor.nbytes for tensor in self.out_of_band)

    def value(self, device: torch.device | None = None) -> Any:
        """Returns the decoded value; tensors that were on a device are put on `device`. Raises
        `FrameError`."""
        return unpack(self.frame, self.out_of_band, device)


class Transfers(Protocol):
    """Moves tensors from one device to another (`nccl.PairTransfers`)."""

    def send(self, to: int, tensors: Sequence[Tensor]) -> None: ...
    def expect(
        self,
        source: int,
        sizes: Sequence[int],
        clear_to_send: Callable[[], None],
        on_received: Callable[[list[Tensor]], None],
    ) -> None: ...
    def clear_to_send(self, to: int) -> None: ...
    def close(self) -> None: ...


class Transport:
    """Base class with the behaviour of a transport that copies everything and shares no memory."""

    shares_memory = False
    """True if several job ranks may write to one frame, each to a part of it."""

    def alloc(self, nbytes: int) -> Tensor:
        """Returns uninitialized uint8 `[nbytes]`, which receivers read in place if they can."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def accepts(self, to: Sequence[int], is_final: bool, tensor: Tensor) -> bool:
        """Returns whether a tensor can travel out of band to the job ranks. `is_final`: nobody writes to the
        tensor any more, so receivers may read it in place."""
        return False

    def is_mappable(self, tensor: Tensor) -> bool:
        """Returns whether receivers can `concat` the tensor, and others behind it, without a copy."""
        return False

    def is_read_only(self, tensor: Tensor) -> bool:
        """Returns whether a received tensor is in memory of its producer, which this process cannot write."""
        return False

    def concat(self, tensors: list[Tensor]) -> Tensor:
        """Returns received tensors as one, along dim 0: mapped one after another where possible, else
        copied."""
        return torch.cat(tensors)

    def lease(self, to: Sequence[int], tag: int, nbytes: int, out_of_band: Sequence[Tensor] = ()) -> Lease:
        """Returns memory for a frame. The transport `accepts` all tensors of `out_of_band`."""
        return Lease(tuple(to), tag, torch.empty(nbytes, dtype=torch.uint8), out_of_band)

    def own_delivery(self, lease: Lease) -> Delivery:
        """Returns the delivery of a leased frame to this job rank itself, which is one of its receivers."""
        return Delivery(lease.frame, lease.out_of_band)

    def post(self, to: int, tag: int, lease: Lease, *, write: bool = False) -> None:
        """Sends a frame without waiting for the receiver's program. `write` invites the receiver to write to
        the frame."""
        raise NotImplementedError

    def needs_no_lease(self, to: Sequence[int], frame: Frame) -> bool:
        """Returns whether `post_frame` sends a frame to some job ranks, without memory for it."""
        return False

    def post_frame(self, to: Sequence[int], tag: int, frame: Frame) -> None:
        """Sends a frame from the memory of its tensors, which may change afterwards. It waits for the network
        at most, never for the receiver's program."""
        raise NotImplementedError

    def credit(self, to: int, tag: int) -> None:
        """Sends the credit for a received frame to its sender: a slot of the tag is free again."""
        raise NotImplementedError

    def reopen(self, job_ranks: Sequence[int]) -> None:
        """Closes the connections to peers whose processes have been replaced, and takes back the memory that
        was leased to them."""

    def forget(self) -> None:
        """Closes inherited descriptors in a forked child. Everything belongs to the parent process."""

    def announce_loss(self, lost: int) -> None:
        """Informs all connected peers that the job rank `lost` is lost. Never waits."""

    def leave(self) -> None:
        """Says goodbye after the last frame. Never waits."""

    def close(self) -> None:
        """Waits for the goodbyes of all peers, after `leave`, and releases everything."""

    def release(self) -> None:
        """Releases everything without waiting for peers."""


class Loopback(Transport):
    """The transport of a job rank that has no peers: it only sends to itself."""

    def accepts(self, to: Sequence[int], is_final: bool, tensor: Tensor) -> bool:
        return is_final and tensor.device.type not in ("cpu", "meta")

    def own_delivery(self, lease: Lease) -> Delivery:
        return Delivery(lease.frame, [flat(tensor) for tensor in lease.out_of_band])


def flat(tensor: Tensor) -> Tensor:
    """Returns the bytes of a tensor, uint8 `[n]`; a contiguous tensor is not copied."""
    whole = tensor.detach().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)  # one element may have any stride
