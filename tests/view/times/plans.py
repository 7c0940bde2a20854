"""Plans, and the sums of their workers, for the tests of where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshctl.plan.model import Block, Plan, Stage
from meshctl.view.times.schedule import Costs, Schedule
from tests.runtime.plans import call, plan, sync


def chain(*seconds: float, groups: int = 0, **more: Mapping[str, float]) -> tuple[Schedule, Costs]:
    """Returns a pipeline of stages s0, s1, ... that take the given seconds, each in a group of its own, or
    in turn in `groups` groups."""
    count = groups or len(seconds)
    stages = [
        call(f"s{n}", f"c{n}.run", *([f"s{n - 1}"] if n else []), samples=8) for n in range(len(seconds))
    ]
    made = plan(
        {f"g{n}": 1 for n in range(count)},
        {f"c{n}": (f"g{n % count}", {}) for n in range(len(seconds))},
        stages,
    )
    return Schedule(made), Costs({f"s{n}": each for n, each in enumerate(seconds)}, **more)


def grpo(every: int = 1, lag: int = 0) -> Plan:
    """A rollout group and a trainer, with a sync of weights back."""
    stages: Sequence[Stage] = (
        call("rollouts", "sampler.sample", samples=8),
        call("metrics", "actor.update", "rollouts", collect="mean"),
        sync("publish", "actor", "sampler", every=every, lag=lag),
    )
    return plan({"rollout": 1, "train": 1}, {"sampler": ("rollout", {}), "actor": ("train", {})}, stages)


def with_block(made: Plan, block: Block) -> Plan:
    stages = tuple(
        replace(stage, block=block.name) if stage.name.startswith(f"{block.name}.") else stage
        for stage in made.stages
    )
    return replace(made, stages=stages, blocks=(block,))
