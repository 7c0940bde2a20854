"""The report of a node about itself, before it receives the first attempt, as plain data.

facts = examine(plan, run, start, node, needs, nonce)      on the node
checks = checks_of(NodeFacts(**facts), plan)                at the head: this node alone
                                                            (`across_nodes.py` compares several)
"""

from __future__ import annotations

import os
import platform
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from types import MappingProxyType
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.diagnostics.health import Check
from meshctl.engines.checks.device_files import devices_of_workers
from meshctl.engines.checks.probe import in_one_line
from meshctl.engines.checks.requirements import Needs, Requirements
from meshctl.engines.checks.runner import measured_quickly, problems
from meshctl.engines.checks.start import check_start, on_node
from meshctl.engines.engine import CannotStart
from meshctl.network.addresses import split
from meshctl.package import installed_version
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir, Start

SUBJECT = "node"
CONNECT_S = 5.0
"""Seconds within which the head must accept a connection."""
OPEN = "allow all TCP ports between the nodes and the head: the system chooses which ones are used"
CHANGE = "change this on the node, or choose another one"


@dataclass(frozen=True)
class NodeFacts:
    host: str = ""
    """The name of the host."""
    python: str = ""
    torch: str = ""
    """The version that is installed for the interpreter of the node process."""
    refusal: str = ""
    """The reason that the workers of the node cannot be started; empty if they can."""
    shares_files: bool = True
    """True if the node sees a file that the head has written to the run directory."""
    closed: Mapping[str, str] = field(default_factory=dict)
    """The listeners of the head that the node does not reach: what it is -> its address, and why."""
    requirements: Mapping[str, Any] = field(default_factory=dict)
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Group -> the hardware names of the CUDA devices of its workers on the node."""
    measured: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The result of `measured_quickly`."""
    error: str = ""
    """The reason that the node could not be examined; empty if it was."""


def requirements_on(plan: Plan, run: RunDir, start: Start, node: int, needs: Needs) -> Requirements:
    """Returns the requirements of the groups of a node, which `plan` contains."""
    workers = {group.name: len(list(plan.workers(group.name, node))) for group in plan.groups}
    whole, count = needs.requirements, sum(workers.values())
    device_bytes, uses = Counter[str](), Counter[str]()
    for name, keys in devices_of_workers(plan, node).items():
        device_bytes.update(dict.fromkeys(keys, needs.worker_bytes.get(name, 0)))
        uses.update(_named_in(keys))
    on_cpu = [group.name for group in plan.groups if group.device_type == "cpu"]
    return replace(
        whole,
        runs=str(run.path),
        path=start.path,
        device_types=sorted({group.device_type for group in plan.groups}),
        workers=count,
        model_bytes=sum(needs.worker_bytes.get(name, 0) * workers[name] for name in on_cpu),
        device_bytes=dict(device_bytes),
        shared_devices=[name for name, count in uses.items() if count > 1],
        copy_bytes=whole.copy_bytes * count // max(1, whole.workers),
    )


def _named_in(keys: Sequence[str]) -> list[str]:
    """Returns the hardware names of devices; a key has those of one worker, joined by commas."""
    return [name for key in keys for name in key.split(",")]


def examine(
    plan: Plan,
    run: RunDir,
    start: Start,
    node: int,
    needs: Needs,
    nonce: str,
    ports: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns the fields of `NodeFacts`. `nonce` is the name of the file that the head has written, and
    `ports` are the other addresses at which the head listens, by what it is."""
    here, refusal = on_node(plan, node), ""
    try:
        check_start(here, start, node)
    except CannotStart as error:
        refusal = str(error)
    requirements = requirements_on(here, run, start, node, needs)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "torch": installed_version("torch"),
        "refusal": refusal,
        "shares_files": _sees(run, nonce),
        "closed": {what: why for what, address in ports.items() if (why := _why_closed(address))},
        "requirements": asdict(requirements),
        "devices": {name: _named_in(keys) for name, keys in devices_of_workers(here, node).items()},
        "measured": measured_quickly(requirements),
    }


def failed(error: BaseException) -> dict[str, Any]:
    """Returns the facts of a node whose examination has failed."""
    return {"host": socket.gethostname(), "error": in_one_line(error)}


def _sees(run: RunDir, nonce: str) -> bool:
    try:
        return (run.path / nonce).read_text() == nonce
    except OSError:
        return False


def _why_closed(address: str) -> str:
    try:
        socket.create_connection(split(address), timeout=CONNECT_S).close()
    except OSError as error:
        return f"{address}: {(error.strerror or str(error)).lower()}"
    return ""


def write_nonce(run: RunDir, nonce: str) -> None:
    """Writes the file by which nodes find out whether they share the run directory with the head. Raises
    `OSError`."""
    file = os.open(run.path / nonce, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "w") as opened:
        opened.write(nonce)


def checks_of(facts: NodeFacts) -> tuple[Check, ...]:
    """Returns the failures and warnings of one node."""
    if facts.error:
        return (
            Check(
                SUBJECT, "examination", "warning", f"it has failed: {facts.error}", "look at the node's log"
            ),
        )
    refusal = [Check(SUBJECT, "start", "failure", facts.refusal, CHANGE)] if facts.refusal else []
    refusal += [
        Check(SUBJECT, "ports", "failure", f"it does not reach {what} of the head at {why}", OPEN)
        for what, why in facts.closed.items()
    ]
    return (*refusal, *problems(facts.measured, Requirements(**facts.requirements)))
