"""meshctl: a declarative launcher for distributed PyTorch training with more than one moving part.

    from meshctl import Batch, Component, DeviceMesh, Ragged, endpoint

Names are imported on use: `import meshctl` loads neither torch nor Hydra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshctl.on_use import on_use

if TYPE_CHECKING:
    from meshctl.runtime.batch.batch import Batch as Batch
    from meshctl.runtime.batch.batch import Ragged as Ragged
    from meshctl.runtime.collectives.collective import Collective as Collective
    from meshctl.runtime.collectives.collective import CollectiveError as CollectiveError
    from meshctl.runtime.component import Component as Component
    from meshctl.runtime.component import ComponentError as ComponentError
    from meshctl.runtime.component import copy_weights as copy_weights
    from meshctl.runtime.component import endpoint as endpoint
    from meshctl.runtime.metrics.media import Histogram as Histogram
    from meshctl.runtime.metrics.media import Image as Image
    from meshctl.runtime.metrics.media import Table as Table
    from meshctl.topology.mesh import DeviceMesh as DeviceMesh
    from meshctl.topology.mesh import MeshError as MeshError
    from meshctl.topology.modes import CollectMode as CollectMode
    from meshctl.topology.modes import DispatchMode as DispatchMode
    from meshctl.topology.modes import ExecuteMode as ExecuteMode
    from meshctl.topology.modes import RankSet as RankSet
    from meshctl.topology.samples import SampleTable as SampleTable
    from meshctl.view.opened_run import OpenedRun as OpenedRun
    from meshctl.view.opened_run import open_run as open_run

__version__ = "0.2.0"

_HOMES = {
    **dict.fromkeys(("Batch", "Ragged"), "runtime.batch.batch"),
    **dict.fromkeys(("Collective", "CollectiveError"), "runtime.collectives.collective"),
    **dict.fromkeys(("Component", "ComponentError", "copy_weights", "endpoint"), "runtime.component"),
    **dict.fromkeys(("Histogram", "Image", "Table"), "runtime.metrics.media"),
    **dict.fromkeys(("DeviceMesh", "MeshError"), "topology.mesh"),
    **dict.fromkeys(("CollectMode", "DispatchMode", "ExecuteMode", "RankSet"), "topology.modes"),
    "SampleTable": "topology.samples",
    **dict.fromkeys(("OpenedRun", "open_run"), "view.opened_run"),
}
__all__ = list(_HOMES)
__getattr__ = on_use(__name__, _HOMES)
