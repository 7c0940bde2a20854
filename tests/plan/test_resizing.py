"""Plans without lost nodes, devices and processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.plan.model import Plan
from meshctl.plan.resizing import CannotResize, Lost, resizings
from meshctl.plan.resolve import resolve
from meshctl.recipe.load import Loaded, load
from tests.paths import RECIPE_GOLDEN as GOLDEN

RECIPE = """
name: elastic
cluster: {nodes: 3}
groups:
  train: {ranks: 12, device_type: cuda}
  judge: {ranks: 6, device_type: cpu}
  data: {ranks: 1, device_type: cpu, nodes: 0}
components:
  prompts: {_target_: arithmetic.Prompts, group: data}
  judge: {_target_: arithmetic.Judge, group: judge}
  actor: {_target_: arithmetic.Actor, group: train, parallel: {fsdp_size: auto, tp_size: 2}}
pipeline:
  batch: {call: prompts.next, samples: 64}
  scored: {call: judge.score, in: batch}
  metrics: {call: actor.update, in: scored}
run: {steps: 20, restarts: 3, elastic: {train: {min_ranks: 4}, judge: {}}}
"""


def loaded(folder: Path, text: str, *overrides: str) -> Loaded:
    (folder / "recipe.yaml").write_text(text)
    found = load("recipe.yaml", overrides, folder, path=(str(GOLDEN), str(folder)))
    assert [one.message for one in found.report.errors] == []
    return found


def without(folder: Path, text: str, lost: Lost) -> tuple[list[str], Plan]:
    """The overrides of the largest groups that are left, and the plan with them."""
    whole = loaded(folder, text)
    overrides = next(iter(resizings(whole.recipe, resolve(whole.recipe, whole.endpoints), lost)))
    smaller = loaded(folder, text, *overrides)
    return overrides, resolve(smaller.recipe, smaller.endpoints)


def test_a_lost_device_leaves_whole_replicas_on_each_node(tmp_path: Path) -> None:
    overrides, plan = without(tmp_path, RECIPE, Lost(devices=frozenset({("cuda", 5)})))
    assert overrides == [
        "cluster.devices_per_node={cuda:4}",
        "groups.train.ranks=[0,1,2,3,4,6,8,9,10,11]",
        "components.actor.parallel.fsdp_size=5",
        "~run.elastic",
    ]
    assert plan.group("judge").workers == 6


def test_a_lost_node_leaves_the_numbers_of_the_others(tmp_path: Path) -> None:
    overrides, plan = without(tmp_path, RECIPE, Lost(nodes=frozenset({1})))
    assert "groups.judge.nodes=[0,2]" in overrides and "groups.judge.ranks=4" in overrides
    assert (plan.nodes_of("train"), plan.nodes_of("judge")) == ((0, 2), (0, 2))
    assert plan.group("train").devices == ((0, 4), (8, 12))
    whole = loaded(tmp_path, RECIPE)
    last = without(tmp_path, RECIPE, Lost(nodes=frozenset({2})))[1]
    assert last.cluster == resolve(whole.recipe, whole.endpoints).cluster
    untouched = Lost(devices=frozenset({("npu", 0)}))
    assert not list(resizings(whole.recipe, resolve(whole.recipe, whole.endpoints), untouched))


def test_named_devices_of_a_node_lose_their_name(tmp_path: Path) -> None:
    text = """
    name: named
    groups: {train: {ranks: 4, device_type: cuda, visible_devices: "8,9,10,11", program: train.py}}
    run: {restarts: 3, elastic: {train: {min_ranks: 2}}}
    """
    (tmp_path / "train.py").touch()
    overrides, plan = without(tmp_path, text, Lost(devices=frozenset({("cuda", 1)})))
    assert "groups.train.ranks=[0,2,3]" in overrides
    assert plan.group("train").visible_devices == ("8", "10", "11")


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        (Lost(nodes=frozenset({0})), "`data` is not in `run.elastic`"),
        (
            Lost(nodes=frozenset({1, 2}), devices=frozenset({("cuda", 0)})),
            "`train` has 3 ranks left, and no layout",
        ),
    ],
)
def test_what_cannot_be_survived(lost: Lost, why: str, tmp_path: Path) -> None:
    with pytest.raises(CannotResize, match=why):
        without(tmp_path, RECIPE, lost)


LOSSES = st.builds(
    Lost,
    st.frozensets(st.integers(1, 2), max_size=1),
    st.frozensets(st.tuples(st.just("cuda"), st.integers(0, 11)), max_size=5),
    st.fixed_dictionaries({}, optional={"judge": st.integers(0, 2)}),
)


@settings(max_examples=8)
@given(LOSSES)
def test_a_smaller_plan_uses_nothing_that_is_lost(
    tmp_path_factory: pytest.TempPathFactory, lost: Lost
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = loaded(folder, RECIPE)
    plan = resolve(whole.recipe, whole.endpoints)
    try:
        [overrides, *_] = [*resizings(whole.recipe, plan, lost), []]
    except CannotResize:
        return
    smaller = loaded(folder, RECIPE, *overrides)
    found = resolve(smaller.recipe, smaller.endpoints)
    for group in ("train", "judge"):
        ranks = range(found.group(group).workers)
        assert not any(lost.has_worker(found, group, rank) for rank in ranks)
    touched = sum(lost.has_worker(plan, "train", rank) for rank in range(12))
    left = (12 - touched) // 2 * 2
    assert found.group("train").workers == left
    assert found.cluster == plan.cluster
