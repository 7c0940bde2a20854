"""meshctl: a declarative launcher for distributed PyTorch training with more than one moving part.

    from meshctl import Batch, Component, DeviceMesh, Ragged, endpoint

Names are imported on use: `import meshctl` loads neither torch nor Hydra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_PUBLIC = {
    "Batch": "meshctl.runtime.batch.batch",
    "CollectMode": "meshctl.topology.modes",
    "Collective": "meshctl.runtime.collectives.collective",
    "CollectiveError": "meshctl.runtime.collectives.collective",
    "Component": "meshctl.runtime.component",
    "ComponentError": "meshctl.runtime.component",
    "copy_weights": "meshctl.runtime.component",
    "DeviceMesh": "meshctl.topology.mesh",
    "DispatchMode": "meshctl.topology.modes",
    "ExecuteMode": "meshctl.topology.modes",
    "Histogram": "meshctl.runtime.metrics.media",
    "Image": "meshctl.runtime.metrics.media",
    "MeshError": "meshctl.topology.mesh",
    "OpenedRun": "meshctl.view.opened_run",
    "Ragged": "meshctl.runtime.batch.batch",
    "RankSet": "meshctl.topology.modes",
    "SampleTable": "meshctl.topology.samples",
    "Table": "meshctl.runtime.metrics.media",
    "open_run": "meshctl.view.opened_run",
    "endpoint": "meshctl.runtime.component",
}
__all__ = [
    "Batch",
    "CollectMode",
    "Collective",
    "CollectiveError",
    "Component",
    "ComponentError",
    "DeviceMesh",
    "DispatchMode",
    "ExecuteMode",
    "Histogram",
    "Image",
    "MeshError",
    "OpenedRun",
    "Ragged",
    "RankSet",
    "SampleTable",
    "Table",
    "copy_weights",
    "endpoint",
    "open_run",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'meshctl' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
