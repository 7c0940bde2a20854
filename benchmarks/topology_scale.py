"""The cost of a picture of 100,000 devices, against one of 8, and of one query about one rank of 1,000,000.

    python benchmarks/topology_scale.py [--rounds 9]

A picture is a process of `show-topology`. The recipe has three groups, in two sizes that are measured
alternately; the meshes of the large one have five dims. Queries are about ranks all over the mesh. A time is
the mean of a thousand queries, the best of five such means. The cost of a list of ranks grows with its
length, so dims of more than 256 ranks are not listed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from meshctl.plan.model import Cluster, Component, Group, Plan, Run
from meshctl.topology.flows import EvenFlow
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import COLLECT, EXECUTE

CPU_GOAL, MEMORY_GOAL = 1.5, 1.2
QUERY_GOAL_US = 50.0
QUERIES = 1000
"""Queries of one mean."""
MAX_LISTED_RANKS = 256
MAX_SHOWN = 12
"""The slowest queries that are shown."""

COMPONENTS = """
from meshctl import Batch, Component, endpoint


class Maker(Component):
    @endpoint
    def next(self, samples: range) -> Batch: ...


class Sampler(Component):
    @endpoint
    def sample(self, batch: Batch) -> Batch: ...

    def load_weights(self, stream) -> None: ...


class Judge(Component):
    @endpoint
    def score(self, batch: Batch) -> Batch: ...


class Actor(Component):
    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]: ...

    def weights(self): ...
"""

RECIPE = """
name: topology-scale
cluster: {{nodes: {nodes}, devices_per_node: 8}}
groups:
  rollout: {{ranks: {rollout}, device_type: cuda}}
  judge: {{ranks: {judge}, device_type: cuda}}
  train: {{ranks: {train}, device_type: cuda}}
components:
  maker: {{_target_: parts.Maker, group: rollout}}
  sampler: {{_target_: parts.Sampler, group: rollout, parallel: {{{sampler}}}}}
  judge: {{_target_: parts.Judge, group: judge, parallel: {{{judged}}}}}
  actor: {{_target_: parts.Actor, group: train, parallel: {{{actor}}}}}
pipeline:
  batch: {{call: maker.next, samples: 1048576, sample_bytes: 2000}}
  rollouts: {{call: sampler.sample, in: batch, samples: 1048576, sample_bytes: 60000}}
  scored: {{call: judge.score, in: rollouts, dispatch: {{balance: tokens}}}}
  metrics: {{call: actor.update, in: scored}}
  publish: {{sync: actor, to: sampler}}
