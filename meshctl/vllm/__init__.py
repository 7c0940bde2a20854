"""Samplers on the engine vLLM. They need the extra `vllm`, installed in an
interpreter of its own, because vLLM and the extra `hf` need different versions of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshctl.on_use import on_use

if TYPE_CHECKING:
    from meshctl.vllm.options import SamplerError as SamplerError
    from meshctl.vllm.sampler import Sampler as Sampler

__all__ = ["Sampler", "SamplerError"]
__getattr__ = on_use(__name__, {"SamplerError": "options", "Sampler": "sampler"})
