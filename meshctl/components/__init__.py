"""Ready-made components that many recipes need."""

from meshctl.components.rows import Cycle as Cycle
from meshctl.components.rows import Rows as Rows

__all__ = ["Cycle", "Rows"]
