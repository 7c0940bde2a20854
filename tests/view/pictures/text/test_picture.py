"""The text picture: pinned ones for 8, 64 and 100,000 devices, and that the picture of any plan fits the
screen."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.plan.model import Component, Group, Plan, Stage
from meshctl.plan.views.topology import Warning, topology
from meshctl.topology.cluster import Cluster
from meshctl.topology.mesh import DeviceMesh
from meshctl.view.formatting import size
from meshctl.view.pictures import mermaid, transports_of
from meshctl.view.pictures.text.picture import draw
from meshctl.view.pictures.text.pipeline import SHORT
from meshctl.view.pictures.text.styled import in_encoding, width_of
from tests.examples import examples
from tests.view.conftest import Pinned
from tests.view.pictures.plans import PINNED, PLANS, call, component, drawn, group, many, odd, plan

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("name", PINNED)
def test_golden(name: str, pinned: Pinned) -> None:
    made = drawn(name)
    pinned(f"topology_{name}.txt", draw(made))
    assert ESCAPE.sub("", draw(made, color=True)) == draw(made)


def test_ascii_keeps_every_column() -> None:
    text = draw(drawn("64"))
    plain = in_encoding(text, "ascii")
    assert plain.isascii() and list(map(len, plain.split("\n"))) == list(map(len, text.split("\n")))
    assert in_encoding(text, "utf-8") == text == in_encoding(text, "UTF-16")


def test_a_stage_runs_at_the_time_of_what_it_takes() -> None:
    stages = [call("batch", "prompts.next", samples=4), call("late", "actor.look", "batch", when="end")]
    stages += [call("after", "actor.look", "late"), call("metrics", "actor.update", "after", collect="mean")]
    train = group("train", "cpu", 2)
    components = [component("prompts", train), component("actor", train)]
    text = draw(topology(plan("late", Cluster.of(1), [train], components, stages)))
    assert len(re.findall("at end", text)) == 3 and "mean, at end" in text


def fits(text: str, width: int, lines: int) -> bool:
    return (
        text.endswith("\n")
        and text.count("\n") <= lines
        and all(width_of(line) <= width for line in text[:-1].split("\n"))
    )


@pytest.mark.parametrize("width", [40, 200])
def test_fits_whatever_there_is_to_show(width: int) -> None:
    for made in (odd(), many(100), *(topology(make()) for make in PLANS.values())):
        assert fits(draw(made, width), width, 60)
    short, full = draw(drawn("100000"), lines=30), draw(drawn("100000"), lines=200)
    assert fits(short, 80, 30) and fits(full, 80, 200) and full.count("\n") > 60


def test_very_many_of_everything_are_folded_and_the_warnings_leave_room() -> None:
    text = draw(many(500))
    assert "--component NAME" in text and "more stages" in text and "--node N" in text
    crosses = Warning("MC421", "all ep groups of `actor` cross nodes", "recipe.yaml:11:152", "ep 8 x etp 1")
    text = draw(topology(PINNED["100000"](), [crosses] * 3))
    assert fits(text, 80, 60) and re.search(r"ep +2048 x 32 +1 +0 1 … 31 +cross", text)


@pytest.mark.parametrize("name", ["8", "16", "64", "100000"])
@pytest.mark.parametrize("width", [48, 200])
def test_every_route_shows_its_modes_and_its_transport(name: str, width: int) -> None:
    made = drawn(name)
    text = draw(made, width, lines=200)
    _, _, pipeline = text.partition("\npipeline\n")
    pipeline = " ".join(word for word in pipeline.partition("4 -> 2 producers")[0].split() if word != "│")
    for route in made.routes:
        shown = rf"{route.producers} -> {route.consumers} .*?({transports_of(route, SHORT)}|{transports_of(route)})"
        how = route.collect + " " + route.dispatch.mode if route.kind == "data" else ""
        assert re.search(shown.replace(".*?", f"{how}.*?"), pipeline), (route.name, pipeline)
        assert not route.bytes or size(route.bytes) in pipeline, route.name


def test_words_are_abbreviated_before_they_are_cut() -> None:
    text = draw(drawn("64"), 48, lines=100)
    assert text.startswith("grpo-64  46 workers on 8 nodes, 8 devices idle\n")
    assert "dp  1 x 6, stride 1, 0 1 … 5, cross\n" in text


def test_warnings_are_whole_before_they_are_cut() -> None:
    found = Warning(
        "MC538",
        "each of the data ranks gives all samples, so each of them comes as often as there are data ranks",
        "a.yaml:1:1",
        "why",
    )
    made = topology(PINNED["8"](), [found] * 2)
    whole, brief = (draw(made, lines=lines) for lines in (60, 28))
    assert "help: why" in whole and "help: why" not in brief
    assert "help: why" not in brief and re.search("MC538 .*…\n", brief)


def test_every_row_of_nodes_shows_its_devices() -> None:
    """Also if there are too many letters to draw device types side by side."""
    groups = [group("a", "cpu", 4), group("b", "cuda", 8, (0, 8))]
    components = [component(f"component_{number}", groups[number % 2]) for number in range(300)]
    heading = [
        line.strip()
        for line in draw(topology(plan("many", Cluster.of(1, cuda=8), groups, components, []))).split("\n")
    ]
    assert any("cuda" in line and "cpu" in line for line in heading)


def test_bytes_of_a_sample_are_shown_where_samples_are_not_counted() -> None:
    alone = group("a", "cpu", 2)
    stages = [
        call("batch", "actor.next", samples=4, sample_bytes=100),
        call("more", "actor.look", "batch", sample_bytes=2000),
    ]
    text = draw(topology(plan("p", Cluster(), [alone], [component("actor", alone)], stages)))
    assert (
        re.search(r"batch = .* 4 samples\n", text)
        and re.search(r"more = .* 2 kB a sample", text)
        and "400 B" in text
    )


# Any plan


@st.composite
def plans(pick: st.DrawFn) -> Plan:
    """Draws groups of any size on nodes of any size, meshes of any shape, and stages that take values of any
    earlier ones."""
    each, places = pick(st.integers(1, 16)), 0
    groups, stages = list[Group](), list[Stage]()
    for number in range(pick(st.integers(1, 5))):
        workers, kind = pick(st.integers(1, 48)), pick(st.sampled_from(["cuda", "cpu"]))
        devices = [(places, places + workers)] if kind == "cuda" else []
        places += workers * (kind == "cuda") + pick(st.integers(0, 3))
        groups.append(group(pick(NAMES) + str(number), kind, workers, *devices))
    components = [pick(component_on(groups, number)) for number in range(pick(st.integers(0, 8)))]
    for number in range(pick(st.integers(0, 10)) if components else 0):
        earlier = st.lists(st.sampled_from([stage.name for stage in stages]), max_size=4, unique=True)
        sources = pick(earlier) if stages else []
        of, samples, every = (
            pick(st.sampled_from(components)),
            pick(st.integers(0, 10**6)),
            pick(st.integers(1, 9)),
        )
        stages.append(call(f"stage{number}", f"{of.name}.run", *sources, samples=samples, every=every))
    return plan(pick(NAMES), Cluster.of(-(-max(places, 1) // each), cuda=each), groups, components, stages)


NAMES = st.text("abcdefgh_日本é", min_size=1, max_size=30)
DIMS = ["pp", "dp", "fsdp", "cp", "tp"]


@st.composite
def component_on(pick: st.DrawFn, groups: list[Group], number: int) -> Component:
    of = pick(st.sampled_from(groups))
    sizes: dict[str, Any] = {}
    left = of.workers
    for dim in pick(st.permutations(DIMS))[:-1]:
        sizes[f"{dim}_size"] = pick(
            st.sampled_from([size for size in range(1, left + 1) if left % size == 0])
        )
        left //= sizes[f"{dim}_size"]
    rest = next(f"{dim}_size" for dim in DIMS if f"{dim}_size" not in sizes)
    mesh = DeviceMesh.from_sizes(
        world_size=of.workers, **sizes, **{rest: left}, order=pick(st.permutations(DIMS))
    )
    return Component(f"{pick(NAMES)}{number}", "x.Some", of.name, mesh)


@settings(max_examples=examples(25, 1500))
@given(plans(), st.integers(40, 140), st.integers(20, 80))
def test_any_plan_fits_and_hides_nothing_unsaid(made: Plan, width: int, lines: int) -> None:
    whole = topology(made)
    text = draw(whole, width, lines=lines)
    assert fits(text, width, lines)
    missing = [one for one in whole.components if not re.search(rf"^ +{one.letter} ", text, re.MULTILINE)]
    assert not missing or re.search(r"\.\.\. and \d+ more: --component NAME", text)


def test_pools_of_nodes() -> None:
    pools = (("gpu", 4), ("cpu", 1))
    train = group("train", "cuda", 32, (0, 32))
    judge = group("judge", "cpu", 2, nodes=((4, 5),))
    parts = [component("actor", train, dp_size=2, tp_size=16), component("judge", judge)]
    shown = topology(plan("p", Cluster(5, {"cuda": ((4, 8), (1, 0))}, pools), [train, judge], parts, []))
    assert [group.pools for group in shown.groups] == [("gpu",), ("cpu",)]
    text = draw(shown)
    for words in ("  pools  gpu: nodes 0-3, cpu: node 4\n", "32 workers on 32 cuda, nodes 0-3 of gpu",
                  "2 workers on cpu, node 4 of cpu"):  # fmt: skip
        assert words in text, words
    assert "4 nodes of gpu" in mermaid.draw(shown) and "pools" not in draw(drawn("64"))


# The placement: the group of each device, and the signs in the legend


def colocated(each: int, guest_each: int, guests: int, guest_first: bool = True) -> Plan:
    """Eight devices with workers of `each`, and `guests` of a second group on the first devices."""
    host = group("rollout", "cuda", 8 // each, (0, 8), gpus_per_worker=each)
    stop = guests * guest_each
    guest = group("judge", "cuda", guests, (0, stop), gpus_per_worker=guest_each, colocate="rollout")
    groups = [guest, host] if guest_first else [host, guest]
    components = [component("sampler", host), component("judge", guest)]
    return plan("colocated", Cluster.of(1, cuda=8), groups, components, [])


@pytest.mark.parametrize(
    ("made", "row", "narrow"),
    [
        (colocated(2, 1, 8), "B+A  B+═  B+A  B+═  B+A  B+═  B+A  B+═", "B x 8 + A x 4 of 2"),
        (colocated(2, 1, 8, guest_first=False), "A+B  ═+B  A+B  ═+B  A+B  ═+B  A+B  ═+B", ""),
        (colocated(2, 2, 4), "B+A ════  B+A ════  B+A ════  B+A ════", "B+A x 4 of 2"),
        (colocated(4, 2, 4), "B+A ════  B+═ ════  B+A ════  B+═ ════", ""),
        (colocated(2, 1, 3), "B+A B+═ B+A │══ A ═══ A ═══", "B x 3 + A x 2 of 2 │"),
        (colocated(1, 2, 2), "B+A ═+A B+A ═+A │ A A A A", ""),
    ],
)
def test_a_colocated_worker_of_several_devices_is_one_worker(made: Plan, row: str, narrow: str) -> None:
    """A narrow picture counts equal neighbors group by group."""
    text = draw(topology(made), 200)
    (found,) = re.findall("node 0 │ (.*) │", text)
    assert re.sub("═+", "═", " ".join(found.split())) == re.sub("═+", "═", " ".join(row.split()))
    assert "A ═══ one worker" in text
    text = draw(topology(made), 40)
    assert narrow in re.sub(" +", " ", text) and "═" not in text


@pytest.mark.parametrize("name", ["16", "100000", "on_cpu", "program"])
@pytest.mark.parametrize(("width", "lines"), [(40, 60), (80, 30), (120, 200)])
def test_the_legend_explains_only_signs_that_occur(name: str, width: int, lines: int) -> None:
    body, _, legend = draw(drawn(name), width, lines=lines).rstrip("\n").rpartition("\n")
    signs = {
        "one worker": "═",
        "shares of each batch": r"\d shares?\b",
        "producers -> consumers": r"\d -> \d",
    }
    for words, sign in {**signs, "· idle": "·"}.items():
        assert words not in legend or re.search(sign, body), (words, body)
