"""Copies of states in CPU memory, from which a checkpoint is written while the run goes on.

    staging = Staging()
    tree = staging.copy("actor", StateTree.of("actor", state))      complete when the call returns

The memory is used again for the next checkpoint, because new memory costs more than the copy. Where there is
CUDA it is pinned, so that devices copy at the full speed of their bus.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshctl.runtime.state.tree import StateTree

Key = tuple[str, str]
"""The component, and the name of a tensor in its state."""


class Staging:
    """The copies of the last checkpoint. There is one for each tensor of each state."""

    def __init__(self) -> None:
        self._buffers: dict[Key, Tensor] = {}

    def copy(self, component: str, tree: StateTree) -> StateTree:
        """Returns a copy of a state, which the next call overwrites. Of sharded tensors it has the shards of
        this rank. It waits until devices have copied."""
        tensors = {name: self._copied((component, name), value) for name, value in tree.tensors.items()}
        sharded = {name: self._shard((component, name), value) for name, value in tree.sharded.items()}
        self._drop_all_but(component, {*tensors, *sharded})
        for device in {value.device for value in (*tree.tensors.values(), *tree.sharded.values())}:
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
        return StateTree(tree.document, tensors, sharded)

    def _copied(self, key: Key, value: Tensor) -> Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            is_pinned = value.device.type == "cuda"
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=is_pinned)
            self._buffers[key] = buffer
        return buffer.copy_(value, non_blocking=True)

    def _shard(self, key: Key, value: Tensor) -> Tensor:
        """Returns a copy of the shard of this rank. Of a subclass other than DTensor the copy stays on its
        device, because only the class knows its parts."""
        sharded = value.detach()
        local = sharded.to_local() if isinstance(sharded, DTensor) else sharded
        if type(local) is not Tensor or not isinstance(sharded, DTensor):
            return torch.clone(sharded)
        make: Any = DTensor  # `from_local` would copy the shard back to the device of the mesh
        copy: Tensor = make(self._copied(key, local), sharded._spec, requires_grad=False)
        return copy

    def _drop_all_but(self, component: str, names: set[str]) -> None:
        """Frees the memory of tensors that the state of a component no longer has."""
        self._buffers = {
            (owner, name): buffer
            for (owner, name), buffer in self._buffers.items()
            if owner != component or name in names
        }
