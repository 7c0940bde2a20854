"""The sampler with vLLM itself, in the interpreter of `make vllm`: `engine_checks.py` has the checks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT
from tests.vllm.engine_checks import CHECKS
from tests.vllm.interpreter import BIN, needs_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow_suite, needs_vllm]
WORLDS: dict[str, dict[str, int]] = {
    "dp 2": {"dp_size": 2},
    "tp 2": {"tp_size": 2},
    "dp 2 x tp 2": {"dp_size": 2, "tp_size": 2},
}


def run(command: list[str]) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("engine") / "results.json"
    run([f"{BIN}/python", "-m", "tests.vllm.engine_checks", str(file)])
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_one_rank(results: dict[str, Any], name: str) -> None:
    assert results[name] == "passed"


@pytest.mark.parametrize("world", WORLDS)
def test_all_ranks_sample_what_one_rank_samples(results: dict[str, Any], world: str, tmp_path: Path) -> None:
    sizes, answers, file = WORLDS[world], tmp_path / "answers.json", tmp_path / "results.json"
    answers.write_text(json.dumps(results["answers"]))
    ranks = sizes.get("dp_size", 1) * sizes.get("tp_size", 1)
    torchrun = [f"{BIN}/python", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    arguments = [str(file), json.dumps(sizes), str(answers)]
    run([*torchrun, "-m", "tests.vllm.engine_checks", *arguments])
    found = [json.loads(file.with_suffix(f".{rank}").read_text())["world"] for rank in range(ranks)]
    assert found == ["passed"] * ranks
