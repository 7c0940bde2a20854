"""Refuses shards of tied parameters with which FSDP2 would train wrongly."""

from __future__ import annotations

from typing import Any

from meshctl.hf.errors import ModelError
from meshctl.hf.sizes import Sizes
from meshctl.hf.transformers_api import tied_names


def check_tied(model: Any, sizes: Sizes) -> None:
    """Raises `ModelError` if the rows of a tied parameter cannot be divided evenly over fsdp, cp and tp.

    FSDP pads uneven shards in a buffer for each of the two modules of the parameter. Only one of the buffers
    would follow the optimizer, so the model would train wrongly without an error.
    """
    shards = sizes.shards * sizes.tp
    for name in sorted(tied_names(model)):
        rows = model.get_parameter(name).shape[0]
        if sizes.shards > 1 and rows % shards:
            dims = {"fsdp": sizes.fsdp, "cp": sizes.cp, "tp": sizes.tp}
            drawn = ", ".join(f"{dim} {size}" for dim, size in dims.items() if size > 1)
            raise ModelError(
                f"`{name}` is tied to the embedding, and its {rows} rows have no equal shards on {shards} "
                f"ranks ({drawn}); use dp, or sizes whose product divides {rows}"
            )
