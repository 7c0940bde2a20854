"""`meshctl agent`: the node process of one node. Every engine except the local one starts this command."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from meshctl.cli.collection import without_collection
from meshctl.cli.output import refuse
from meshctl.engines.engine import groups_on, nodes_of
from meshctl.plan.model import Plan
from meshctl.run.authentication import TOKEN_VARIABLE
from meshctl.run.directory import RunDir

TOKEN_FILE = ".token"
"""File in the run directory that holds the token if the environment variable is not set."""


def agent(path: Path, group: str, node: int, head: str) -> int:
    """Runs the node process. Returns the exit code: 0 if all workers exited with 0, 1 if one did not, 2 if
    the plan has nothing to run on this node, 4 if the head cannot be reached or refuses."""
    run, token = RunDir.of_plan(path), os.environ.pop(TOKEN_VARIABLE, "")
    wrong = refusal(path, group, node)
    if not wrong and not head.rpartition(":")[2].isdigit():
        wrong = f"--head must be HOST:PORT, not {head!r}"
    token = token or _token_of(run)
    if not wrong and not token:
        wrong = f"the token of the run is neither in {TOKEN_VARIABLE} nor in {run.path / TOKEN_FILE}"
    if wrong:
        return refuse(wrong)
    with without_collection():
        from meshctl.engines.node.interpreter import groups_of
        from meshctl.engines.node.node_process import NodeJob, serve
        from meshctl.engines.node.preload import preload
        from meshctl.runtime.worker import main

        plan, folders = Plan.read(path), run.read_start().path
        preload(plan, folders, groups_of(plan, folders))
    job = NodeJob(run, node, head, token, main, (group,) if group else ())
    return serve(job, ends=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def _token_of(run: RunDir) -> str:
    try:
        return (run.path / TOKEN_FILE).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def refusal(path: Path, group: str, node: int) -> str:
    """Returns the reason why the plan has nothing to run on this node; empty if it has. `group` is empty for
    all groups of the node."""
    try:
        plan = Plan.read(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path} is not a plan: {error}"
    if not group:
        if groups_on(plan, node):
            return ""
        return f"the plan has no group on node {node}, only on {_listed(nodes_of(plan))}"
    names = [placed.name for placed in plan.groups]
    if group not in names:
        return f"the plan has no group {group!r}; it has {', '.join(names)}"
    if node not in plan.nodes_of(group):
        return f"group {group} is on node {_listed(plan.nodes_of(group))}, not on {node}"
    return ""


def _listed(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes))
