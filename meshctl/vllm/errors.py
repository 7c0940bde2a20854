"""The error of `vllm.Sampler` that a user can correct."""

from __future__ import annotations

from meshctl.runtime.component import ComponentError


class SamplerError(ComponentError):
    """Raised if the engine, the model, the layout or a batch does not support what the arguments require."""
