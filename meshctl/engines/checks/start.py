"""Checks that a machine can start the workers of a plan: their devices, interpreters, libraries, models,
programs and environment. The local engine checks its machine. Every node of another engine checks itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from meshctl.engines.checks.device_files import check_devices
from meshctl.engines.checks.interpreters import check_interpreters
from meshctl.engines.checks.models import check_libraries, downloads
from meshctl.engines.engine import CannotStart, groups_on
from meshctl.engines.node.worker_env import missing, resolve, unset_in_args
from meshctl.plan.model import Plan
from meshctl.run.directory import Start
from meshctl.topology.cluster import transport_error


def check_start(plan: Plan, start: Start, node: int = 0, environ: Mapping[str, str] = os.environ) -> None:
    """Raises `CannotStart` for the first requirement of the plan that this machine does not meet. `plan` has
    the groups of one node, with the number `node`."""
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
