"""Rewards of sampled answers: any function of columns, called for each sample in worker processes.

    components:
      judge: {_target_: meshctl.rewards.Function, group: judge, args: {function: mymodule.reward}}
    pipeline:
      scored: {call: judge.score, in: rollouts}

A reward is a function whose positional parameters name columns of the batch and whose keyword-only
parameters are its options. It gets the values of one sample and returns a number:

    def reward(response, solution, *, bonus=0.0):
        return (solution in response) + bonus * response.startswith("<think>")

Names are imported on use: the worker processes import this package, and do not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshctl.rewards.component import Function as Function
    from meshctl.rewards.component import RewardError as RewardError
    from meshctl.rewards.tasks import Tasks as Tasks

__all__ = ["Function", "RewardError", "Tasks"]
HOMES = {"Function": "component", "RewardError": "component", "Tasks": "tasks"}
"""Name -> the module of this package that defines it."""


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
