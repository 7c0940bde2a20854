"""Faults of several nodes, over hosts that are network namespaces. docs/engines.md lists which test shows which fault."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from processes import LONG, Start, events_of

from tests.cli.commands import meshctl
from tests.engines import relay
from tests.engines.namespaces import Hosts
from tests.engines.test_ssh import folder, hosts, is_empty, needs_hosts

__all__ = ["folder", "hosts"]
pytestmark = [needs_hosts, pytest.mark.namespaces, pytest.mark.slow_suite]


def test_no_host_knows_a_name(hosts: Hosts) -> None:
    for name in hosts.names:
        found = subprocess.run(
            ["ip", "netns", "exec", name, "cat", "/etc/hosts", "/etc/resolv.conf"], capture_output=True
        )
        assert found.stdout.decode() == f"nameserver {hosts.head.rpartition('.')[0]}.253\n"


def test_a_wall_between_two_nodes_is_found_before_a_worker_starts(hosts: Hosts, folder: Path) -> None:
    hosts.wall(1, 2)
    try:
        done = meshctl(folder, "launch", "recipe.yaml", *hosts.options)
    finally:
        hosts.wall(1, 2, is_up=False)
    assert done.returncode == 4, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    address = re.escape(hosts.addresses[2])
    assert re.search(
        rf"node 1 \(\S+\): network: it does not reach node 2 \(\S+\) at {address}:\d+: ", line
    ), line
    assert "look for a firewall or a wrong route" in done.stderr
    assert not events_of(folder, "started")
    assert is_empty(hosts, 10)


def test_a_blocked_port_of_a_node_is_named(hosts: Hosts, folder: Path) -> None:
    hosts.block(0, 1)
    try:
        done = meshctl(folder, "launch", "recipe.yaml", *hosts.options)
    finally:
        hosts.block(0, 1, is_up=False)
    assert done.returncode == 4, done.stderr
    assert re.search(
        rf"node 0 \(\S+\): network: it does not reach node 1 \(\S+\) at {re.escape(hosts.addresses[1])}:\d+",
        done.stderr,
    ), done.stderr
    assert is_empty(hosts, 10)


def test_a_node_that_never_joins_is_named(hosts: Hosts, folder: Path) -> None:
    setup = f"engine.ssh.setup=['! ip -o addr show | grep -q {hosts.addresses[1]}/ || sleep 1000']"
    done = meshctl(folder, "launch", "recipe.yaml", *hosts.options, setup, "engine.ssh.join_limit=60")
    assert done.returncode == 4, done.stderr
    assert re.search(
        r"error: 1 node of 3 did not connect to the head at \S+ within 60 s: node 1$", done.stderr, re.M
    )
    assert is_empty(hosts, 10)


def test_a_link_that_heals_before_the_limit_changes_nothing(hosts: Hosts, folder: Path, start: Start) -> None:
    launch = start(folder, "launch", "recipe.yaml", *LONG, *hosts.options)
    launch.until("^step 2")
    hosts.link(1, "down")
    time.sleep(4)
    hosts.link(1, "up")
    last = max(map(int, re.findall(r"^step (\d+)", "".join(launch.lines), re.M)))
    launch.until(rf"^step (?!([0-9]|{last})\b)\d+")
    time.sleep(2)
    launch.signal(signal.SIGINT)
    code, output = launch.end()
    assert code == 130 and "error" not in output, output
    assert is_empty(hosts, 10)


PROGRAM = """
import os, pathlib, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
text = f"{os.environ['MASTER_ADDR']} {total.item():g}"
pathlib.Path(sys.argv[1], f"rank-{dist.get_rank()}").write_text(text)
dist.destroy_process_group()  # otherwise a rank that ends later may abort when its peers are gone
"""
PROGRAM_RECIPE = """
name: program
cluster: {nodes: 3}
groups: {train: {ranks: 3, device_type: cpu, program: train.py, args: ["{run_dir}"]}}
"""


@pytest.mark.parametrize("family", [4, 6])
def test_programs_and_components_meet_at_known_addresses_where_a_host_name_is_127_0_1_1(
    hosts: Hosts, folder: Path, family: int
) -> None:
    """As on Debian and Ubuntu, where torch and gloo by themselves take this address on every host."""
    (folder / "train.py").write_text(PROGRAM)
    (folder / "program.yaml").write_text(PROGRAM_RECIPE)
    head = [] if family == 4 else [f"engine.ssh.head={hosts.head_v6}"]
    with hosts.named_127_0_1_1():
        for recipe in ("program.yaml", "recipe.yaml"):
            done = meshctl(folder, "launch", recipe, *hosts.options, *head)
            assert done.returncode == 0, done.stderr
    [run] = folder.glob("runs/program/*")
    first = hosts.addresses[0] if family == 4 else hosts.addresses_v6[0]
    assert [(run / f"rank-{rank}").read_text() for rank in range(3)] == [f"{first} 3"] * 3
    assert is_empty(hosts, 10)


def test_delay_and_loss_kill_nobody(hosts: Hosts, folder: Path) -> None:
    with relay.of(hosts, 2, delay_s=0.2, loss=0.05):
        done = meshctl(folder, "launch", "recipe.yaml", *hosts.options, "run.steps=5")
        assert done.returncode == 0, done.stderr
        assert is_empty(hosts, 10)
    assert not events_of(folder, "fault") and len(events_of(folder, "ready")) == 6
