"""The dtypes that an argument can name, the sizes of a mesh that determine how a model is sharded, and the
error that a user can correct."""

from __future__ import annotations

import torch

from meshctl.dataclass import dataclass
from meshctl.runtime.component import ComponentError
from meshctl.topology.mesh import DeviceMesh

DTYPES = ("float32", "float", "float64", "double", "bfloat16", "float16", "half")


class ModelError(ComponentError):
    """Raised if a model, a layout or a batch does not support what the arguments require."""


def dtype_of(name: str) -> torch.dtype:
    """Returns the dtype of torch with this name. Raises `ModelError` for a name that is not in `DTYPES`."""
    if name not in DTYPES:
        raise ModelError(f"`{name}` is not a floating-point dtype of torch: there are {', '.join(DTYPES)}")
    found: torch.dtype = getattr(torch, name)
    return found


@dataclass(frozen=True)
class Sizes:
    """The number of ranks in each dim of a mesh."""

    dp: int = 1
    fsdp: int = 1
    cp: int = 1
    tp: int = 1
    ulysses: int = 1
    """The number of neighbours of dp x fsdp that compute on the same samples."""
    ep: int = 1
    """The number of ranks, of the same ranks as the other dims, over which the experts are divided."""
    sequence: int = 1
    """The number of tp ranks that divide the tokens between layers: tp, or 1 without sequence parallelism."""
    pp: int = 1
    vpp: int = 1
    """The number of pipeline stages of each rank."""

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Sizes:
        dims = {dim: mesh.size(dim) for dim in ("pp", "dp", "fsdp", "cp", "tp")}
        views = {"ulysses": mesh.ulysses_size, "ep": mesh.ep_size, "vpp": mesh.vpp_size}
        return cls(**dims, **views, sequence=dims["tp"] if mesh.sequence_parallel else 1)

    @property
    def shards(self) -> int:
        """The number of ranks over which FSDP shards the weights."""
        return self.fsdp * self.cp

    @property
    def averaged(self) -> int:
        """The number of ranks over which FSDP averages gradients."""
        return self.dp * self.shards

    @property
    def peers(self) -> int:
        """The number of ranks that compute on the same samples."""
        return self.pp * self.ulysses * self.cp * self.tp
