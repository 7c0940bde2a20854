"""What `launch` checks of this machine before it starts a process: each check is made to fail for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from meshctl.cli.launch import Options, prepare, requirements_of
from meshctl.cli.load import plan_of
from meshctl.engines.checks import devices, machine
from meshctl.engines.checks.device_files import torch_build
from meshctl.engines.checks.requirements import MIB, Requirements
from tests.cli.commands import MAIN
from tests.hang import HANG_S

COMPONENT = """\
from meshctl import Component, endpoint
from meshctl.hf import Model as HfModel
class Data(Component):
    @endpoint
    def next(self, samples): ...
class Model(HfModel):
    MODEL = "args.config"
    LAYOUTS = {"dims": ("dp", "fsdp")}
    def __init__(self, config, dtype="float32"): ...
    @endpoint(collect="mean")
    def update(self, batch): ...
    @endpoint(collect="mean")
    def score(self, batch): ...
    def state_dict(self): ...
    def load_state_dict(self, state): ...
"""
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 20_000,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}
PARAMETERS = 20_000 * 64 + 4 * 64 * 64 + 3 * 64 * 64 + 3 * 64
CHECKPOINT_BYTES = PARAMETERS * 4 * 3
"""Weights and two tensors of AdamW, of 4 bytes an element: 15 MiB."""
FROZEN = ("+components.model.frozen=true", "pipeline.loss.call=model.score")
EXAM = "  exam: {_target_: parts.Model, group: held, args: {config: tiny}}"
RECIPE = """\
name: small
groups: {train: {ranks: 2, device_type: cpu}}
components:
  data: {_target_: parts.Data, group: train}
  model: {_target_: parts.Model, group: train, parallel: {fsdp_size: 2}, args: {config: tiny}}
pipeline:
  batch: {call: data.next, samples: 4}
  loss: {call: model.update, in: batch}
run: {steps: 100, checkpoint: {every: 10, keep: 2}}
"""


PREFLIGHT = """\
import json, sys
from dataclasses import asdict
from meshctl.engines.checks.requirements import Requirements
from meshctl.engines.checks.machine import problems
print(json.dumps([asdict(check) for check in problems(Requirements(**json.loads(sys.argv[1])))]))
"""
HOLD = (
    "import os, socket, sys; "
    "held = [socket.create_server(('127.0.0.1', port)) for port in (40000, 40001)]; "
    "[one.set_inheritable(True) for one in held]; "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Takes two ports and becomes another program."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "parts.py").write_text(COMPONENT)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def requirements(*overrides: str) -> Requirements:
    ready = plan_of("recipe.yaml", list(overrides))
    return requirements_of(ready)


def in_namespaces(set_up: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in namespaces of its own, after a line of shell. Skips where this is forbidden, or `ip` is
    missing."""
    inside, loopback = ["unshare", "-mn", "sh", "-c"], "ip link set lo up"
    if subprocess.run([*inside, loopback], capture_output=True).returncode:
        pytest.skip("this user may not make namespaces, or ip is missing")
    script = [*inside, f'{loopback} && {set_up} && exec "$@"', "sh"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [*script, sys.executable, "-c", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True)


def launched(set_up: str, *words: str) -> subprocess.CompletedProcess[str]:
    return in_namespaces(set_up, MAIN, "launch", "recipe.yaml", *words)


def examined(set_up: str, asked: Requirements) -> list[tuple[str, str, str]]:
    """Returns the name, the state and the finding of each check that `launch` would show."""
    done = in_namespaces(set_up, PREFLIGHT, json.dumps(asdict(asked)))
    return [(check["name"], check["state"], check["found"]) for check in json.loads(done.stdout)]


# Requirements


def test_a_checkpoint_has_the_trained_weights_and_the_state_of_the_optimizer() -> None:
    """Asynchronous checkpoints copy the state of each worker."""
    copies = ["+run.checkpoint.async=true"]
    once = requirements()
    assert (once.checkpoint_bytes, once.copy_bytes) == (CHECKPOINT_BYTES, 0)
    assert requirements("+components.model.args.dtype=bfloat16").checkpoint_bytes == CHECKPOINT_BYTES // 2
    frozen = requirements(*copies, *FROZEN)
    assert (frozen.checkpoint_bytes, frozen.copy_bytes) == (0, 0)
    assert CHECKPOINT_BYTES <= requirements(*copies).copy_bytes < CHECKPOINT_BYTES * 1.01
    replicas = [*copies, "components.model.parallel={dp_size:2}"]
    assert requirements(*replicas).copy_bytes == 2 * CHECKPOINT_BYTES


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ("", 3),
        ("~run.checkpoint.every run.checkpoint.keep=5", 1),
        ("run.checkpoint.every=10m run.checkpoint.keep=4", 5),
        ("+run.checkpoint.best={on:loss.x,keep:3}", 6),
    ],
)
def test_the_checkpoints_on_the_disk_at_a_time(overrides: str, count: int) -> None:
    assert requirements(*overrides.split()).checkpoints == count


# Failures and warnings of `launch`


def test_this_machine_starts_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, ready = prepare("recipe.yaml", [], Options())
    assert (code, capsys.readouterr().err) == (0, "") and ready is not None and ready.needs is not None
    assert ready.needs.worker_bytes["train"] > 0


