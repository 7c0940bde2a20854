"""What a user writes: a class that derives from `Component`, with endpoints that stages call.

    class Sampler(Component):
        @endpoint(dispatch="slice_dp", collect="flatten")
        def sample(self, batch: Batch) -> Batch: ...

In a run, the worker gives the component its place and means before `setup()`. Alone, in a notebook or a test,
the same class works on one process: a mesh of one rank and collectives of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.collective import Collective, CollectiveError
from meshctl.topology.mesh import DeviceMesh, MeshError
from meshctl.topology.modes import CollectMode, DispatchMode, ExecuteMode

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

Method = TypeVar("Method", bound=Callable[..., Any])


class ComponentError(ValueError):
    """What a component has to say to whoever runs it: the message stands for itself, no traceback is shown."""


@dataclass(frozen=True)
class Endpoint:
    """The defaults of a stage that calls this method; the recipe may say otherwise."""

    dispatch: str | DispatchMode = "slice_dp"
    collect: str | CollectMode = "flatten"
    execute: str | ExecuteMode = "all"


@overload
def endpoint(method: Method, /) -> Method: ...
@overload
def endpoint(
    *, dispatch: str | DispatchMode = ..., collect: str | CollectMode = ..., execute: str | ExecuteMode = ...
) -> Callable[[Method], Method]: ...


def endpoint(
    method: Method | None = None,
    /,
    *,
    dispatch: str | DispatchMode = "slice_dp",
    collect: str | CollectMode = "flatten",
    execute: str | ExecuteMode = "all",
) -> Method | Callable[[Method], Method]:
    """Makes a method one that a stage may call. The words are read from the source text before anything runs:
    write them as literals."""

    def mark(method: Method) -> Method:
        method.__meshctl_endpoint__ = Endpoint(dispatch, collect, execute)  # type: ignore[attr-defined]
        return method

    return mark if method is None else mark(method)


def endpoint_of(component: type, method: str) -> Endpoint | None:
    """What the decorator of a method says, or none where it has none."""
    found = getattr(getattr(component, method, None), "__meshctl_endpoint__", None)
    return found if isinstance(found, Endpoint) else None


@dataclass
class Place:
    """Where a component runs, and what it may use; the worker makes one for each component."""

    name: str = ""
    mesh: DeviceMesh = DeviceMesh.from_sizes()
    rank: int = 0
    device: torch.device = torch.device("cpu")
    devices: tuple[torch.device, ...] = (torch.device("cpu"),)
    step: int = 0
    log: Callable[[Mapping[str, float], float], None] = lambda values, weight: None
    stop: Callable[[str], None] = lambda reason: None
    alloc: Callable[[int], torch.Tensor] = lambda nbytes: torch.empty(nbytes, dtype=torch.uint8)
    """Gives uint8 `[nbytes]` where other workers can read it."""
    nodes: Callable[[], Iterable[Sequence[int]]] | None = None
    """Gives the group's ranks by node; where there is none, all are on one."""

    def groups(self, dims: tuple[str, ...]) -> Iterable[Sequence[int]]:
        """The world's ranks parted into those that work together along `dims`: the same list in every rank of
        the world."""
        if dims == ("world",):
            return [sorted(self.mesh.ranks())]
        if dims == ("local",):
            return [sorted(self.mesh.ranks())] if self.nodes is None else self.nodes()
        mine = self.mesh.ranks_along(dims, self.rank)
        return (
            self.mesh.process_groups(dims) if len(mine) > 1 else [mine]
        )  # without a list of all ranks where each is alone


