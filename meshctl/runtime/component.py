"""The base class of users' components, and the decorator of the methods that stages call.

    class Sampler(Component):
        @endpoint(dispatch="slice_dp", collect="flatten")
        def sample(self, batch: Batch) -> Batch: ...

In a run, the worker gives the component its `RankContext` before the constructor runs. Under plain torchrun
the same class joins torch's world. Alone, in a notebook or a test, it has a mesh of one rank and collectives
of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, wraps
from inspect import iscoroutinefunction
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from meshctl.dataclass import dataclass
from meshctl.runtime import torch_mesh
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.collectives.collective import Collective, CollectiveError
from meshctl.runtime.event_loop import PASS_CALL, result_of
from meshctl.runtime.rank_context import STARTING, RankContext, standalone
from meshctl.topology.mesh import DeviceMesh, MeshError
from meshctl.topology.modes import CollectMode, DispatchMode, ExecuteMode

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

Method = TypeVar("Method", bound=Callable[..., Any])


class ComponentError(ValueError):
    """An error that a user can correct. The report shows the message without a traceback."""


@dataclass(frozen=True)
class Endpoint:
    """The defaults of a stage that calls the method. The recipe may override them."""

    dispatch: str | DispatchMode = "slice_dp"
    collect: str | CollectMode = "flatten"
    execute: str | ExecuteMode = "all"
    retry: int = 0
    """The number of times that a call is repeated after an exception, on the rank where it has failed."""


@overload
def endpoint(method: Method, /) -> Method: ...
@overload
def endpoint(
    *,
    dispatch: str | DispatchMode = ...,
    collect: str | CollectMode = ...,
    execute: str | ExecuteMode = ...,
    retry: int = ...,
) -> Callable[[Method], Method]: ...


def endpoint(
    method: Method | None = None,
    /,
    *,
    dispatch: str | DispatchMode = "slice_dp",
    collect: str | CollectMode = "flatten",
    execute: str | ExecuteMode = "all",
    retry: int = 0,
) -> Method | Callable[[Method], Method]:
    """Marks a method that stages may call. `validate` reads the arguments as text, so they must be
    literals.

    With `retry: n`, a call that raises an exception is repeated up to n times, on that rank only, so the
    method must not call collectives. Its arguments and the random generators are then as at first; what it
    has changed in the component is not.

    An `async def` method runs on the event loop of the process. A call waits for its result, unless the
    caller runs on that loop: `await super().sample(batch)`.
    """
    if isinstance(retry, bool) or not isinstance(retry, int) or retry < 0:
        raise ComponentError(f"@endpoint: `retry` must be an integer of at least 0, not {retry!r}")

    def mark(method: Method) -> Method:
        marked = blocking(method) if iscoroutinefunction(method) else method
        marked.__meshctl_endpoint__ = Endpoint(dispatch, collect, execute, retry)  # type: ignore[attr-defined]
        return marked

    return mark if method is None else mark(method)


def blocking(method: Method) -> Method:
    """Returns a function that runs an `async def` method on the event loop, as `result_of` does."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        return result_of(method(*arguments, **named))

    return call  # type: ignore[return-value]


def coroutine_of(component: Component, method: str) -> Callable[..., Coroutine[Any, Any, Any]] | None:
    """Returns an `async def` endpoint as a function that returns its coroutine; None for another endpoint."""
    found = getattr(getattr(component, method), "__wrapped__", None)
    return partial(found, component) if iscoroutinefunction(found) else None


def endpoint_of(component: type, method: str) -> Endpoint | None:
    """Returns the arguments of a method's decorator, or None for a method without it."""
    found = getattr(getattr(component, method, None), "__meshctl_endpoint__", None)
    return found if isinstance(found, Endpoint) else None


