"""The error of `hf.Model` that a user can correct."""

from __future__ import annotations

from meshctl.runtime.component import ComponentError


class ModelError(ComponentError):
    """Raised if a model, a layout or a batch does not support what the arguments require."""
