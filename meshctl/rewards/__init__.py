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

from typing import TYPE_CHECKING

from meshctl.on_use import on_use

if TYPE_CHECKING:
    from meshctl.rewards.component import Function as Function
    from meshctl.rewards.component import RewardError as RewardError
    from meshctl.rewards.tasks import Tasks as Tasks

__all__ = ["Function", "RewardError", "Tasks"]
__getattr__ = on_use(__name__, {"Function": "component", "RewardError": "component", "Tasks": "tasks"})
