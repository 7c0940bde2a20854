"""Facts about the classes of this room that `validate` checks. It imports no library."""

from __future__ import annotations

from meshctl.argument_limits import ALWAYS, Shipped

FUNCTION = Shipped(
    ranges={"workers": ">= 0", "timeout_s": "> 0"},
    excludes={"functions": ("function", "options")},
    choices=dict.fromkeys(("function", "functions"), "meshctl.rewards.functions.FUNCTIONS"),
    needs={ALWAYS: ("function", "functions"), "timeout_s": ("workers",)},  # only a process can be ended
)
TASKS = Shipped(
    ranges={"size": ">= 1", "max_prompt_tokens": ">= 2", "holdout": ">= 0", "workers": ">= 0"},
    needs={"held_out": ("holdout",)},
    longest="max_prompt_tokens",
    has_tokenizer=True,
)
SHIPPED = {"Function": FUNCTION, "Tasks": TASKS}
