"""The time and bytes of a weight sync from a sharded trainer to an engine of vLLM, beside vLLM's own ways.

    python benchmarks/weight_sync_vllm.py [--rounds 7] [--mib 256] [--python .venv-vllm/bin/python]

A Qwen3 in bfloat16 is sharded by tp 2 and FSDP2 over four CPU processes, and a fifth one has the engine. All
of them load the model through the same update of the engine, so the ways differ in what they move:

    sync        a route of meshctl: each parameter's shards go straight to the engine
    broadcast   what vLLM's NCCL engine does, over gloo: the trainer gathers each parameter on all of its
                ranks, and rank 0 broadcasts it to the engine
    file        the trainer gathers the model, rank 0 writes it as safetensors into shared memory, and the
                engine calls `reload_weights` of vLLM
    load        the engine loads tensors of its own memory: what the others cannot go below

Neither the NCCL engine nor the others of vLLM run without GPUs. The ways alternate and take turns to be the
first after the trainer has changed its weights, so each is seen to load them: the engine's log-probabilities
after each way are compared. The bytes are those that processes receive. The benchmark needs the interpreter
of `make vllm`; without it, it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, ProcessGroupGloo, Store
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from benchmarks.worlds import End, Step, World
from meshctl.plan.model import Cluster, Component, Group, Plan, Run, Stage
from meshctl.runtime.routes.weights import WeightChannel
from meshctl.runtime.world import Handshake
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
MIB = 1 << 20
HIDDEN, INNER, VOCABULARY, LAYERS, HEADS = 1024, 3072, 16384, 8, 16
"""A model of 256 MiB."""
WAYS = ("sync", "broadcast", "file", "load")
WARMUP_ROUNDS = 1
GOAL = 1.0
"""The largest ratio of the time of a sync to that of a broadcast."""
MAX_DIFFERENCE_NATS = 1e-4
MAX_WAIT = timedelta(seconds=120)
TRAINER = DeviceMesh.from_sizes(fsdp_size=2, tp_size=2)
ROWWISE = ("o_proj.weight", "down_proj.weight")
"""The parameters that tp shards along dim 1. Others with two dims are sharded along dim 0."""


def plan() -> Plan:
    groups = (Group("one", "cpu", TRAINER.world_size, 0), Group("two", "cpu", 1, TRAINER.world_size))
    components = (
        Component("actor", "x.Actor", "one", TRAINER),
        Component("sampler", "x.Sampler", "two", DeviceMesh.from_sizes(dp_size=1)),
    )
    stages = (Stage("publish", "sync", "actor", "weights", to="sampler", to_method="load_weights"),)
    route = Route("publish", "publish", "publish", kind="weights")
    return Plan("benchmark", 0, Cluster(), groups, components, stages, (route,), Run(steps=1))


def config_of(mib: int) -> dict[str, Any]:
    """Returns the config of a model of about `mib` MiB, whose layers and vocabulary have the same share."""
    return {
        "model_type": "qwen3",
        "vocab_size": VOCABULARY * mib // 256,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": max(1, LAYERS * mib // 256),
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }


class Trainer:
    """A rank of the trainer, and its side of each way."""

    def __init__(self, end: End, config: Mapping[str, Any], folder: Path) -> None:
        store = end.connect()
        transport = Handshake(end.plan, end.job_rank, store).connect()
        dist.init_process_group(
            "gloo", store=PrefixStore("trainer", store), rank=end.rank, world_size=TRAINER.world_size
        )
        self._rank, self._file = end.rank, folder / "model.safetensors"
        self._group = _pair(store, 0) if end.rank == 0 else None
        self._weights = _sharded(config)
        self._channel = WeightChannel(end.context(transport), lambda: self._weights, None)
        self._channel.open()
        self._version = 0

    def change(self) -> None:
        """Changes all weights."""
        with torch.no_grad():
            for weight in self._weights.values():
                weight.to_local().mul_(-1.02)

    def sync(self) -> int:
        """Returns the bytes that this rank sends."""
        self._version, self._channel.bytes_sent = self._version + 1, 0
        self._channel.send(self._weights, self._version)
        return self._channel.bytes_sent

    def broadcast(self) -> int:
        """Returns the bytes that this rank receives or broadcasts."""
        moved = 0
        for weight in self._weights.values():
            whole = weight.full_tensor()
            moved += whole.nbytes - weight.to_local().nbytes
            if self._group:
                self._group.broadcast([whole]).wait()
                moved += whole.nbytes
        return moved

    def file(self) -> int:
        """Returns the bytes that this rank receives or writes."""
        from safetensors.torch import save_file

        whole = {name: weight.full_tensor() for name, weight in self._weights.items()}
        moved = sum(one.nbytes - self._weights[name].to_local().nbytes for name, one in whole.items())
        if self._group:
            save_file(whole, self._file)
            moved += sum(one.nbytes for one in whole.values())
            self._group.barrier().wait()
        return moved

    def load(self) -> None:
        pass

    def probe(self) -> None:
        pass


def _sharded(config: Mapping[str, Any]) -> dict[str, DTensor]:
    """Returns the shards of this rank, with the names of the model's files."""
    from transformers import AutoConfig, AutoModelForCausalLM

    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # how `full_tensor` gathers
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16)
    for name, weight in list(model.named_parameters()):
        if weight.ndim == 2:
            parent, _, last = name.rpartition(".")
            part = distribute_tensor(weight.detach(), mesh["tp"], [Shard(1 if name.endswith(ROWWISE) else 0)])
            model.get_submodule(parent).register_parameter(last, nn.Parameter(part))
    fully_shard(model, mesh=mesh["fsdp"])
    return {name: weight for name, weight in model.named_parameters() if isinstance(weight, DTensor)}


