"""Cases on a machine without free ports, a name server or memory, and of several runs on one machine."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from benchmarks.fault_cases.case import GONE_S, Case, Measured, Place, Skipped, error_line, wait

GROUPS = Path("/sys/fs/cgroup")
NETWORK = "ip link set lo up; "
PORTS = 12
"""The number of ports of a machine that has no free one. A run needs some ten."""


def isolated(*options: str, script: str) -> list[str]:
    """Returns a command that executes another one in name spaces of its own, after a script."""
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("ip"):
        raise Skipped("needs root, unshare and ip")
    return ["unshare", *options, "bash", "-c", f'{script}exec "$@"', "isolated"]


def no_free_port(place: Place) -> Measured:
    """All ports that the kernel may choose are taken."""
    holder = (
        "import socket, time\nkept = []\n"
        f"for port in range(40000, 40000 + {PORTS}):\n"
        "    kept.append(socket.create_server(('0.0.0.0', port)))\n"
        "open('held', 'w').close()\ntime.sleep(60)\n"
    )
    (place.folder / "holder.py").write_text(holder)
    script = (
        f"{NETWORK}echo 40000 {40000 + PORTS - 1} > /proc/sys/net/ipv4/ip_local_port_range; "
        "python3 holder.py & while [ ! -e held ]; do sleep 0.05; done; "
    )
    run = place.launch(before=isolated("-n", script=script))
    wait((place.folder / "held").exists, "the ports")
    moment = time.monotonic()
    code = run.end()
    seconds, line = time.monotonic() - moment, error_line(run.output)
    place.close()
    return Measured(
        f"{seconds:.1f} s, exit {code}: {line}", code == 4 and "port" in line and seconds < 5 * place.slack
    )


def stranger_on_port(place: Place) -> Measured:
    """The environment names the port of somebody else as MASTER_PORT, as a cluster's profile may."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = str(stranger.getsockname()[1])
        run = place.launch("run.steps=5", env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        code = run.end()
    return Measured(f"exit {code}, {len(run.rows)} steps", code == 0 and len(run.rows) == 5)


def ten_at_once(place: Place) -> Measured:
    runs = [place.launch("run.steps=20", f"run.dir=runs-{number}") for number in range(10)]
    codes = [run.end(300.0) for run in runs]
    left = sum(len(run.processes()) for run in runs)
    return Measured(f"exits {sorted(set(codes))}, {left} processes left", not any(codes) and not left)


def two_in_one_directory(place: Place) -> Measured:
    run = place.running()
    moment = time.monotonic()
    second = place.launch(recipe=str(run.path))
    code = second.end()
    seconds, line = time.monotonic() - moment, error_line(second.output)
    step = max(event["step"] for event in run.events("step"))
    run.wait_for_step(step + 3)
    run.process.send_signal(signal.SIGTERM)
    ok = code == 4 and "still running" in line and run.end() == 143 and seconds <= GONE_S * place.slack
    return Measured(f"{seconds:.1f} s, exit {code}: {line}", ok)


def without_names(place: Place) -> Measured:
    """No name server answers, and /etc/hosts is empty."""
    (place.folder / "none").write_text("")
    (place.folder / "resolv.conf").write_text("nameserver 10.255.255.1\n")
    script = (
        f"{NETWORK}ip route add 10.255.255.0/24 dev lo; "
        "mount --bind none /etc/hosts; mount --bind resolv.conf /etc/resolv.conf; "
    )
    moment = time.monotonic()
    run = place.launch("run.steps=3", before=isolated("-n", "-m", script=script))
    run.wait_for_step(1)
    seconds = time.monotonic() - moment
    code = run.end()
    return Measured(
        f"the first step after {seconds:.1f} s, exit {code}", code == 0 and seconds <= 10 * place.slack
    )


def out_of_memory(place: Place) -> Measured:
    """A control group allows less memory than a worker takes, so the kernel kills it."""
    group = memory_group()
    try:
        command = f"echo $$ > {group}/cgroup.procs; "
        run = place.launch(fault="two:1 5 allocate", before=["bash", "-c", f'{command}exec "$@"', "limited"])
        run.wait_for("two:1", "5")
        run.until(lambda: bool(run.events("exited", "fault")), "the kill", 60.0)
        return place.died(run, time.monotonic(), "two:1 failed", "SIGKILL", "memory")
    finally:
        place.close()
        wait(lambda: (group / "cgroup.procs").read_text() == "", "an empty control group")
        group.rmdir()


def memory_group() -> Path:
    own = [line.split(":") for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = {controllers: path.strip() for _, controllers, path in own}
    if os.geteuid():
        raise Skipped("needs root")
    if "memory" in paths:
        group, limit = GROUPS / "memory" / paths["memory"].strip("/"), "memory.limit_in_bytes"
    else:
        group, limit = GROUPS / paths.get("", "").strip("/"), "memory.max"
    group = group / f"faults-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(3 << 30))
    except OSError as error:
        raise Skipped(f"needs a writable memory control group: {error.strerror}") from error
    return group


def clock_steps(place: Place) -> Measured:
    """The clock of one worker steps by an hour."""
    import json

    run = place.launch("run.steps=60", fault="two:1 20 change_clock")
    code = run.end()
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    times = [row["time"] for row in rows]
    is_ordered = times == sorted(times) and len(rows) == 60 and times[-1] < 600
    last = times[-1] if times else 0.0
    return Measured(f"exit {code}, {len(rows)} rows, the last at {last:.0f} s", code == 0 and is_ordered)


def refused_recipe(place: Place) -> Measured:
    run = place.launch("groups.two.ranks=3", "+components.learner.parallel.tp_size=2")
    code, line = run.end(), error_line(run.output)
    is_clean = not (place.folder / "runs").exists() and not run.processes()
    return Measured(f"exit {code}: {line}", code == 1 and is_clean)


CASES = [
    Case(
        9,
        "the memory of a control group runs out",
        "the error names SIGKILL and memory, in 3 s",
        out_of_memory,
    ),
    Case(11, "no free port", "exit 4 with the reason, in 5 s", no_free_port),
    Case(11, "another program listens on the port of MASTER_PORT", "exit 0", stranger_on_port),
    Case(11, "ten runs at once", "exit 0 of all", ten_at_once),
    Case(11, "two runs in one run directory", "exit 4 in 3 s, the first goes on", two_in_one_directory),
    Case(14, "and `/etc/hosts` is empty", "the first step is over in 10 s", without_names),
    Case(21, "it steps by an hour in one worker", "exit 0; order and times are right", clock_steps),
    Case(28, "`validate` refuses it", "exit 1, no process is started", refused_recipe),
]
