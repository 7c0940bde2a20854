"""The report of a node about itself, before it receives the first attempt, as plain data.

facts = examine(plan, run, start, node, needs, nonce)      on the node
problems = judge({0: NodeFacts(**facts), ...}, clocks, plan)       at the head (`across_nodes.py`)
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from types import MappingProxyType
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.diagnostics.health import Check
from meshctl.engines.checks.device_files import check_devices, devices_of_workers, requirements_on
from meshctl.engines.checks.devices import Device, nvidia_smi
from meshctl.engines.checks.fork import in_one_line
from meshctl.engines.checks.interpreters import check_interpreters
from meshctl.engines.checks.machine import problems
from meshctl.engines.checks.models import check_libraries, downloads
from meshctl.engines.checks.requirements import Needs, names_in
from meshctl.engines.engine import CannotStart, groups_on
from meshctl.engines.node.worker_env import missing, resolve, unset_in_args
from meshctl.network.addresses import split
from meshctl.package import installed_version
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir, Start
from meshctl.text.english import in_words
from meshctl.topology.cluster import transport_error

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
    driver: str = ""
    """The version of the driver of the CUDA devices."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Group -> the models of its CUDA devices on the node."""
    shares_files: bool = True
    """True if the node sees a file that the head has written to the run directory."""
    problems: Sequence[Mapping[str, Any]] = ()
    """The failures and warnings of this node alone, as fields of `Check`."""
    is_examined: bool = True
    """False if the examination has failed, which is then the only problem."""


def check_start(plan: Plan, start: Start, node: int = 0, environ: Mapping[str, str] = os.environ) -> None:
    """Checks that a machine can start the workers of a plan: their devices, interpreters, libraries, models,
    programs and environment. Raises `CannotStart` for the first requirement that is not met. `plan` has the
    groups of one node, with the number `node`."""
    check_devices(plan, node)
    check_interpreters(plan, start.path)
    check_libraries(plan, start.path)
    downloads(plan, start.path, environ)
    for group in plan.groups:
        if lacking := missing(start, group):
            raise CannotStart(lacking)
        own = {name: resolve(value, environ) for name, value in group.env if value is not None}
        if refused := transport_error({**environ, **own}):
            raise CannotStart(refused)
        if unset := unset_in_args(plan, group, {**environ, **own}):
            raise CannotStart(unset)


def on_node(plan: Plan, node: int) -> Plan:
    """Returns the part of a plan that a node runs: its groups and their components."""
    names = groups_on(plan, node)
    return replace(
        plan,
        groups=tuple(group for group in plan.groups if group.name in names),
        components=tuple(component for component in plan.components if component.group in names),
    )


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
    here, smi, found = on_node(plan, node), nvidia_smi(), list[Check]()
    try:
        check_start(here, start, node)
    except CannotStart as error:
        found.append(Check("node", "start", "failure", str(error), CHANGE))
    for what, address in ports.items():
        if why := _why_closed(address):
            text = f"it does not reach {what} of the head at {address}: {why}"
            found.append(Check("node", "ports", "failure", text, OPEN))
    found += problems(requirements_on(here, str(run.path), needs, node), smi)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "torch": installed_version("torch"),
        "driver": in_words(sorted({one.driver for one in smi.devices})),
        "devices": {
            group: _models(smi.devices, [name for key in keys for name in names_in(key)])
            for group, keys in devices_of_workers(here, node).items()
        },
        "shares_files": _sees(run, nonce),
        "problems": [asdict(check) for check in found],
    }


def _models(devices: Sequence[Device], names: Sequence[str]) -> str:
    own = [one for one in devices if any(map(one.is_named, names))]
    return in_words(sorted({f"{one.name} of {one.total >> 30} GiB" for one in own}))


def failed(error: BaseException) -> dict[str, Any]:
    """Returns the facts of a node whose examination has failed."""
    found = f"it has failed: {in_one_line(error)}"
    check = Check("node", "examination", "warning", found, "look at the node's log")
    return {"host": socket.gethostname(), "problems": [asdict(check)], "is_examined": False}


def _sees(run: RunDir, nonce: str) -> bool:
    try:
        return (run.path / nonce).read_text() == nonce
    except OSError:
        return False


def _why_closed(address: str) -> str:
    try:
        socket.create_connection(split(address), timeout=CONNECT_S).close()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def write_nonce(run: RunDir, nonce: str) -> None:
    """Writes the file by which nodes find out whether they share the run directory with the head. Raises
    `OSError`."""
    file = os.open(run.path / nonce, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "w") as opened:
        opened.write(nonce)