"""
SMALL = RECIPE.format(
    nodes=1,
    rollout=2,
    judge=2,
    train=4,
    sampler="tp_size: 2",
    judged="tp_size: 2",
    actor="fsdp_size: 2, tp_size: 2",
)
LARGE = RECIPE.format(
    nodes=12_500,
    rollout=40_000,
    judge=2_656,
    train=57_344,
    sampler="pp_size: 2, dp_size: auto, fsdp_size: 2, cp_size: 2, tp_size: 4",
    judged="pp_size: 2, dp_size: auto, fsdp_size: 2, cp_size: 2, tp_size: 4",
    actor="pp_size: 16, dp_size: auto, fsdp_size: 32, cp_size: 2, tp_size: 8, ulysses_size: 2, ep_size: 64, "
    "etp_size: 2, vpp_size: 2",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cases = []
    print(f"{'show-topology':<16} {'8 devices':>12} {'100,000':>12} {'ratio':>7} {'goal':>6}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "parts.py").write_text(COMPONENTS)
        (folder / "small.yaml").write_text(SMALL)
        (folder / "large.yaml").write_text(LARGE)
        for format in ("json", "text"):
            pairs = [(shown(folder, "small", format), shown(folder, "large", format)) for _ in range(rounds)]
            cases += [case for case in compared(format, pairs) if case["goal"]]
    print(f"\n{'a query about one of 1,000,000 ranks':<48} {'microseconds':>12} {'goal':>6}")
    times = sorted(((microseconds(query), name) for name, query in queries()), reverse=True)
    for duration, name in times[:MAX_SHOWN]:
        print(f"{name:<48} {duration:>12.1f} {QUERY_GOAL_US:>6}")
    print(f"and {len(times) - MAX_SHOWN} faster ones")
    cases.append(
        {"what": f"microseconds of {times[0][1]}", "value": round(times[0][0], 1), "goal": QUERY_GOAL_US}
    )
    worst, *others = sorted(cases, key=lambda case: case["value"] / case["goal"], reverse=True)
    print(
        json.dumps(
            {"name": "topology_scale", **worst, "ok": worst["value"] <= worst["goal"], "others": others}
        )
    )


def shown(folder: Path, recipe: str, format: str) -> tuple[float, float, int]:
    """Returns the CPU seconds, the peak MiB and the bytes of a picture."""
    command = [
        str(Path(sys.executable).with_name("meshctl")),
        "show-topology",
        f"{recipe}.yaml",
        "--format",
        format,
    ]
    with (folder / "out").open("wb") as out, subprocess.Popen(command, cwd=folder, stdout=out) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, (folder / "out").stat().st_size


def compared(
    format: str, pairs: list[tuple[tuple[float, float, int], tuple[float, float, int]]]
) -> Iterator[dict[str, object]]:
    for index, (what, unit, goal) in enumerate(
        (("CPU", "s", CPU_GOAL), ("peak memory", "MiB", MEMORY_GOAL), ("size", "bytes", None))
    ):
        small, large = (statistics.median(each[side][index] for each in pairs) for side in (0, 1))
        ratio = statistics.median(many[index] / few[index] for few, many in pairs)
        figures = [
            f"{value:.3f} {unit}" if unit == "s" else f"{value:.0f} {unit}" for value in (small, large)
        ]
        print(
            f"{format + ' ' + what:<16} {figures[0]:>12} {figures[1]:>12} {ratio:>7.2f} {goal or '':>6}",
            flush=True,
        )
        yield {"what": f"{what} of {format}", "value": round(ratio, 3), "goal": goal}


def queries() -> Iterator[tuple[str, Callable[[int], object]]]:
    """Yields the queries about one rank by name, on a mesh with dims of usual sizes."""
    mesh = DeviceMesh.from_sizes(
        pp_size=10,
        dp_size=50,
        fsdp_size=125,
        cp_size=2,
        tp_size=8,
        ulysses_size=2,
        ep_size=50,
        etp_size=2,
        vpp_size=2,
    )
    assert mesh.world_size == 1_000_000
    dims = (*mesh.mesh_dim_names, "data", "ulysses", "ep_fsdp", "ep", "etp")
    yield "coordinate", mesh.coordinate
    for view in ("data", "expert"):
        yield f"view({view!r}).coordinate", mesh.view(view).coordinate
        yield f"view({view!r})", lambda rank, view=view: mesh.view(view)
    yield "coordinate and rank", lambda rank: mesh.rank(mesh.coordinate(rank))
    yield "in", mesh.__contains__
    for dim in dims:
        yield f"dim_rank {dim}", lambda rank, dim=dim: mesh.dim_rank(rank, dim)
        if mesh.size(dim) <= MAX_LISTED_RANKS:
            yield f"ranks_along {dim} ({mesh.size(dim)})", lambda rank, dim=dim: mesh.ranks_along(dim, rank)
        yield f"neighbour {dim}", lambda rank, dim=dim: mesh.neighbour(rank, dim, ring=True)
        yield f"is_last {dim}", lambda rank, dim=dim: mesh.is_last(rank, dim)
        yield f"size and stride {dim}", lambda rank, dim=dim: (mesh.size(dim), mesh.stride(dim))
    yield "ranks_along cp and tp (16)", lambda rank: mesh.ranks_along(("cp", "tp"), rank)
    yield "ranks_along pp and tp (80)", lambda rank: mesh.ranks_along(("pp", "tp"), rank)
    yield "data_rank", mesh.data_rank
    yield "get_slice", lambda rank: mesh.sample_range(1 << 20, rank)
    yield "representative", lambda rank: mesh.representative(rank % mesh.data_size)
    yield "pp_stages_of", mesh.pp_stages_of
    yield "sub-mesh tp", lambda rank: mesh.at(rank)["tp"]
    yield "sub-mesh dp, fsdp", lambda rank: mesh.at(rank)["dp", "fsdp"]
    cluster = Cluster.of(125_000, cuda=8)
    group = Group("train", "cuda", 1_000_000, 0, ((0, 1_000_000),))
    plan = Plan("p", 0, cluster, (group,), (Component("c", "m.C", "train", mesh),), (), (), Run())
    yield "plan.worker", lambda rank: plan.worker("train", rank)
    yield (
        "plan.node_of and local_rank",
        lambda rank: (plan.node_of("train", rank), plan.local_rank("train", rank)),
    )
    for collect in COLLECT:
        yield (
            f"producer number, collect {collect}",
            lambda rank, collect=collect: COLLECT[collect].producers.index_of(mesh, rank),
        )
    for execute in ("all", "peer"):
        links = EvenFlow(mesh, mesh, 1 << 20, execute=EXECUTE[execute])
        yield f"producers of a rank, execute {execute}", links.producers_of
        yield f"samples of a rank, execute {execute}", links.span_of


def microseconds(query: Callable[[int], object]) -> float:
    """Returns the time of one query in microseconds."""
    ranks = [number * 7919 % 1_000_000 for number in range(QUERIES)]
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for rank in ranks:
            query(rank)
        best = min(best, (time.perf_counter() - begin) / QUERIES)
    return best * 1e6


if __name__ == "__main__":
    main()
