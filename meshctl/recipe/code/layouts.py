"""The layouts that a component class supports, as its `LAYOUTS` declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from meshctl.dataclass import dataclass
from meshctl.topology.sizes import DIMS

LAYOUT_DIMS = (*DIMS, "ulysses", "ep", "etp", "vpp")
"""The dims that `LAYOUTS` can name."""
SEQUENCE = "sequence_parallel"
WITHOUT = (*LAYOUT_DIMS, SEQUENCE)
"""The dims, and the further key of a mesh, without which an argument can be supported."""
LAYOUT_WORDS = {
    "tied_shards": "equal",
    "attention": "transformers",
    "experts": "transformers",
    "ulysses": "heads",
    "pp_plan": "transformers",
}
"""Keys of `LAYOUTS`, and the only value of each."""
LAYOUT_KEYS = ("dims", "excludes", "tp_plan", "lora_styles", *LAYOUT_WORDS, "split", "cache", "without")
KeyPath = tuple[str, ...]
"""The key path of an argument below the component; empty if none is declared."""


@dataclass(frozen=True)
class Layouts:
    """The layouts that a component class supports."""

    dims: tuple[str, ...] | None = None
    """The dims that may have a size above 1; None for all dims."""
    excludes: tuple[tuple[str, str], ...] = ()
    """Pairs of dims that must not both have a size above 1."""
    tp_plan: str = ""
    """The library whose plan for the model's architecture tp needs; empty if it needs none."""

    lora_styles: str = ""
    """The table with the styles of the plan whose layers `lora` can adapt on tp; empty for all styles."""
    tied_shards: str = ""
    """`equal` if the shards of tied embeddings on fsdp and cp must have equal sizes."""
    attention: str = ""
    """The library whose attention cp and ulysses replace; empty if the class has an attention of its own."""
    experts: str = ""
    """The library by whose plan ep divides experts; empty if the class needs none."""
    ulysses: str = ""
    """`heads` if ulysses must divide the attention heads of a tp rank; empty if a ring does the rest."""
    pp_plan: str = ""
    """The library by whose plan pp divides a model; empty if the class needs none."""
    split: KeyPath = ()
    """The argument that states how pipeline stages divide the layers; empty if there is none."""
    cache: KeyPath = ()
    """The argument with which the model continues texts from a cache of keys and values; empty for none."""
    without: Mapping[KeyPath, tuple[str, ...]] = field(default_factory=dict)
    """Argument -> the names of `WITHOUT` that must be left out if it is set."""

    def supports(self, dim: str) -> bool:
        return self.dims is None or dim not in LAYOUT_DIMS or dim in self.dims

    def conflict(self, sizes: Mapping[str, int]) -> tuple[str, str] | None:
        """Returns the first excluded pair whose dims both have a size above 1; None if there is none."""
        for one, other in self.excludes:
            if sizes.get(one, 1) > 1 and sizes.get(other, 1) > 1:
                return one, other
        return None
