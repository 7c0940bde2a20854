"""Ready-made components: what most recipes need and nobody wants to write again."""

from meshctl.components.rows import Cycle as Cycle
from meshctl.components.rows import Rows as Rows

__all__ = ["Cycle", "Rows"]
