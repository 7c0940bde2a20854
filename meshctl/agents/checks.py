"""Facts about the classes of this room that `validate` checks. It imports no library."""

from __future__ import annotations

from meshctl.argument_limits import ALWAYS, Shipped

AGENT = Shipped(
    ranges={
        "group_size": ">= 1",
        "at_once": ">= 1",
        "timeout_s": "> 0",
        "max_turns": ">= 1",
        "attempts": ">= 1",
        "workers": ">= 1",
    },
    excludes={"command": ("function", "options")},
    needs={ALWAYS: ("function", "command"), "options": ("function",)},
    dotted=("function",),
    samples=True,
    sampler="sampler",
)
SHIPPED = {"Agent": AGENT}
