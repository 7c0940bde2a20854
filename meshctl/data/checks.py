"""Facts about the classes of this room that `validate` checks. It imports no library."""

from __future__ import annotations

from meshctl.argument_limits import Shipped

SOURCE = Shipped(
    ranges={"max_length": ">= 2", "holdout": ">= 0", "workers": ">= 0"},
    excludes={"pack": ("keep",)},
    needs={"pack": ("max_length",), "held_out": ("holdout",)},
)
STREAM = Shipped(
    ranges={"max_length": ">= 2", "buffer": ">= 1", "workers": ">= 0"},
    excludes={"pack": ("keep",)},
    needs={"pack": ("max_length",)},
)
PROMPTS = Shipped(
    ranges={"max_prompt_tokens": ">= 2", "holdout": ">= 0", "workers": ">= 0"},
    needs={"held_out": ("holdout",)},
)
SHIPPED = {"Source": SOURCE, "Stream": STREAM, "Prompts": PROMPTS}
