"""`meshctl agent`: load the plan, run one group's workers on one node."""

from __future__ import annotations

import sys
from pathlib import Path

from meshctl.plan.model import Plan


def agent(plan: Path, group: str, node: int, head: str) -> int:
    """The exit code: 0 when all workers have ended well, 1 when one has not, 2 when there was nothing to run."""
    if wrong := refusal(plan, group, node):
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    if not head.rpartition(":")[2].isdigit():
        print(f"error: --head is HOST:PORT, not {head!r}", file=sys.stderr)
        return 2
    from meshctl.engines.node.agent import run_agent
    from meshctl.runtime.worker import main

    return run_agent(plan, group, node, head, main)


def refusal(path: Path, group: str, node: int) -> str:
    """Why there is nothing to run; empty if there is."""
    try:
        plan = Plan.read(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path} is no plan: {error}"
    names = [placed.name for placed in plan.groups]
    if group not in names:
        return f"the plan has no group {group!r}, it has {', '.join(names)}"
    if node not in plan.nodes_of(group):
        return f"group {group} is on node {', '.join(map(str, plan.nodes_of(group)))}, not on {node}"
    return ""
