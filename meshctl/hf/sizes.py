"""The sizes of a mesh that determine how a model is sharded, and how its gradients are summed."""

from __future__ import annotations

from meshctl.dataclass import dataclass
from meshctl.topology.mesh import DeviceMesh


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
