"""Models and samplers of transformers, as components. They need the extra `hf`:
`pip install '.[hf]'` in a checkout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshctl.on_use import on_use

if TYPE_CHECKING:
    from meshctl.hf.model import Model as Model
    from meshctl.hf.options import ModelError as ModelError
    from meshctl.hf.sampler import Sampler as Sampler

__all__ = ["Model", "ModelError", "Sampler"]


def __getattr__(name: str) -> Any:
    from meshctl.runtime.extras import extra  # which imports torch

    with extra("hf"):
        return on_use(__name__, {"Model": "model", "ModelError": "options", "Sampler": "sampler"})(name)
