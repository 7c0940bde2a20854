"""A host's link that delays and loses packets: two devices of Ethernet frames, and a process that copies frames
between them. This replaces netem, which many kernels lack.

    with relay.of(hosts, 2, delay_s=0.2, loss=0.05): ...
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from tests.engines.namespaces import Hosts, run

SET_DEVICE, ETHERNET_WITHOUT_HEADER = 0x400454CA, 0x1002
"""A request and flags of linux/if_tun.h."""
FRAME_BYTES_MAX = 65536


def _device(name: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, SET_DEVICE, struct.pack("16sH22x", name.encode(), ETHERNET_WITHOUT_HEADER))
    return file


def _copy(here: int, there: int, delay_s: float, loss: float) -> NoReturn:
    """Copies frames between two devices. Those from the host are late by `delay_s`, and of both directions the share
    `loss` is lost."""
    chance, late, number = random.Random(0), list[tuple[float, int, int, bytes]](), 0
    while True:
        wait_s = max(0.0, late[0][0] - time.monotonic()) if late else None
        for file in select.select([here, there], [], [], wait_s)[0]:
            with suppress(BlockingIOError):
                while frame := os.read(file, FRAME_BYTES_MAX):
                    number += 1
                    if chance.random() >= loss:
                        target = here if file == there else there
                        due = time.monotonic() + (delay_s if file == there else 0.0)
                        heapq.heappush(late, (due, number, target, frame))
        while late and late[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(late)
            with suppress(OSError):
                os.write(target, frame)


@contextmanager
def of(hosts: Hosts, number: int, delay_s: float, loss: float) -> Iterator[None]:
    """Has a relay carry the traffic of a host. The link of the host itself is down meanwhile."""
    host, address = hosts.names[number], hosts.addresses[number]
    outer, inner = f"mo{os.getpid() % 10_000}", f"mi{os.getpid() % 10_000}"
    here, there = _device(outer), _device(inner)
    try:
        run(f"ip -n {host} link set eth0 down", f"ip -n {host} addr del {address}/24 dev eth0")
        run(f"ip link set {outer} master {hosts.bridge} up", f"ip link set {inner} netns {host}")
        run(f"ip -n {host} addr add {address}/24 dev {inner}", f"ip -n {host} link set {inner} up")
        hosts.forget_link_address(address)
        child = os.fork()
        if not child:
            try:
                _copy(here, there, delay_s, loss)
            finally:
                os._exit(1)
        try:
            yield
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    finally:
        os.close(here)
        os.close(there)  # which deletes the devices
        run(f"ip -n {host} addr replace {address}/24 dev eth0", f"ip -n {host} link set eth0 up")
        hosts.forget_link_address(address)
