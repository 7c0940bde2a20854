"""Whole steps in the threads of one process: what samples, weights and ends of data a run refuses, and with which
words. Which stage runs in which step with which samples is compared with a model in tests/pipelines."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from meshctl.plan.model import Stage
from meshctl.runtime.batch.batch import Batch, BatchError
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes import weights
from meshctl.topology.modes import Dispatch
from tests.runtime import in_process
from tests.runtime.pipelines import Echo, Source
from tests.runtime.plans import Checkpoint, Input, call, plan, sync

BATCH = call("batch", "source.next", samples=4)


def ran(
    groups: dict[str, int], parts: dict[str, str], stages: Sequence[Stage], made: dict[str, Any], **run: Any
) -> in_process.Outcome:
    """Runs stages. `parts` has the group of each component, and `made` the functions that make them."""
    job = plan(groups, {name: (group, {}) for name, group in parts.items()}, stages, **run)
    return in_process.run(job, lambda name, rank: made[name]())


def stage_error(outcome: in_process.Outcome) -> str:
    """Returns the message of the stage that failed. Other ranks may fail with it, in the same words."""
    [message] = {str(error) for error in outcome.faults.values() if isinstance(error, StageError)}
    return message


# Samples


class Careless(Echo):
    @endpoint
    def nothing(self, batch: Batch) -> None: ...

    @endpoint
    def numbers(self, batch: Batch) -> dict[str, float]:
        return {"x": 1.0}

    @endpoint
    def column(self, batch: Batch) -> Batch:
        return batch.with_columns(y=batch["nope"])

    @endpoint
    def words(self, batch: Batch) -> Batch:
        self.log({"said": "hello"})  # type: ignore[dict-item]
        return batch

    @endpoint
    def samples(self) -> Batch:
        return Batch({"x": torch.ones(2)})


@pytest.mark.parametrize(
    ("method", "kind", "message"),
    [
        ("nothing", StageError, "`made` returned None; is its `return` missing?"),
        ("numbers", StageError, "`made` returned a dict; flatten joins batches, lists and tensors: use mean, sum or first"),
        ("column", BatchError, "the batch has no column 'nope'; its columns are x, rows, text"),
        ("words", TypeError, "'said' is a str"),
    ],
)  # fmt: skip
def test_the_result_of_an_endpoint_is_checked_on_its_producer(
    method: str, kind: type[Exception], message: str
) -> None:
    stages = [BATCH, call("made", f"gen.{method}", "batch"), call("taken", "echo.take", "made")]
    made = {"source": Source, "gen": lambda: Careless([]), "echo": lambda: Echo([])}
    fault = ran({"a": 1, "b": 1}, {"source": "a", "gen": "a", "echo": "b"}, stages, made).faults[0]
    assert type(fault) is kind and message in str(fault)


def test_a_stage_without_data_returns_no_batch() -> None:
    stages = [call("wake", "sleeper.samples", is_without_data=True)]
    outcome = ran({"b": 2}, {"sleeper": "b"}, stages, {"sleeper": lambda: Careless([])})
    assert stage_error(outcome) == "`sleeper.samples` returned a Batch, but `wake` is a stage without data"


def test_a_column_that_two_stages_of_a_list_have_is_an_error() -> None:
    stages = [BATCH, call("copy", "echo.take", "batch"), call("both", "echo.take", Input(("batch", "copy")))]
    made = {"source": Source, "echo": lambda: Echo([])}
    text = stage_error(ran({"a": 2}, {"source": "a", "echo": "a"}, stages, made))
    assert "column 'x' is given twice, by the stages `batch` and `copy`: take one that" in text


@pytest.mark.parametrize("allow_empty", [True, False])
def test_too_few_samples_are_an_error_or_an_empty_batch_with_the_same_columns(allow_empty: bool) -> None:
    seen: list[Any] = []
    given = Input(("batch",), dispatch=Dispatch(allow_empty=allow_empty))
    stages = [call("batch", "source.next", samples=3), call("taken", "echo.take", given)]
    made = {"source": Source, "echo": lambda: Echo(seen)}
    outcome = ran({"a": 1, "b": 4}, {"source": "a", "echo": "b"}, stages, made, steps=1)
    if not allow_empty:
        assert "3 samples for 4 shares" in stage_error(outcome) and "`taken`" in stage_error(outcome)
        return
    assert not outcome.faults
    [empty] = [batch for _, rank, batch in seen if rank == 3]
    assert len(empty) == 0 and empty.names == ("x", "rows", "text") and empty["x"].dtype == torch.int64


# The end of data


class Sized(Source):
    """A source of some samples, of which it may have fewer than it announces."""

    def __init__(self, length: int, has: int = 1000) -> None:
        self.length, self.has = length, has

    def __len__(self) -> int:
        return self.length

    @endpoint
    def next(self, samples: range) -> Batch | None:
        return super().next(samples) if samples.start < self.has else None


class Endless(Sized):
    """The same without a length, as a stream is."""

    __len__ = None  # type: ignore[assignment]


def test_an_exam_without_a_length_may_not_end_in_silence() -> None:
    stages = [
        BATCH,
        call("loss", "echo.loss", "batch", collect="mean"),
        call("questions", "exam.next", samples=3, every=2),
        call("answers", "echo.take", "questions"),
    ]
    made = {"source": lambda: Sized(400), "exam": lambda: Endless(0, has=9), "echo": lambda: Echo([])}
    outcome = ran({"a": 1, "b": 1}, {"source": "a", "exam": "a", "echo": "b"}, stages, made, steps=0)
    assert stage_error(outcome) == (
        "`exam` returned no samples from number 9 on (step 8), but the run does not end with the data of `questions`: "
        "return samples again, from the first one, or set `ends_run: true` there"
    )


def test_epochs_need_one_source_that_knows_its_length() -> None:
    stages = [call("s", "source.next", samples=4), call("t", "other.next", samples=3)]
    parts, other = {"source": "a", "other": "a"}, {"other": Source}
    outcome = ran({"a": 1}, parts, stages, {"source": lambda: Sized(10), **other}, steps=0, epochs=2)
    assert not outcome.faults and outcome.last[0] == 5
    outcome = ran({"a": 1}, parts, stages, {"source": Source, **other}, steps=0, epochs=2)
    assert "none of s, t has a __len__" in str(outcome.faults[0])


def test_a_source_that_has_less_than_it_announced_is_an_error() -> None:
    outcome = ran({"a": 1}, {"source": "a"}, [BATCH], {"source": lambda: Sized(10, has=4)}, steps=0)
    message = "returned no samples from number 4 on, but its __len__ promises 10"
    assert message in str(outcome.faults[0])


def test_ranks_with_sources_of_different_lengths_are_an_error() -> None:
    class OfRank(Source):
        def __len__(self) -> int:
            return 10 - self.rank

    def listeners() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "ending"}

    before = listeners()
    faults = ran({"a": 3}, {"source": "a"}, [BATCH], {"source": OfRank}, steps=0).faults
    assert listeners() <= before  # none outlives a failed run
    messages = {str(fault) for fault in faults.values() if isinstance(fault, StageError)}
    start = "the length of `source` is 10 on its first rank and"
    assert messages and all(message.startswith(start) for message in messages)


@pytest.mark.parametrize(("length", "is_refused"), [(9, True), (5, False)])
def test_a_short_last_batch_is_refused_only_where_the_run_comes_to_it(length: int, is_refused: bool) -> None:
    """The source has 9 samples, the last of which is alone in step 3; the other one ends the run with `length`."""
    stages = [BATCH, call("taken", "echo.take", "batch"), call("other", "second.next", samples=4)]
    made = {"source": lambda: Sized(9), "second": lambda: Sized(length), "echo": lambda: Echo([])}
    outcome = ran({"a": 2}, {"source": "a", "echo": "a", "second": "a"}, stages, made, steps=0)
    assert any("end with a batch of 1" in str(error) for error in outcome.faults.values()) == is_refused
    assert is_refused or set(outcome.last.values()) == {2}


# Weights


class Weights(Component):
    def __init__(self, rows: int = 3) -> None:
        self.value = torch.zeros(rows, 2)
        self.sent: list[int] = []
        self.loaded: list[int] = []

    def weights(self) -> Any:
        self.sent.append(self.step)
        yield "w", self.value
        yield "b", self.value[0]

    def load_weights(self, stream: Any) -> None:
        dict(stream)
        self.loaded.append(self.step)

    @endpoint
    def use(self, batch: Batch) -> Batch:
        return batch

    @endpoint
    def learn(self, batch: Batch) -> dict[str, float]:
        self.value = torch.full((3, 2), float(self.step))
        return {"version": float(batch["@version"].max())}


class Lazy(Weights):
    def load_weights(self, stream: Any) -> None:
        next(iter(stream))


class Grown(Weights):
    @endpoint
    def learn(self, batch: Batch) -> None:  # type: ignore[override]
        self.value = torch.zeros(2 + self.step, 2)


def published(sampler: Weights, actor: Weights, every: int = 1, **options: Any) -> in_process.Outcome:
    """Runs steps of a training whose sampler loads the weights of an actor in another group."""
    publish = sync("publish", "actor", "sampler", **options.pop("of_sync", {}))
    stages = [
        call("batch", "source.next", samples=4, every=every),
        call("made", "sampler.use", "batch", every=every),
        call("learnt", "actor.learn", "made", collect="mean", every=every),
        publish,
    ]
    made = {"source": Source, "sampler": lambda: sampler, "actor": lambda: actor}
    parts = {"source": "a", "sampler": "a", "actor": "b"}
    return ran({"a": 1, "b": 1}, parts, stages, made, **{"steps": 4, **options})


@pytest.mark.parametrize(
    ("sampler", "actor", "message"),
    [
        (Weights(4), Weights(), "`w` has the shape [4, 2] where it is loaded and [3, 2] where it comes from"),
        (Lazy(), Weights(), "`sampler.load_weights` left `b` of its stream unread"),
        (Weights(), Grown(), "returns other weights or shards than in the first sync"),
    ],
)
def test_weights_that_do_not_fit_or_are_left_unread_are_an_error(
    sampler: Weights, actor: Weights, message: str
) -> None:
    """Those that change are first synced at the cut of a checkpoint."""
    options = {"of_sync": {"every": 5}, "steps": 6, "checkpoint": Checkpoint(every=3)}
    outcome = published(sampler, actor, **(options if isinstance(actor, Grown) else {}))
    assert any(message in str(fault) for fault in outcome.faults.values())


@pytest.mark.parametrize(("asked", "syncs"), [(True, 5), (False, 0), (None, 2)])
def test_a_sync_compares_checksums_unless_the_recipe_states_otherwise_and_by_default_in_the_first_two(
    asked: bool | None, syncs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[torch.Size] = []
    monkeypatch.setattr(weights, "checksum", lambda tensor: computed.append(tensor.shape) or 7)
    assert not published(Weights(), Weights(), of_sync={"checksum": asked}).faults
    assert len(computed) == 4 * syncs, "each side computes one for each of the two weights"
    sums = itertools.count()
    monkeypatch.setattr(weights, "checksum", lambda tensor: next(sums))
    faults = published(Weights(), Weights(), of_sync={"checksum": asked}).faults
    assert bool(faults) == bool(syncs)
    assert not syncs or "`publish`: `w` from job rank 1 is not what was sent" in str(faults[0])


def test_the_step_of_a_sync_is_the_running_one_for_both_sides() -> None:
    """Also in a step in which no stage calls them. The method that loads has a name of the user's."""

    class Other(Weights):
        def update(self, stream: Any) -> None:
            self.load_weights(stream)

    sampler, actor = Other(), Weights()
    assert not published(sampler, actor, every=2, of_sync={"to_method": "update"}).faults
    assert set(actor.sent) == {0, 1, 2, 3, 4} and sampler.loaded == [0, 1, 2, 3, 4]