def _pair(store: Store, rank: int) -> ProcessGroupGloo:
    """Returns the process group of the trainer's rank 0, and of the engine as rank 1."""
    return ProcessGroupGloo(PrefixStore("pair", store), rank, 2, MAX_WAIT)


class Sampled:
    """The process with the engine, and its side of each way."""

    def __init__(self, end: End, config: Mapping[str, Any], folder: Path) -> None:
        store = end.connect()
        transport = Handshake(end.plan, end.job_rank, store).connect()
        self._file, self._group = folder / "model.safetensors", _pair(store, 1)
        self._channel = WeightChannel(end.context(transport), None, dict)
        self._channel.open()
        self._sampler = _sampler(config)
        self._version = 0
        self._own: dict[str, Tensor] = {}

    def change(self) -> None:
        pass

    def sync(self) -> None:
        self._version += 1
        self._channel.send(None, self._version)
        self._sampler.load_weights(self._channel.receive(self._version).value)

    def broadcast(self) -> None:
        self._sampler.load_weights(self._broadcasts())

    def _broadcasts(self) -> Iterator[tuple[str, Tensor]]:
        for name, like in self._own.items():
            whole = torch.empty_like(like)
            self._group.broadcast([whole]).wait()
            yield name, whole

    def file(self) -> None:
        self._group.barrier().wait()
        self._sampler.engine.reload(self._file)

    def load(self) -> None:
        self._sampler.load_weights(iter(self._own.items()))

    def keep(self) -> None:
        """Loads what a sync sends, and keeps a copy."""
        self._version += 1
        self._channel.send(None, self._version)
        stream = self._channel.receive(self._version).value
        self._own = {name: tensor.clone() for name, tensor in stream}
        self._sampler.load_weights(iter(self._own.items()))

    def probe(self) -> list[float]:
        """Returns log-probabilities of the model."""
        from meshctl.sampling.continuous import Continuous, Request, Sampling
        from meshctl.vllm.sampler import VllmStepper

        generator = Continuous(VllmStepper(self._sampler.engine, Sampling(4, temperature=0)))
        [answer] = generator.submit([Request([5, 6, 7, 8], [0])]).result()
        generator.close()
        return [*answer.logprobs, *map(float, answer.tokens)]


