"""A stream that ends unannounced in step k: every worker ends with the state after step k - 1."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from meshctl.plan.model import Plan, Stage
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.schedule import Gate, StreamOrder
from tests.runtime import in_process
from tests.runtime.pipelines import Echo, Source
from tests.runtime.plans import Checkpoint, Input, call, plan, sync

LAST = 3
"""The last step for which `Stream` has data, at 4 samples a step."""
HEAD_START_S = 0.1
"""How long a stream that ends leaves workers that do not wait for it alone."""


class Stream(Source):
    """Has 10 samples. Others have time to begin a step that is not part of the run."""

    @endpoint
    def next(self, samples: range) -> Batch | None:
        rest = [n for n in samples if n < 10]
        if not rest:
            threading.Event().wait(HEAD_START_S)
        return Batch({"x": torch.tensor(rest)}) if rest else None


class Sized(Source):
    def __len__(self) -> int:
        return 400


class Learner(Echo):
    """Has a state that each update changes."""

    def __init__(self) -> None:
        super().__init__([])
        self.updates = 0

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        self.updates += 1
        return {"n": len(batch)}

    @endpoint(collect="mean")
    def export(self, value: Any) -> dict[str, float]:
        return {"updates": self.updates}

    def weights(self) -> dict[str, torch.Tensor]:
        return {"w": torch.full((4,), float(self.updates))}


class Environment(Stream):
    """A stream that needs the weights of the step before."""

    def __init__(self) -> None:
        self.loaded: list[float] = []

    def weights(self) -> dict[str, torch.Tensor]:
        return {"w": torch.zeros(4)}

    def load_weights(self, stream: Any) -> None:
        self.loaded.append(float(next(iter(dict(stream).values()))[0]))


KINDS = {"stream": Stream, "sized": Sized, "env": Environment, "learner": Learner, "echo": lambda: Echo([])}


def run(job: Plan) -> tuple[in_process.Outcome, dict[tuple[str, int], Any], list[tuple[int, int]]]:
    """Runs a plan whose components are named after their kinds. Returns the outcome, the components by name and
    rank, and the (step, updates of its learners) of each save on each worker."""
    made: dict[tuple[str, int], Any] = {}
    own, saved = threading.local(), list[tuple[int, int]]()

    def make(name: str, rank: int) -> Component:
        component = made[name, rank] = KINDS[name.split("-")[0]]()
        own.learners = (
            [*getattr(own, "learners", []), component]
            if isinstance(component, Learner)
            else getattr(own, "learners", [])
        )
        return component

    def save(step: int, given: Any) -> None:
        saved.append((step, sum(learner.updates for learner in own.learners)))

    return in_process.run(job, make, save=save), made, saved


DATA = call("batch", "stream.next", samples=4)
SIDE = [call("side", "sized.next", samples=4), call("sides", "learner.update", "side", collect="mean")]


@pytest.mark.parametrize(
    ("groups", "stages"),
    [
        pytest.param(
            {"stream": "a", "sized": "a", "learner": "a"}, [*SIDE, DATA], id="before it on its ranks"
        ),
        pytest.param(
            {"stream": "a", "sized": "a", "learner": "a"}, [DATA, *SIDE], id="after it on its ranks"
        ),
        pytest.param({"stream": "a", "sized": "b", "learner": "b"}, [DATA, *SIDE], id="in another group"),
        pytest.param({"stream": "a", "sized": "b", "learner": "c"}, [*SIDE, DATA], id="in two other groups"),
        pytest.param(
            {"stream": "a", "sized": "a", "learner": "b"}, [DATA, *SIDE], id="beside it, and elsewhere"
        ),
    ],
)
@pytest.mark.parametrize("sizes", [{}, {"tp_size": 2}], ids=["dp", "tp"])
@pytest.mark.parametrize("is_used", [True, False])
def test_no_rank_calls_a_stage_of_a_step_that_is_not_part_of_the_run(
    groups: dict[str, str], stages: list[Stage], sizes: dict[str, int], is_used: bool
) -> None:
    """`learner` takes nothing of the stream."""
    components: dict[str, Any] = {name: (group, sizes) for name, group in groups.items()}
    stages = [*stages, call("export", "learner.export", "sides", when="end", collect="mean")]
    if is_used:
        components["echo"] = ("a", sizes)
        stages.insert(len(stages) - 1, call("taken", "echo.take", Input(("batch",)), execute="all"))
    workers = dict.fromkeys(sorted({*groups.values()}), 2)
    job = plan(workers, components, stages, steps=0, checkpoint=Checkpoint(every=2))
    outcome, made, saved = run(job)
    assert not outcome.faults and set(outcome.last.values()) == {LAST}
    assert [made["learner", rank].updates for rank in (0, 1)] == [LAST, LAST]
    assert {step for step, _ in saved} == {2, LAST} and len(saved) == 2 * sum(workers.values())
    assert sorted({updates for _, updates in saved} - {0}) == [2, LAST]
    exported = [
        event.value["values"]
        for event in outcome.events
        if event.name == "metric" and event.stage == "export"
    ]
    assert exported == [{"updates": float(LAST)}] * len(exported) and exported


def test_of_several_streams_the_shortest_ends_the_run() -> None:
    class Shorter(Stream):
        @endpoint
        def next(self, samples: range) -> Batch | None:
            return Source.next(self, samples) if samples.start < 5 else None

    KINDS["shorter"] = Shorter
    stages = [
        DATA,
        call("short", "shorter.next", samples=4),
        *SIDE,
        call("taken", "echo.pair", Input(("batch",), "first"), Input(("short",), "second")),
    ]
    components: dict[str, Any] = {
        "stream": ("a", {}),
        "shorter": ("b", {}),
        "echo": ("b", {}),
        "sized": ("c", {}),
        "learner": ("c", {}),
    }
    outcome, made, _ = run(plan({"a": 2, "b": 1, "c": 2}, components, stages, steps=0))
    assert not outcome.faults and set(outcome.last.values()) == {2}
    assert [made["learner", rank].updates for rank in (0, 1)] == [2, 2]
    assert outcome.reason == "the data of `short` ended"


def test_what_a_streams_call_needs_comes_before_it() -> None:
    """The environment plays with the weights of the step before, also where its sync is written first."""
    stages = [sync("publish", "learner", "env"), call("played", "env.next", samples=4),
              call("learnt", "learner.update", "played", collect="mean")]  # fmt: skip
    job = plan(
        {"a": 2, "b": 2}, {"learner": ("a", {}), "env": ("b", {})}, stages, steps=0, checkpoint=Checkpoint()
    )
    outcome, made, saved = run(job)
    assert not outcome.faults and set(outcome.last.values()) == {LAST}
    assert [made["learner", rank].updates for rank in (0, 1)] == [LAST, LAST]
    assert made["env", 0].loaded[: LAST + 2] == [0.0, 0.0, 1.0, 2.0, 3.0]
    assert set(saved) == {(LAST, LAST), (LAST, 0)}


def order(stages: list[Stage], **groups: str) -> StreamOrder:
    components: dict[str, Any] = {name: (group, {}) for name, group in groups.items()}
    return StreamOrder(plan(dict.fromkeys(sorted({*groups.values()}), 2), components, stages), ["batch"])


def test_nobody_asks_where_all_that_is_called_comes_from_the_stream() -> None:
    stages = [
        DATA,
        call("made", "echo.take", "batch"),
        call("learnt", "learner.update", "made"),
        sync("publish", "learner", "echo"),
    ]
    made = order(stages, stream="a", echo="a", learner="b")
    assert made.asked == {"batch": frozenset()}
    assert [item.name if isinstance(item, Stage) else "gate" for item in made.items] == [
        "batch", "gate", "made", "learnt", "publish",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "asked"),
    [
        ([DATA, *SIDE], {"a", "b"}),
        ([DATA, call("made", "echo.take", "batch"), *SIDE], {"b"}),
        ([DATA, call("made", "learner.take", "batch"), *SIDE], set()),
        ([DATA, call("made", "learner.take", "batch", every=2), *SIDE], {"a", "b"}),
        ([DATA, call("made", "learner.take", "batch", execute="first"), *SIDE], {"b"}),
        ([DATA, call("made", "learner.take", Input(("batch",)), when="end")], {"a", "b"}),
    ],
)
def test_a_group_asks_unless_its_first_stage_shows_it(stages: list[Stage], asked: set[str]) -> None:
    made = order(stages, stream="a", echo="a", sized="b", learner="b")
    assert made.asked == {"batch": asked}


def test_only_what_a_stream_needs_comes_before_it() -> None:
    stages = [call("first", "echo.take", "side"), SIDE[1], sync("publish", "learner", "stream"),
              call("after", "learner.update", "side"), DATA]  # fmt: skip
    stages = [SIDE[0], *stages]
    made = order(stages, stream="a", echo="a", sized="b", learner="b")
    found = [item.name if isinstance(item, Stage) else "gate" for item in made.items]
    assert found == ["side", "sides", "publish", "batch", "gate", "first", "after"]
    assert isinstance(made.items[4], Gate) and [stream.name for stream in made.items[4].streams] == ["batch"]
