"""Syncs of weights in whole runs: exact, with checksums, and up to date in checkpoints."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import endpoint
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes import weights
from tests.runtime import in_process
from tests.runtime.loop.sources import Weights
from tests.runtime.pipelines import Source
from tests.runtime.plans import Checkpoint, call, plan, sync


@pytest.mark.parametrize(("lag", "every"), [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)])
def test_a_sync_is_exact(lag: int, every: int) -> None:
    seen: list[tuple[int, int]] = []
    job = plan(
        {"a": 2, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", "sampler.use", "batch"),
         call("learnt", "actor.learn", "made", collect="mean"), sync("publish", "actor", "sampler", lag=lag, every=every)], steps=7,
    )  # fmt: skip
    outcome = in_process.run(
        job,
        lambda name, rank: (
            Source() if name == "source" else Weights(seen if (name, rank) == ("sampler", 0) else [])
        ),
    )
    assert not outcome.faults
    assert [value for _, value in seen] == [0, *(step for step in range(every, 8 - lag) if step % every == 0)]
    versions = [event.value["values"]["version"] for event in outcome.events if event.name == "metric"]
    assert versions == [max(0, (step - 1 - lag) // every * every) for step in range(1, 8)]


def synced(checksum: bool | None) -> in_process.Outcome:
    """Runs four steps with a sync in each, after the one of the opening."""
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", "sampler.use", "batch"),
         call("learnt", "actor.learn", "made", collect="mean"), sync("publish", "actor", "sampler", checksum=checksum)],
        steps=4,
    )  # fmt: skip
    return in_process.run(job, lambda name, rank: Source() if name == "source" else Weights([]))


@pytest.mark.parametrize("asked", [True, False, None])
def test_a_sync_compares_checksums_unless_the_recipe_states_otherwise(
    asked: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = itertools.count()
    monkeypatch.setattr(weights, "checksum", lambda tensor: next(sums))
    outcome = synced(asked)
    assert bool(outcome.faults) == (asked is not False)
    assert asked is False or "`publish`: `w` from " in str(outcome.faults[0])


@pytest.mark.parametrize(("asked", "syncs"), [(True, 5), (False, 0), (None, 2)])
def test_the_first_two_syncs_have_checksums_where_the_recipe_is_silent(
    asked: bool | None, syncs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[torch.Size] = []
    monkeypatch.setattr(weights, "checksum", lambda tensor: computed.append(tensor.shape) or 7)
    assert not synced(asked).faults
    assert len(computed) == 4 * syncs, "each side computes one for each of the two weights"


def test_a_checkpoint_lets_weights_catch_up() -> None:
    seen: list[tuple[int, int]] = []
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", "sampler.use", "batch"),
         call("learnt", "actor.learn", "made", collect="mean"), sync("publish", "actor", "sampler", lag=2)],
        steps=6, checkpoint=Checkpoint(every=3),
    )  # fmt: skip
    in_process.run(
        job, lambda name, rank: Source() if name == "source" else Weights(seen if name == "sampler" else [])
    )
    assert [value for _, value in seen] == [0, 1, 2, 3, 4, 5, 6]


def test_a_checkpoint_sends_weights_again_that_changed_after_their_sync() -> None:
    seen: list[tuple[int, int]] = []
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [sync("publish", "actor", "sampler", every=2), call("batch", "source.next", samples=4),
         call("learnt", "actor.learn", "batch", collect="mean"), call("made", "sampler.use", "batch")],
        steps=2, checkpoint=Checkpoint(every=2),
    )  # fmt: skip
    in_process.run(
        job,
        lambda name, rank: Source() if name == "source" else Unversioned(seen if name == "sampler" else []),
    )
    assert [value for _, value in seen] == [0, 1, 2]  # at the start, by the sync of step 2, at the cut


class Stepped(Weights):
    def weights(self) -> Any:
        self.seen.append((self.step, 0))
        return super().weights()


def test_the_step_of_a_sync_is_the_running_one_for_both_sides() -> None:
    """Also in a step in which no stage calls them."""
    sent: list[tuple[int, int]] = []
    loaded: list[tuple[int, int]] = []
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [call("batch", "source.next", samples=4, every=2), call("made", "sampler.use", "batch", every=2),
         call("learnt", "actor.learn", "made", collect="mean", every=2), sync("publish", "actor", "sampler")],
        steps=4,
    )  # fmt: skip
    sides = {"sampler": Weights(loaded), "actor": Stepped(sent), "source": Source()}
    assert not in_process.run(job, lambda name, rank: sides[name]).faults
    assert {step for step, _ in sent} == {0, 1, 2, 3, 4}
    assert [step for step, _ in loaded] == [0, 1, 2, 3, 4]


class Unversioned(Weights):
    @endpoint
    def learn(self, batch: Batch) -> dict[str, float]:
        self.value = torch.full((3, 2), float(self.step))
        return {}


class Grown(Weights):
    @endpoint
    def learn(self, batch: Batch) -> None:
        self.value = torch.zeros(2 + self.step, 2)


def test_changed_weights_are_reported_in_one_line_also_at_a_cut() -> None:
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", "sampler.use", "batch"),
         call("learnt", "actor.learn", "made", collect="mean"), sync("publish", "actor", "sampler", every=5)],
        steps=6, checkpoint=Checkpoint(every=3),
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Grown([]))
    [fault] = [error for error in outcome.faults.values() if isinstance(error, StageError)]
    assert str(fault).endswith("returns other weights or shards than in the first sync")
