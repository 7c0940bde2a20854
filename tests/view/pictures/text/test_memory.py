"""The lines with the bytes of models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshctl.plan.views.selection import Selection, select
from meshctl.plan.views.topology import Topology, topology
from meshctl.topology.cluster import Cluster
from meshctl.topology.memory import ComponentMemory, DeviceMemory, Memory, Move
from meshctl.view.pictures.json import data
from meshctl.view.pictures.text.picture import draw
from meshctl.view.pictures.text.zoom import draw as draw_zoom
from tests.view.conftest import Pinned
from tests.view.pictures.plans import call, component, group, plan

GB = 10**9
TRAIN, JUDGE = group("train", "cuda", 4, (0, 4)), group("judge", "cpu", 2)
PLAN = plan(
    "memory",
    Cluster.of(1, cuda=4),
    [TRAIN, JUDGE],
    [component("actor", TRAIN), component("reference", TRAIN), component("reward", JUDGE)],
    [call("batch", "reward.next", samples=8), call("metrics", "actor.update", "batch")],
)
ACTOR = ComponentMemory("actor", 4 * GB, 4 * GB, 8 * GB, 268_435_456, "AdamW")
REFERENCE, REWARD = (
    ComponentMemory("reference", 4 * GB),
    ComponentMemory("reward", 2 * GB, 30_000_000, None, 0, "Own"),
)
BOTH = DeviceMemory(("train",), ("actor", "reference"), 20 * GB, True, "cuda", 80 * GB)
ALONE = replace(BOTH, components=("actor",), total=16 * GB)
UNKNOWN = ComponentMemory(
    "reference", unknown="`org/model` is neither a local folder nor in the cache of the hub"
)
PROCESS = DeviceMemory(("judge",), ("reward",), 2 * GB, False, "cpu")


def drawn(memory: Memory) -> Topology:
    return topology(PLAN, memory=memory)


def section(memory: Memory, width: int = 80, lines: int = 60) -> list[str]:
    text = draw(drawn(memory), width, lines=lines).splitlines()
    start = text.index("memory on each rank") + 1
    return text[start : text.index("pipeline")]


def test_golden(pinned: Pinned) -> None:
    pinned("topology_memory.txt", draw(drawn(Memory((ACTOR, REFERENCE, REWARD), (BOTH, PROCESS)))))


def test_the_only_model_of_a_device_is_compared_in_its_own_line() -> None:
    assert section(Memory((ACTOR,), (ALONE,)))[0].endswith("= 16.3 GB of 80 GB")
    assert section(Memory((REFERENCE,), (replace(ALONE, components=("reference",)),))) == [
        "  B reference  4 GB weights = 4 GB of 80 GB",
        "",
    ]


def test_the_trained_part_of_a_model_is_named() -> None:
    found = section(Memory((replace(ACTOR, trained=(5_046_272, 601_096_192)),), (ALONE,)), 120)
    assert "= 16.3 GB of 80 GB (5.05 M of 601 M parameters are trained)" in " ".join(" ".join(found).split())


def test_an_unknown_model_has_its_reason_and_its_device_a_lower_bound() -> None:
    partly = replace(ALONE, is_complete=False, total=16 * GB)
    found = section(Memory((ACTOR, UNKNOWN), (partly,)))
    assert found[0].endswith("+ 268 MB sync = 16.3 GB")
    assert found[1] == "  B reference  unknown: `org/model` is neither a local folder nor in the cache"
    assert found[2] == "               of the hub"
    assert found[3] == "  train        at least 16 GB of 80 GB on each device"


@pytest.mark.parametrize("width", [40, 120])
def test_nothing_is_cut(width: int) -> None:
    text = " ".join(" ".join(section(Memory((ACTOR, UNKNOWN, REWARD), (BOTH, PROCESS)), width)).split())
    assert "4 GB weights + 4 gradients + 8 AdamW + 268 MB sync = 16.3 GB" in text
    assert "nor in the cache of the hub" in text and "… " not in text
    assert "+ unknown Own > 2.03 GB" in text


def test_many_components_leave_room() -> None:
    many = Memory(tuple(replace(ACTOR, component="actor") for _ in range(100)), (BOTH,))
    text = draw(drawn(many)).splitlines()
    assert len(text) <= 60 and any("20 GB of 80 GB on each device" in line for line in text)


def test_json_has_the_bytes_where_models_are_known() -> None:
    assert "memory" not in data(drawn(Memory()))
    found = data(drawn(Memory((ACTOR, UNKNOWN), (BOTH,))))["memory"]
    assert found["components"][0]["optimizer"] == 8 * GB
    assert found["components"][1]["unknown"].startswith("`org/model`")
    assert found["devices"][0]["components"] == ["actor", "reference"]
    assert (found["devices"][0]["total"], found["devices"][0]["device_memory"]) == (20 * GB, 80 * GB)


def test_a_component_alone_has_its_bytes() -> None:
    whole = drawn(Memory((ACTOR, REFERENCE), (BOTH,)))
    text = draw_zoom(select(PLAN, whole, Selection(component="actor")), whole)
    assert "  A actor  4 GB weights + 4 gradients + 8 AdamW + 268 MB sync = 16.3 GB\n" in text
    assert "reference  4 GB" not in text
    assert "memory on each rank" not in draw_zoom(select(PLAN, whole, Selection(component="reward")), whole)


def test_what_a_rank_sends_follows_its_memory() -> None:
    moves = (Move("fsdp", "all-gather", 2 * GB), Move("tp", "all-reduce", 4000, per_token=True))
    lines = draw(drawn(Memory((replace(ACTOR, moves=moves),), (ALONE,)))).splitlines()
    at = next(number for number, line in enumerate(lines) if "AdamW" in line)
    text = " ".join(" ".join(lines[at:]).split())
    assert "sends 2 GB all-gather (fsdp) each micro-batch, 4 kB all-reduce (tp) each token" in text
    assert "sends" not in draw(drawn(Memory((ACTOR,), (ALONE,))))