def test_disks_that_are_small_full_or_read_only_and_memory_for_nccl(here: Path) -> None:
    (here / "small").mkdir()
    asked = Requirements("small", workers=2)
    where, mount = f"{here}/small", "mount -t tmpfs -o"
    saves = replace(asked, checkpoint_bytes=10 * MIB, checkpoints=3)
    found = f"{where}: 24 MiB free of 24 MiB, and 3 checkpoints take at least 30 MiB"
    small = examined(f"{mount} size=24m tmpfs small", saves)
    assert small == [("run directory", "warning", found)]
    [check] = examined(f"{mount} size=1m tmpfs small && head -c 1000000 /dev/zero > small/full", asked)
    assert check[:2] == ("run directory", "failure") and check[2].endswith("KiB free of 1 MiB")
    read_only = examined(f"{mount} ro tmpfs small", asked)
    found = f"{where} cannot be written to: Read-only file system"
    assert read_only == [("run directory", "failure", found)]
    nccl = Requirements(workers=2, device_bytes={"0": 0, "1": 0})
    [check] = examined(f"{mount} size=64m tmpfs /dev/shm", nccl)
    assert check[:2] == ("/dev/shm", "warning") and check[2].startswith("64 MiB free of 64 MiB")


@pytest.mark.slow
def test_no_port_is_free_and_a_disk_that_no_checkpoint_fits(here: Path) -> None:
    (here / "small").mkdir()
    narrow = "echo 40000 40001 > /proc/sys/net/ipv4/ip_local_port_range"
    small = "mount -t tmpfs -o size=8m tmpfs small"
    done = launched(f'{small} && {narrow} && set -- "$1" -c "{HOLD}" "$@"', "run.dir=small")
    assert (done.returncode, done.stdout) == (4, "")
    assert "error: loopback: no connection over 127.0.0.1: no port is free" in done.stderr
    disk = f"{here}/small: 8 MiB free of 8 MiB, and a checkpoint takes at least 15 MiB"
    help = "  = help: delete old runs, or write elsewhere: run.dir=PATH\n"
    assert f"error: run directory: {disk}\n{help}" in done.stderr


# Machines with devices, and other installations


@pytest.fixture
def two_gpus(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two devices of 8 MiB, of which the second one is in use, and a recipe for both."""
    monkeypatch.setattr("meshctl.engines.checks.device_files.ROOT", here)
    (here / "dev").mkdir()
    (here / "dev" / "nvidia0").touch()
    (here / "dev" / "nvidia1").touch()
    (here / "recipe.yaml").write_text(RECIPE.replace("device_type: cpu", "device_type: cuda"))
    rows = "echo '0, H200, 570.1, 1, 14, Default, GPU-a'; echo '1, H200, 570.1, 9, 14, Default, GPU-b'"
    (here / "nvidia-smi").write_text(f"#!/bin/sh\n{rows}\n")
    (here / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    monkeypatch.setattr(devices, "SMI_S", HANG_S)
    return here


def test_groups_that_share_a_device_add_up(two_gpus: Path) -> None:
    text = RECIPE.replace("}}", "}, held: {ranks: 1, device_type: cuda, colocate: train}}", 1)
    text = text.replace(": cpu", ": cuda").replace("pipeline:", f"{EXAM}\npipeline:")
    text = text.replace("run:", "  score: {call: exam.update, in: batch}\nrun:")
    (two_gpus / "recipe.yaml").write_text(text)
    found = requirements()
    alone, both = found.device_bytes["1"], found.device_bytes["0"]
    assert alone >= PARAMETERS * 4 * 4 // 2 and both >= alone + PARAMETERS * 4 * 4
    assert list(found.shared_devices) == ["0"] and found.model_bytes == 0


def test_memory_of_devices(two_gpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare("recipe.yaml", [], Options())[0] == 4
    error = capsys.readouterr().err
    taken = "device 1 has 9 MiB of 14 MiB taken by other processes, and the models there take at least 10 MiB"
    assert f"error: device memory: {taken}\n  = help: find the pro" in error
    if "+cpu" in torch_build()["__version__"]:
        assert "error: torch on cuda: 2 devices, but torch " in error


def test_the_devices_of_a_worker_that_has_several(two_gpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["+groups.train.gpus_per_worker=2", "components.model.parallel={dp_size:1}"]
    found = requirements(*both)
    assert list(found.device_bytes) == ["0,1"] and list(found.devices) == ["0", "1"]
    assert found.device_bytes["0,1"] >= PARAMETERS * 4 * 4
    assert prepare("recipe.yaml", both, Options())[0] == 4
    taken = (
        "devices 0, 1 have 10 MiB of 28 MiB taken by other processes, and the models there take at least 20"
    )
    assert f"error: device memory: {taken} MiB\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "code", "begin"), [("", 4, "error"), ("1.0", 4, "error"), ("99.0", 0, "warning")]
)
def test_versions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str, code: int, begin: str
) -> None:
    known, changed = machine.installed_version, "hydra-core"
    monkeypatch.setattr(
        machine, "installed_version", lambda name: version if name == changed else known(name)
    )
    assert prepare("recipe.yaml", [], Options())[0] == code
    shown = capsys.readouterr().err
    assert f"{begin}: {changed}: " in shown and "\n  = help: pip install" in shown
