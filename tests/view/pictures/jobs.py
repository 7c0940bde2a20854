"""The jobs whose pictures are pinned: of 8, 16, 64 and 100,000 devices, on CPU, and a program."""

from __future__ import annotations

from meshctl.plan.model import Input, Plan, Program
from meshctl.plan.views.topology import Topology, Warning, topology
from meshctl.topology.cluster import Cluster
from meshctl.topology.modes import Dispatch
from tests.view.pictures.plans import call, component, group, plan, sync


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


def hundred_thousand() -> Plan:
    rollout = group("rollout", "cuda", 40_000, (0, 40_000))
    train = group("train", "cuda", 57_344, (40_000, 97_344))
    judge = group("judge", "cuda", 2_656, (97_344, 100_000))
    components = [
        component("prompts", rollout),
        component("sampler", rollout, pp_size=2, dp_size=1250, fsdp_size=2, cp_size=2, tp_size=4),
        component("judge", judge, pp_size=2, dp_size=83, fsdp_size=2, cp_size=2, tp_size=4),
        component(
            "actor",
            train,
            pp_size=16,
            dp_size=7,
            fsdp_size=32,
            cp_size=2,
            tp_size=8,
            ep_size=64,
            etp_size=2,
            vpp_size=2,
        ),
    ]
    stages = [
        call("batch", "prompts.next", samples=1_048_576, sample_bytes=2000),
        call("rollouts", "sampler.sample", "batch", samples=1_048_576, sample_bytes=60_000),
        call("scored", "judge.score", "rollouts", samples=1_048_576, sample_bytes=60_008),
        call("metrics", "actor.update", "scored", collect="mean"),
        sync("publish", "actor", "sampler"),
    ]
    return plan("hundred-thousand", Cluster.of(12_500, cuda=8), [rollout, train, judge], components, stages)


def on_cpu() -> Plan:
    rollout, train = group("rollout", "cpu", 2), group("train", "cpu", 4)
    components = [component("sampler", rollout), component("actor", train, fsdp_size=2, tp_size=2)]
    stages = [
        call("rollouts", "sampler.sample", samples=7),
        call("metrics", "actor.update", "rollouts"),
        sync("publish", "actor", "sampler"),
    ]
    return plan("on-cpu", Cluster(), [rollout, train], components, stages)


def program() -> Plan:
    return plan(
        "program",
        Cluster.of(1, cuda=4),
        [group("train", "cuda", 4, (0, 4), program=Program(("train.py", "--lr", "1e-3")))],
        [],
        [],
    )


WARNINGS = {
    "64": [
        Warning(
            "MC320",
            "8 of 64 cuda devices are used by no group: node 7",
            "recipe.yaml:2:11",
            "give them to a group",
        ),
        Warning("MC420", "`tp` of `actor` crosses nodes", "recipe.yaml:19:7", ""),
    ]
}
JOBS = {
    "8": eight,
    "16": sixteen,
    "64": sixty_four,
    "100000": hundred_thousand,
    "on_cpu": on_cpu,
    "program": program,
}


def drawn(name: str) -> Topology:
    return topology(JOBS[name](), WARNINGS.get(name, ()))
