"""Plans for pictures: those with pinned pictures (8, 16, 64 and 100,000 devices, CPU, and a program), all
features at once, one worker, unusual names, and large numbers of everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from meshctl.plan.model import Component, Group, Input, Plan, Program, Run, Stage
from meshctl.plan.views.topology import Topology, Warning, topology
from meshctl.topology.cluster import Cluster
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route


def plan(
    name: str, cluster: Cluster, groups: list[Group], components: list[Component], stages: list[Stage]
) -> Plan:
    """Returns a plan, with the placement of groups and the routes of stages filled in."""
    placed, first = list[Group](), 0
    for group in groups:
        placed.append(replace(group, first_job_rank=first))
        first += group.workers
    routes = [route for stage in stages for route in _routes(stage, {other.name: other for other in stages})]
    return Plan(
        name, 0, cluster, tuple(placed), tuple(components), tuple(stages), tuple(routes), Run(steps=3)
    )


def _routes(stage: Stage, stages: dict[str, Stage]) -> list[Route]:
    if stage.kind == "sync":
        return [Route(stage.name, stage.name, stage.name, kind="weights", slots=stage.lag + 2)]
    return [
        Route(f"{name} -> {stage.name}{'.' * bool(part.parameter)}{part.parameter}", name, stage.name, part.parameter,
              collect=stages[name].collect, dispatch=part.dispatch)
        for part in stage.inputs for name in part.stages
    ]  # fmt: skip


def group(name: str, device_type: Any, workers: int, *devices: tuple[int, int], **more: Any) -> Group:
    return Group(name, device_type, workers, 0, tuple(devices), **more)


def component(name: str, of: Group, **more: Any) -> Component:
    sizes = {key: value for key, value in more.items() if key != "frozen"}
    mesh = DeviceMesh.from_sizes(world_size=of.workers, **sizes)
    return Component(name, f"x.{name.title()}", of.name, mesh, frozen=more.get("frozen", False))


def call(name: str, what: str, *inputs: str | Input, **more: Any) -> Stage:
    of, method = what.split(".")
    return Stage(
        name,
        "call",
        of,
        method,
        tuple(part if isinstance(part, Input) else Input((part,)) for part in inputs),
        **more,
    )


def sync(name: str, source: str, target: str, **more: Any) -> Stage:
    return Stage(name, "sync", source, "weights", to=target, to_method="load_weights", **more)


def two_sources(**held_out: int) -> Plan:
    """With the data of a training and those of an evaluation; `held_out` are keys of the latter stage."""
    train = group("train", "cpu", 2)
    components = [component(name, train) for name in ("rows", "exam", "model")]
    stages = [
        call("batch", "rows.next", samples=4),
        call("questions", "exam.next", samples=4, **held_out),
        call("metrics", "model.update", "batch"),
        call("eval", "model.loss", "questions"),
    ]
    return plan("two sources", Cluster(), [train], components, stages)


def eight() -> Plan:
    """The recipe of the design."""
    rollout = group("rollout", "cuda", 4, (0, 4))
    train = group("train", "cuda", 4, (4, 8))
    judge = group("judge", "cpu", 2)
    components = [
        component("prompts", rollout),
        component("sampler", rollout, dp_size=4),
        component("judge", judge, dp_size=2),
        component("actor", train, fsdp_size=2, tp_size=2),
    ]
    stages = [
        call("batch", "prompts.next", samples=64, sample_bytes=2000),
        call("rollouts", "sampler.sample", "batch", samples=512, sample_bytes=16_000),
        call("scored", "judge.score", Input(("rollouts",), dispatch=Dispatch(balance="tokens"))),
        call("metrics", "actor.update", "scored", collect="mean"),
        sync("publish", "actor", "sampler"),
    ]
    return plan("grpo-arithmetic", Cluster.of(1, cuda=8), [rollout, train, judge], components, stages)


def sixteen() -> Plan:
    """Two uneven nodes of two device types: workers of two devices, groups on the same devices, a program, an
    idle device, views."""
    rollout = group("rollout", "cuda", 4, (0, 8), gpus_per_worker=2)
    critic, train = group("critic", "cuda", 4, (0, 4), colocate="rollout"), group("train", "cuda", 8, (8, 16))
    watch = group(
        "watch", "npu", 1, (0, 1), visible_devices=("3",), program=Program(("watch.py", "--every", "5"))
    )
    judge = group("judge", "cpu", 3)
    components = [
        component("prompts", rollout),
        component("sampler", rollout, dp_size=2, tp_size=2),
        component("values", critic, fsdp_size=4, frozen=True),
        component(
            "actor",
            train,
            pp_size=2,
            fsdp_size=2,
            tp_size=2,
            ep_size=2,
            ulysses_size=2,
            vpp_size=2,
            sequence_parallel=True,
        ),
        component("judge", judge),
    ]
    stages = [
        call("batch", "prompts.next", samples=64, sample_bytes=2000),
        call("rollouts", "sampler.sample", "batch", samples=512, sample_bytes=16_000),
        call("scored", "judge.score", Input(("rollouts",), dispatch=Dispatch(balance="tokens"))),
        call(
            "compared",
            "judge.compare",
            Input(("scored",), "scored"),
            Input(("rollouts",), "other"),
            execute="peer",
            samples=512,
        ),
        call("metrics", "actor.update", Input(("scored", "compared"))),
        call("baseline", "values.update", "rollouts", collect="mean", every=2),
        sync("publish", "actor", "sampler", lag=1),
    ]
    return plan(
        "sixteen",
        Cluster.of(2, cuda=8, npu=[0, 2]),
        [rollout, critic, train, watch, judge],
        components,
        stages,
    )


def sixty_four() -> Plan:
    """Eight nodes; workers of four devices, a pipeline that forks and joins, a node idle."""
    rollout = group("rollout", "cuda", 6, (0, 24), gpus_per_worker=4)
    frozen = group("frozen", "cuda", 8, (24, 32))
    train = group("train", "cuda", 24, (32, 56))
    judge = group("judge", "cpu", 8)
    components = [
        component("prompts", rollout),
        component("sampler", rollout),
        component("judge", judge),
        component("reference", frozen, tp_size=8, frozen=True),
        component("actor", train, pp_size=3, fsdp_size=2, tp_size=4),
        component("critic", train, fsdp_size=12, tp_size=2),
    ]
    stages = [
        call("batch", "prompts.next", samples=96, sample_bytes=2000),
        call("rollouts", "sampler.sample", "batch", samples=768, sample_bytes=60_000),
        call("scored", "judge.score", "rollouts"),
        call("logits", "reference.score", "rollouts"),
        call("values", "critic.value", "rollouts"),
        call("metrics", "actor.update", Input(("scored", "values", "logits")), collect="mean"),
        sync("publish", "actor", "sampler", every=2, lag=1),
    ]
    return plan("grpo-64", Cluster.of(8, cuda=8), [rollout, frozen, train, judge], components, stages)


def everything() -> Plan:
    """Uneven nodes, three device types, colocated groups, a program, a list of devices out of order, and
    every mode of a route."""
    rollout = group("rollout", "cuda", 4, (0, 8), gpus_per_worker=2)
    critic = group("critic", "cuda", 4, (0, 4), colocate="rollout")
    train = group("train", "cuda", 16, (8, 16), (20, 24), (16, 20))
    judge = group("judge", "cpu", 7)
    digits = group(
        "digits", "npu", 2, (1, 3), visible_devices=("5", "7"), program=Program(("train.py", "--epochs", "3"))
    )
    actor: dict[str, Any] = {
        "pp_size": 2,
        "fsdp_size": 2,
        "cp_size": 2,
        "tp_size": 2,
        "ulysses_size": 2,
        "ep_size": 2,
        "vpp_size": 2,
    }
    components = [
        component("prompts", rollout),
        component("sampler", rollout, dp_size=2, tp_size=2),
        component("filter", rollout, fsdp_size=4, frozen=True),
        component("extra", rollout, dp_size=4),
        component("values", critic, dp_size=2, fsdp_size=2, order=("fsdp", "dp", "pp", "tp", "cp")),
        component("actor", train, **actor),
        component(
            "other",
            train,
            dp_size=2,
            fsdp_size=4,
            tp_size=2,
            etp_size=2,
            ep_size=4,
            order=("tp", "cp", "dp", "fsdp", "pp"),
        ),
        component("judge", judge),
    ]
    stages = [
        call("batch", "prompts.next", samples=64, sample_bytes=400),
        call("rollouts", "sampler.sample", "batch", samples=512, sample_bytes=16384),
        call("kept", "filter.keep", "rollouts", collect="none"),
        call("scored", "judge.score", Input(("rollouts",), dispatch=Dispatch(balance="tokens"))),
        call("peers", "judge.compare", "rollouts", execute="peer"),
        call("few", "values.look", Input(("peers",), dispatch=Dispatch(mode="slice")), execute="peer"),
        call("losses", "other.look", Input(("scored",), dispatch=Dispatch(mode="all")), collect="mean"),
        call("metrics", "actor.update", *(Input((name,), name) for name in ("scored", "few", "losses")), collect="last_pp"),
        call("home", "sampler.back", Input(("scored",), dispatch=Dispatch(home="rollouts"))),
        call("once", "prompts.count", "home", execute="first"),
        call("told", "judge.hear", "once", collect="first", samples=9),
        call("sliced", "other.slice", Input(("batch",), dispatch=Dispatch(mode="slice")), collect="last_pp_first"),
        call("end", "actor.close", "sliced", "told", every=4),
        call("listed", "judge.list", "kept", "metrics", collect="sum", when="end"),
        sync("publish", "actor", "sampler", lag=1),
    ]  # fmt: skip
    return plan(
        "everything",
        Cluster.of(3, cuda=[12, 8, 6], npu=[0, 1, 3]),
        [rollout, critic, train, judge, digits],
        components,
        stages,
    )


def hundred_thousand() -> Plan:
    rollout = group("rollout", "cuda", 20_000, (0, 20_000))
    train = group("train", "cuda", 65_536, (20_000, 85_536))
    judge = group("judge", "cuda", 7_000, (85_536, 99_536), gpus_per_worker=2)
    components = [
        component("prompts", rollout),
        component("sampler", rollout, dp_size=1250, fsdp_size=2, tp_size=8),
        component(
            "actor",
            train,
            pp_size=16,
            fsdp_size=64,
            dp_size=4,
            cp_size=2,
            tp_size=8,
            ep_size=32,
            vpp_size=2,
            ulysses_size=2,
        ),
        component("judge", judge),
    ]
    stages = [
        call("batch", "prompts.next", samples=100_000, sample_bytes=2000),
        call("rollouts", "sampler.sample", "batch", samples=400_000, sample_bytes=60_000),
        call("scored", "judge.score", "rollouts"),
        call("metrics", "actor.update", "scored", collect="mean"),
        call("all", "actor.look", Input(("rollouts",), dispatch=Dispatch(mode="all")), execute="peer"),
        sync("publish", "actor", "sampler"),
    ]
    return plan("hundred-thousand", Cluster.of(12_500, cuda=8), [rollout, train, judge], components, stages)


def small() -> Plan:
    """On CPU alone."""
    rollout, train = group("rollout", "cpu", 2), group("train", "cpu", 4)
    components = [component("sampler", rollout), component("actor", train, fsdp_size=2, tp_size=2)]
    stages = [call("rollouts", "sampler.sample", samples=7), call("metrics", "actor.update", "rollouts")]
    stages.append(sync("publish", "actor", "sampler"))
    return plan("small", Cluster(), [rollout, train], components, stages)


def twice() -> Plan:
    """Weights from one component to another, in the same workers."""
    alone = group("alone", "cpu", 2)
    return plan(
        "twice",
        Cluster(),
        [alone],
        [component("a", alone), component("b", alone)],
        [sync("publish", "a", "b")],
    )


def program() -> Plan:
    script = Program(("train.py", "--lr", "<b>"))
    return plan("program", Cluster.of(1, cuda=4), [group("train", "cuda", 4, (0, 4), program=script)], [], [])


def one() -> Plan:
    """One worker, one component, one stage."""
    alone = group("alone", "cuda", 1, (0, 1))
    return plan(
        "one",
        Cluster.of(1, cuda=1),
        [alone],
        [component("actor", alone)],
        [call("metrics", "actor.update", samples=1)],
    )


WARNINGS = {
    "64": [
        Warning(
            "MC320",
            "8 of 64 cuda devices are not used by any group: node 7",
            "recipe.yaml:2:11",
            "give them to a group",
        ),
        Warning("MC420", "`tp` of `actor` crosses nodes", "recipe.yaml:19:7", ""),
    ]
}
PINNED = {
    "8": eight,
    "16": sixteen,
    "64": sixty_four,
    "100000": hundred_thousand,
    "on_cpu": small,
    "program": program,
}


def drawn(name: str) -> Topology:
    return topology(PINNED[name](), WARNINGS.get(name, ()))


PLANS = {
    "everything": everything,
    "hundred_thousand": hundred_thousand,
    "small": small,
    "program": program,
    "one": one,
}

ODD = [
    'a"b', "end", "<script>alert(1)</script>", "style x:#fff;", "`**md**`", "graph TD", "日本語 グループ", "new\nline", "%%{init: {}}%%",
    "#quot; &lt;", "x]--> y", "subgraph", "</script><!--", "a\u2028b", 'click s0 href "javascript:alert(1)"', "__proto__", "constructor",
    "\x00\x07nul", "A" * 200, "class s1 h0", "&amp;", "{{x}} {facts}", "$&$1", "' onload='alert(1)", "]]>", "\ud800",
]  # fmt: skip


NAMES = {
    *(
        "name",
        "group",
        "groups",
        "components",
        "colocate",
        "processes",
        "target",
        "component",
        "method",
        "to",
    ),
    *("stages", "parameter", "source", "producer", "consumer", "home"),
}
"""The fields of a topology that hold names."""


def renamed(value: Any, name: Callable[[str], str], is_name: bool = False) -> Any:
    """Returns a part of a topology with other names."""
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            each.name: renamed(getattr(value, each.name), name, each.name in NAMES) for each in fields(value)
        }
        return replace(value, **changed)
    if isinstance(value, tuple):
        return tuple(renamed(each, name, is_name) for each in value)
    return name(value) if is_name and isinstance(value, str) and value else value


@cache
def odd() -> Topology:
    """Every name would do harm if it were not escaped."""
    drawn, names = topology(everything()), dict[str, str]()

    def name(text: str) -> str:
        return names.setdefault(text, ODD[len(names) % len(ODD)] + " " * (len(names) // len(ODD)))

    return replace(
        drawn,
        name="</title><script>alert(1)</script> & \"q\" 'q' {facts}",
        warnings=(Warning("MC320", "<img src=x onerror=alert(1)> `code` is idle", "<b>:1:1", "say `</script>`"),),
        **{part: renamed(getattr(drawn, part), name) for part in ("nodes", "groups", "components", "stages", "routes")},
    )  # fmt: skip


@cache
def many(number: int) -> Topology:
    """Many groups, components, stages, routes, kinds of nodes and warnings."""
    groups, components, stages = list[Group](), list[Component](), list[Stage]()
    for index in range(number):
        kind = ("cuda", "npu", "cpu")[index % 3]
        where = {"nodes": ((index, index + 1),)} if kind == "cpu" else {}
        devices = [] if kind == "cpu" else [(4 * index, 4 * index + 4)]
        groups.append(group(f"group_{index}", kind, 4, *devices, **where))
        components.append(component(f"component_{index}", groups[-1], dp_size=2, tp_size=2))
        inputs = [f"stage_{before}" for before in {index - 1, index - 7} if before >= 0]
        stages.append(call(f"stage_{index}", f"component_{index}.run", *inputs, samples=8, sample_bytes=2000))
    cluster = Cluster.of(number, cuda=4, npu=4)
    warnings = tuple(Warning(f"MC{index}", "there is much", "", "") for index in range(number))
    return topology(plan("many", cluster, groups, components, stages), warnings)
