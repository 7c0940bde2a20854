"""Components and random pipelines, for tests in threads and in processes."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from meshctl.plan.model import Plan
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.component import Component, endpoint
from meshctl.topology.modes import Dispatch
from tests.runtime.plans import Input, call, plan


class Source(Component):
    @endpoint
    def next(self, samples: range) -> Batch | None:
        numbers = list(samples)
        rows = [torch.full((n % 5,), n) for n in numbers]
        return Batch({"x": torch.tensor(numbers), "rows": Ragged.of(rows), "text": [str(n) for n in numbers]})


class Echo(Component):
    """Records the arguments of every call."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    @endpoint
    def take(self, batch: Batch) -> Batch:
        self.seen.append((self.step, self.rank, batch.clone()))
        return batch

    @endpoint
    def pair(self, first: Batch, second: Any) -> Batch:
        self.seen.append((self.step, self.rank, first, second))
        return first

    @endpoint
    def thrice(self, batch: Batch) -> Batch:
        return batch.repeat(3)

    @endpoint(collect="mean")
    def loss(self, batch: Batch) -> dict[str, float]:
        return {"x": float(batch["x"].float().mean()), "n": len(batch)} if len(batch) else {}


@st.composite
def pipelines(draw: st.DrawFn) -> Plan:
    """Draws up to six stages on three groups, in any order and with any modes."""
    groups = {name: draw(st.integers(1, 3)) for name in "abc"}
    sizes = {
        name: draw(st.sampled_from([{}, {"dp_size": 1, "tp_size": workers}]))
        for name, workers in groups.items()
    }
    components = {f"{kind}-{name}": (name, sizes[name]) for name in groups for kind in ("source", "echo")}
    stages = [call("s0", f"source-{draw(st.sampled_from('abc'))}.next", samples=draw(st.integers(3, 9)))]
    for number in range(1, draw(st.integers(2, 6))):
        where = draw(st.sampled_from("abc"))
        if draw(st.booleans()):
            mode = draw(st.sampled_from(["slice_dp", "slice", "all"]))
            balance = draw(st.sampled_from(["", "tokens"]))
            dispatch = Dispatch(mode, balance, allow_empty=True)
            source = draw(st.sampled_from([stage.name for stage in stages]))
            unique = dispatch.mode == "slice_dp" or (dispatch.mode == "slice" and not sizes[where])
            execute = "all" if unique else "first"
            every = draw(st.sampled_from([1, 1, 2]))
            stages.append(
                call(
                    f"s{number}",
                    f"echo-{where}.take",
                    Input((source,), dispatch=dispatch),
                    execute=execute,
                    every=every,
                )
            )
        else:
            stages.append(call(f"s{number}", f"source-{where}.next", samples=draw(st.integers(3, 9))))
    return plan(groups, components, stages, steps=4)