class Component:
    """The base class of everything that a recipe's `components:` names.

    A subclass may offer `setup()` (called once the process groups exist), `state_dict()` and
    `load_state_dict()` (checkpoints), `weights()` and `load_weights(stream)` (a sync; both are streams of
    (name, tensor)), and `close()`. A source may offer `__len__`: the number of samples of one epoch.
    """

    _context: RankContext | None = None
    _collectives: dict[tuple[str, ...], Collective] | None = None
    _torch_meshes: dict[str, TorchDeviceMesh] | None = None

    @property
    def place(self) -> RankContext:
        """The context of this rank, as `context_of` returns it. The properties below are taken from it."""
        return context_of(self)

    def use_mesh(self, mesh: DeviceMesh) -> None:
        """Sets the mesh of a component that no launcher of meshctl started, under torchrun for example.

        Without it, such a component is data-parallel over torch's world. Raises `ComponentError` in a run,
        where the recipe decides, and `MeshError` where the mesh and the world have different sizes.
        """
        if self._context is not None and self._context.name:
            raise ComponentError(f"the mesh of `{self._context.name}` is set in the recipe, by `parallel`")
        self._context, self._collectives, self._torch_meshes = standalone(mesh), None, None

    # Facts

    @property
    def mesh(self) -> DeviceMesh:
        """The component's mesh: sizes, coordinates and groups, by arithmetic."""
        return context_of(self).mesh

    @property
    def rank(self) -> int:
        """The rank in the group's world, and so in the mesh."""
        return context_of(self).rank

    @property
    def world_size(self) -> int:
        """The number of workers of the group."""
        return self.mesh.world_size

    @property
    def local_rank(self) -> int:
        """The number of this rank among the group's ranks on its node."""
        return context_of(self).location.local_rank

    @property
    def local_world_size(self) -> int:
        """The number of the group's ranks on this node."""
        return context_of(self).location.local_world_size

    @property
    def node_rank(self) -> int:
        """The number of this node among those of the group."""
        return context_of(self).location.node_rank

    @property
    def device(self) -> torch.device:
        return context_of(self).device

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All devices of this worker; several where the group has `gpus_per_worker`."""
        return context_of(self).devices

    @property
    def step(self) -> int:
        """The running step, from 1; 0 before the first one, and in a pass of a block with `take`."""
        return 0 if PASS_CALL.get() else context_of(self).step

    @cached_property  # a subclass may have an attribute of this name
    def run_dir(self) -> Path:
        """The folder of the run, for files that the component writes; the working directory without a
        launcher."""
        return self.place.run_dir

    @cached_property
    def seed(self) -> int:
        """The recipe's `seed`; 0 without a launcher. torch's generators are seeded with it already, for each
        component, data rank and step."""
        return self.place.seed

    # torch's meshes

    @property
    def torch_mesh(self) -> TorchDeviceMesh:
        """torch's mesh of the same dims, for `fully_shard` and DTensor.

        Sub-meshes are torch's: `self.torch_mesh["dp", "fsdp"]`. The dims of the views are one-dimensional
        meshes: `self.torch_mesh["ep"]`, `["ulysses"]`. It is made at the first use, which all ranks reach
        together.
        """
        return self._torch_mesh("own", self._new_torch_mesh)

    def _new_torch_mesh(self) -> TorchDeviceMesh:
        made, context = torch_mesh.mesh_with_views(self.mesh), context_of(self)
        context.progress.torch_calls.add(context.name, made)
        return made

    @property
    def node_mesh(self) -> TorchDeviceMesh:
        """torch's mesh of the dims `node` and `local`: the nodes of the group, and the ranks on each node.

        It is made at the first use, which all ranks reach together. Raises `MeshError` if the nodes have
        different numbers of ranks.
        """
        nodes, kind = context_of(self).ranks_by_node, self.mesh.device_type
        return self._torch_mesh("node", lambda: torch_mesh.node_mesh(nodes(), kind))

    @property
    def local_mesh(self) -> TorchDeviceMesh:
        """torch's mesh of the dim `local`: the group's ranks on this node.

        It is made at the first use, which all ranks reach together.
        """
        nodes, kind = context_of(self).ranks_by_node, self.mesh.device_type
        return self._torch_mesh("local", lambda: torch_mesh.local_mesh(nodes(), self.rank, kind))

    def _torch_mesh(self, name: str, make: Callable[[], TorchDeviceMesh]) -> TorchDeviceMesh:
        made = self._torch_meshes = self._torch_meshes or {}
        if name not in made:
            made[name] = make()
        return made[name]

    # Collectives

    def collective(self, *dims: str) -> Collective:
        """Returns the collective of this rank and the ranks that differ from it in their coordinates of
        `dims` only.

            self.collective("tp")
            self.collective("dp", "fsdp")       both together, in this order
            self.collective("ep")               a dim of a view
            self.collective("local")            the group's ranks on this node
            self.collective("world")            all ranks of the group

        It is made at the first use, which all ranks of the component reach together.
        """
        made = self._collectives = self._collectives or {}
        key = self._without_single(dims)
        if key not in made:
            context = context_of(self)
            calls = context.progress.calls_of(f"{context.name}:{','.join(key)}")
            made[key] = Collective.of(context.groups(key), self.rank, self.device, calls)
        return made[key]

    def _without_single(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the dims without those of size 1, so that ("dp", "fsdp") without dp shares the process
        group of "fsdp"."""
        if dims in (("local",), ("world",)):
            return dims
        if not dims:
            known = ", ".join(self.mesh.mesh_dim_names)
            raise CollectiveError(
                f"name the dims: one or several of {known} or of a view's dims, `local` or `world`"
            )
        if alone := {"local", "world"} & set(dims):
            raise CollectiveError(
                f"`{min(alone)}` is not a dim of the mesh: name it alone, and not in {', '.join(dims)}"
            )
        try:
            self.mesh.ranks_along(dims, self.rank)
        except MeshError as error:
            raise CollectiveError(f"{error}; `local` is this node, `world` the whole group") from None
        return tuple(dim for dim in dims if self.mesh.size(dim) > 1)

    # The run

    def log(self, values: Mapping[str, float], weight: float = 1.0) -> None:
        """Adds numbers to the step's metrics, as `STAGE.NAME`. A metric is the weighted mean over the data
        ranks; each data rank counts once."""
        (PASS_CALL.get() or context_of(self)).log(values, weight)

    def stop(self, reason: str) -> None:
        """Asks for the end of the run: all workers agree on a last step and end after it."""
        context_of(self).stop(reason)

    def alloc(self, *size: int | Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Returns an empty CPU tensor for what an endpoint returns, like `torch.empty`.

        Consumers on the same node read it in place, without a copy:

            tokens = self.alloc(len(batch), 128, dtype=torch.int64)
            ...
            return batch.with_columns(tokens=tokens)

        After the return it is leased to the consumers and must not be written. It is reused when all have
        released it.
        """
        shape = [number for some in size for number in ([some] if isinstance(some, int) else some)]
        nbytes = prod(shape) * dtype.itemsize
        return (
            context_of(self).alloc(nbytes).view(dtype).view(shape)
            if nbytes and not PASS_CALL.get()
            else torch.empty(shape, dtype=dtype)
        )

    def micro_batches(self, batch: Batch, size: int) -> Iterator[Batch]:
        """Yields parts of at most `size` samples in order. Every data rank gets the same number of parts,
        empty ones where necessary."""
        return batch.minibatches(size)

    def setup(self) -> None:
        """Called once, after the process groups have been made and before the first step."""

    def close(self) -> None:
        """Called once, after the last step."""


def context_of(component: Component) -> RankContext:
    """Returns the context of a component: that of its worker, or without a launcher that of torch's world."""
    if component._context is None:
        component._context = STARTING.get() or standalone()
    return component._context


@torch.no_grad()
def copy_weights(stream: Iterable[tuple[str, torch.Tensor]], module: torch.nn.Module) -> None:
    """Copies the stream of `load_weights` into the parameters and buffers of a module.

        def load_weights(self, stream):
            copy_weights(stream, self.model)

    A tensor of the stream has the shape of what the receiver's `weights()` returns for its name: the whole
    parameter, or for a DTensor parameter (fsdp, tp) the local shard of this rank. This function copies either
    in place. Raises `ComponentError` for a name or a shape that the module does not have.
    """
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in stream:
        if name not in own:
            raise ComponentError(f"the sync sends `{name}`, which the module does not have")
        target = own[name]
        local = (target.to_local() if hasattr(target, "to_local") else target).detach()
        if local.shape != tensor.shape:
            raise ComponentError(
                f"`{name}` has the shape {list(local.shape)} on this rank, the sync sends "
                f"{list(tensor.shape)}"
            )
        local.copy_(tensor)