def _sampler(config: Mapping[str, Any]) -> Any:
    """Returns a `vllm.Sampler` whose engine can also reload a file."""
    from meshctl.vllm import Sampler, options

    options.prepare()
    from safetensors import safe_open

    from meshctl.vllm.engine_api import Engine

    class Reloading(Engine):
        def reload(self, file: Path) -> None:
            with safe_open(str(file), "pt") as opened:
                names = opened.keys()
                weights = ((name, opened.get_tensor(name)) for name in names)
                self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            self._llm.reset_prefix_cache()

    class Reloadable(Sampler):
        new_engine = staticmethod(Reloading)

    made = Reloadable(
        dict(config), max_new_tokens=4, tokenizer="byte", dtype="bfloat16", kv_cache_bytes=64 * MIB
    )
    made.setup()
    return made


def begin(config: Mapping[str, Any], folder: Path, program: Sequence[str], end: End) -> Step:
    """Returns the step of a worker: the next call of `program`."""
    side: Any = (Trainer if end.gives else Sampled)(end, config, folder)
    calls = iter(program)

    def step() -> Any:
        name = next(calls)
        return getattr(side, name if hasattr(side, name) else "sync")()

    return step


def measure(rounds: int, mib: int) -> None:
    """Prints a table and the result."""
    orders = [
        WAYS[number % 3 : 3] + WAYS[: number % 3] + WAYS[3:] for number in range(rounds + WARMUP_ROUNDS)
    ]
    program = ["keep", "probe"]
    for order in orders:
        program += ["change", *(call for way in order for call in (way, "probe"))]
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    moved: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ExitStack() as stack:
        world = World(plan(), partial(begin, config_of(mib), Path(folder), program))
        stack.callback(world.close)
        calls = {"keep": world.steps()}
        found = calls["keep"][2]
        nbytes = sum(found[: TRAINER.world_size])
        before = world.steps()[2][-1]
        for number, order in enumerate(orders):
            world.steps()
            for way in order:
                seconds, _, found = world.steps()
                times[way] += [seconds] * (number >= WARMUP_ROUNDS)
                moved[way] = [one or 0 for one in found[: TRAINER.world_size]]
                before = _checked(way, order, before, world.steps()[2][-1])
    report(times, moved, nbytes)


def _checked(
    way: str, order: Sequence[str], before: Sequence[float], after: Sequence[float]
) -> Sequence[float]:
    """Returns `after`, the log-probabilities after a way. Ends the benchmark if the way has not loaded the
    new weights."""
    if way == "load":  # its weights are those of the first sync
        return before
    difference = max(abs(one - other) for one, other in zip(before, after, strict=True))
    if (difference <= MAX_DIFFERENCE_NATS) == (way == order[0]):
        raise SystemExit(f"{way}: the log-probabilities differ by {difference} nats from those before")
    return after


def report(times: Mapping[str, Sequence[float]], moved: Mapping[str, Sequence[int]], nbytes: int) -> None:
    others = []
    for way in WAYS:
        total, busiest = sum(moved[way]) / nbytes, max(moved[way]) / nbytes
        milliseconds = 1000 * statistics.median(times[way])
        shown = f"moves {total:4.2f} of the model, the busiest trainer {busiest:4.2f}"
        print(f"{way:<10} {milliseconds:7.1f} ms  {shown}")
        others.append(
            {"what": way, "ms": round(milliseconds, 1), "value": round(total, 3), "bytes": sum(moved[way])}
        )
    ratio = statistics.median(a / b for a, b in zip(times["sync"], times["broadcast"], strict=True))
    print(f"{nbytes / MIB:.0f} MiB; sync / broadcast {ratio:.2f} x of the time")
    result = {
        "what": "time of a sync / a broadcast",
        "value": round(ratio, 3),
        "goal": GOAL,
        "ok": ratio <= GOAL,
    }
    print(json.dumps({"name": "weight_sync_vllm", **result, "load": os.getloadavg()[0], "others": others}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=256, help="of the model")
    parser.add_argument("--python", type=Path, default=PYTHON, help="the interpreter that has vLLM")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        torch.set_num_threads(1)
        return measure(args.rounds, args.mib)
    if not args.python.exists():
        print(f"weight_sync_vllm needs an interpreter with vLLM, {args.python}: make vllm")
        return None
    command = [str(args.python), "-m", "benchmarks.weight_sync_vllm", "--inside"]
    command += ["--rounds", str(args.rounds), "--mib", str(args.mib)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    sys.exit(subprocess.run(command, cwd=ROOT, env=environ).returncode)


if __name__ == "__main__":
    main()
