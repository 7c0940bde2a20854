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
    from meshctl.runtime.collective import Collective as Collective
    from meshctl.runtime.collective import CollectiveError as CollectiveError
    from meshctl.runtime.component import Component as Component
    from meshctl.runtime.component import ComponentError as ComponentError
    from meshctl.runtime.component import endpoint as endpoint
    from meshctl.topology.mesh import DeviceMesh as DeviceMesh
    from meshctl.topology.mesh import MeshError as MeshError

_PUBLIC = {
    "Batch": "meshctl.runtime.batch.batch",
    "Collective": "meshctl.runtime.collective",
    "CollectiveError": "meshctl.runtime.collective",
    "Component": "meshctl.runtime.component",
    "ComponentError": "meshctl.runtime.component",
    "DeviceMesh": "meshctl.topology.mesh",
    "MeshError": "meshctl.topology.mesh",
    "Ragged": "meshctl.runtime.batch.batch",
    "endpoint": "meshctl.runtime.component",
}
__all__ = [
    "Batch",
    "Collective",
    "CollectiveError",
    "Component",
    "ComponentError",
    "DeviceMesh",
    "MeshError",
    "Ragged",
    "endpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'meshctl' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
