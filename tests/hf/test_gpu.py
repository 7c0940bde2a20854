"""`hf.Model` on a GPU, and the benchmark for GPUs, whose code also runs on CPU ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from meshctl.hf import Model
from tests.hf import parity
from tests.paths import ROOT
from tests.runtime.devices.standin import gpus

CASE = parity.Case("qwen3", micro_batch=4)


def losses(model: Model) -> list[float]:
    return [model.update(parity.batch_of(step, False))["loss"] for step in range(1, 4)]


def model(**arguments: Any) -> Model:
    made = Model(parity.MODELS["qwen3"], lr=1e-3, micro_batch=4, **arguments)
    made.setup()
    return made


@gpus(1)
def test_a_model_trains_on_a_gpu_as_on_the_cpu() -> None:
    found = model()
    assert found.device.type == "cuda"
    expected = parity.by_hand(CASE.task, parity.SINGLE).losses[:1]
    assert losses(found)[:1] == pytest.approx(expected, rel=1e-4)


@gpus(1)
def test_bfloat16_with_flash_attention_follows_float32() -> None:
    exact, found = model(), model(compute_dtype="bfloat16", attention="sdpa")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        in_half = losses(found)
    assert in_half == pytest.approx(losses(exact), rel=5e-2)
    assert all(one.dtype == torch.float32 for one in found.module.parameters())


@pytest.mark.slow_suite
def test_the_benchmark_runs() -> None:
    """Its code also runs on CPU ranks."""
    has_gpu = torch.cuda.device_count() > 0
    command = [sys.executable, str(ROOT / "benchmarks" / "hf_gpu_step.py"), "--rounds", "2"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *["--tiny"] * (not has_gpu)], capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["value"] > 0 and (line["device"] != "CPU") == has_gpu
