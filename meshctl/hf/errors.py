"""The error that a user of `hf.Model` can correct."""

from __future__ import annotations

from meshctl.runtime.component import ComponentError


class ModelError(ComponentError):
    """A model, a layout or a batch cannot be used as the arguments say."""
