"""The pages on SkyPilot, dstack and TorchX: what they tell the tool to run on each node is run as two processes
with the variables of the tool."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from processes import TWO, written

from tests.paths import ROOT

PAGES = ("skypilot", "dstack", "torchx")


def example(tool: str) -> str:
    """Returns the first block of a page."""
    text = (ROOT / "docs" / f"on-{tool}.md").read_text()
    found = re.search(r"```(?:yaml|python)\n(.*?)```", text, re.DOTALL)
    assert found
    return found[1]


def command(tool: str) -> str:
    """Returns the shell command that a tool runs on each node, without the installation of meshctl."""
    if tool == "skypilot":
        task = yaml.safe_load(example(tool))
        assert task["num_nodes"] == 3
        return str(task["run"])
    if tool == "dstack":
        task = yaml.safe_load(example(tool))
        assert (task["type"], task["nodes"]) == ("task", 3)
        return str(task["commands"][-1])
    [arguments] = [
        node.value
        for node in ast.walk(ast.parse(example(tool)))
        if isinstance(node, ast.keyword) and node.arg == "args"
    ]
    values = {"recipe": "recipe.yaml", "specs.macros.replica_id": "$REPLICA", "folder": "/shared/$APP"}
    words = [values.get(ast.unparse(one)) or ast.literal_eval(one) for one in arguments.elts]  # type: ignore[attr-defined]
    return " ".join(["sh", *words])


def variables(number: int) -> dict[str, str]:
    """Returns the variables of a node under each of the tools."""
    task = {"SKYPILOT_TASK_ID": "sky-1", "DSTACK_RUN_NAME": "grpo", "DSTACK_RUN_ID": "1", "APP": "app-1"}
    numbers = {name: str(number) for name in ("SKYPILOT_NODE_RANK", "DSTACK_NODE_RANK", "REPLICA")}
    return {
        **task,
        **numbers,
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2",
        "DSTACK_MASTER_NODE_IP": "127.0.0.1",
    }


@pytest.mark.slow_suite
@pytest.mark.parametrize("tool", PAGES)
def test_the_command_of_a_page_runs_two_nodes(tool: str, tmp_path: Path) -> None:
    written(tmp_path, TWO)
    (tmp_path / "node.sh").write_text((ROOT / "docs" / "node.sh").read_text())
    line = command(tool).replace("/shared", str(tmp_path / "shared"))
    nodes = [
        subprocess.Popen(
            ["sh", "-c", line],
            cwd=tmp_path,
            env={**os.environ, **variables(number), "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in (1, 0)
    ]
    outputs = [node.communicate(timeout=250)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    [metrics] = (tmp_path / "shared").glob("*/small/*/metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 3