class Component:
    """The base of everything a recipe's `components:` names.

    A subclass may offer `setup()` (once the process groups stand), `state_dict()` and `load_state_dict()`
    (checkpoints), `weights()` and `load_weights(stream)` (a sync; both are streams of (name, tensor)), and
    `close()`. A source may offer `__len__`: how many samples one epoch has.
    """

    _place: Place | None = None
    _collectives: dict[tuple[str, ...], Collective] | None = None
    _torch_mesh: TorchDeviceMesh | None = None

    @property
    def place(self) -> Place:
        if self._place is None:
            self._place = Place()
        return self._place

    @property
    def mesh(self) -> DeviceMesh:
        """The component's mesh: sizes, coordinates and groups by arithmetic."""
        return self.place.mesh

    @property
    def torch_mesh(self) -> TorchDeviceMesh:
        """The same mesh as torch's, for `fully_shard` and DTensor; made at the first use, which all ranks
        reach together.

        Sub-meshes are those of torch: `self.torch_mesh["dp", "fsdp"]`. Alone, without a launcher, it is a
        mesh of this process.
        """
        if self._torch_mesh is None:
            self._torch_mesh = self.mesh.to_torch()
        return self._torch_mesh

    @property
    def rank(self) -> int:
        """In the group's world, and so in the mesh."""
        return self.place.rank

    @property
    def device(self) -> torch.device:
        return self.place.device

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All devices of this worker; several where the group says `gpus_per_worker`."""
        return self.place.devices

    @property
    def step(self) -> int:
        """The step that is being run, from 1; 0 before the first."""
        return self.place.step

    def collective(self, *dims: str) -> Collective:
        """The ranks that share all other coordinates with this one: `self.collective("tp")`, or `("dp",
        "fsdp")` together, in this order.

        Dims of a view will do ("ep", "ulysses"), and so will "local", the group's ranks on this node, and
        "world", all of them. Made at the first use, which all ranks of the component must reach together, and
        kept until it is closed.
        """
        made = self._collectives = self._collectives or {}
        apart = self._apart(dims)
        if apart not in made or made[apart].closed:
            made[apart] = Collective.of(self.place.groups(apart), self.rank, self.device)
        return made[apart]

    def _apart(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        """The dims without those of size 1, along which a rank is alone: ("dp", "fsdp") without dp is "fsdp",
        with one process group."""
        if dims in (("local",), ("world",)):
            return dims
        if not dims:
            askable = ", ".join(self.mesh.mesh_dim_names)
            raise CollectiveError(
                f"say along which dims: one or several of {askable} or of a view's dims, `local` or `world`"
            )
        if alone := {"local", "world"} & set(dims):
            raise CollectiveError(
                f"`{min(alone)}` is no dim of the mesh: it is asked for alone, here are {', '.join(dims)}"
            )
        try:
            self.mesh.ranks_along(dims, self.rank)
        except MeshError as error:
            raise CollectiveError(f"{error}; `local` is this node, `world` the whole group") from None
        return tuple(dim for dim in dims if self.mesh.size(dim) > 1)

    def log(self, values: Mapping[str, float], weight: float = 1.0) -> None:
        """Adds to the step's metrics, as `STAGE.NAME`: a mean over the data ranks by weight, each counted
        once."""
        self.place.log(values, weight)

    def stop(self, reason: str) -> None:
        """Asks for the end of the run: all workers agree on a last step, and end after it."""
        self.place.stop(reason)

    def alloc(self, *size: int | Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Memory for what an endpoint gives, like `torch.empty` on the CPU: where its takers can read it as
        it lies, it is not copied.

            tokens = self.alloc(len(batch), 128, dtype=torch.int64)
            ...
            return batch.with_columns(tokens=tokens)

        What was given is lent to those who take it, and is not written any more; when nobody holds it, it is
        used again.
        """
        shape = [number for some in size for number in ([some] if isinstance(some, int) else some)]
        nbytes = prod(shape) * dtype.itemsize
        return self.place.alloc(nbytes).view(dtype).view(shape) if nbytes else torch.empty(shape, dtype=dtype)

    def micro_batches(self, batch: Batch, size: int) -> Iterator[Batch]:
        """Cuts of at most `size` samples in order; as many on every data rank, empty ones where it must."""
        return batch.minibatches(size)

    def setup(self) -> None:
        """Called once, after the process groups stand and before the first step."""

    def close(self) -> None:
        """Called once, after the last step."""
