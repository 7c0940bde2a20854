"""Hosts on one machine: network namespaces on a bridge, each with an sshd of its own that listens on the address of
its namespace only. They share the file system and the processes of this machine.

No host has a name server that answers, or a file of host names. Each has a second interface, with the same address
on all hosts, as that of Docker is.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ETC = Path("/etc/netns")
"""Host -> the files that replace those of /etc in it."""
FILES_FIRST = "passwd: files\ngroup: files\nhosts: files dns\n"
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin") or ""
MISSING = [
    *([] if os.geteuid() == 0 else ["root"]),
    *(tool for tool in ("ip", "ssh", "ssh-keygen") if shutil.which(tool) is None),
    *([] if SSHD else ["sshd"]),
]
"""What this machine lacks for such hosts."""


class Hosts:
    def __init__(self, folder: Path, count: int, private: Sequence[Path] = ()) -> None:
        """Each of the folders `private` is empty on every host, and its own one there."""
        self._private = private
        pid = os.getpid()
        self.folder, self.bridge = folder, f"mb{pid % 10_000}"
        self.names = [f"mh{pid % 10_000}-{number}" for number in range(1, count + 1)]
        self._net, self._net_v6 = f"10.{77 + pid % 100}.{pid // 100 % 250}", f"fd88:{pid % 10_000:x}"
        self.sshds: list[subprocess.Popen[bytes]] = []

    @property
    def head(self) -> str:
        """The address of this machine on the bridge."""
        return f"{self._net}.254"

    @property
    def addresses(self) -> list[str]:
        return [f"{self._net}.{number}" for number in range(1, len(self.names) + 1)]

    @property
    def head_v6(self) -> str:
        """The IPv6 address of this machine on the bridge."""
        return f"{self._net_v6}::254"

    @property
    def addresses_v6(self) -> list[str]:
        return [f"{self._net_v6}::{number}" for number in range(1, len(self.names) + 1)]

    @property
    def options(self) -> list[str]:
        """Overrides for `engine.ssh`."""
        hosts = f"engine.ssh.hosts=[{','.join(self.addresses)}]"
        return ["--engine", "ssh", hosts, f"engine.ssh.ssh_options=[-F,{self.folder}/ssh_config]"]

    def open(self) -> None:
        run(f"ip link add {self.bridge} type bridge", f"ip link set {self.bridge} up")
        run(f"ip addr add {self.head}/24 dev {self.bridge}")
        run(f"ip addr add {self.head_v6}/64 dev {self.bridge} nodad")
        for number, (name, address) in enumerate(zip(self.names, self.addresses, strict=True), 1):
            link = self._port(number - 1)
            run(f"ip netns add {name}", f"ip link add {link} type veth peer name eth0 netns {name}")
            run(f"ip link set {link} master {self.bridge} up", f"ip -n {name} addr add {address}/24 dev eth0")
            run(f"ip -n {name} addr add {self.addresses_v6[number - 1]}/64 dev eth0 nodad")
            run(f"ip -n {name} link set eth0 up", f"ip -n {name} link set lo up")
            run(f"ip -n {name} link add docker0 type veth peer name docker1")
            run(f"ip -n {name} link set docker1 up", f"ip -n {name} addr add 172.17.0.1/16 dev docker0")
            run(f"ip -n {name} link set docker0 up")
            self._forget_names(name)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for key in ("host", "user"):
            run(f"ssh-keygen -q -t ed25519 -N '' -f {self.folder}/{key}")
        (self.folder / "ssh_config").write_text(
            f"Host *\n IdentityFile {self.folder}/user\n IdentitiesOnly yes\n User root\n"
            " UserKnownHostsFile /dev/null\n StrictHostKeyChecking no\n LogLevel ERROR\n"
        )
        for name, address in zip(self.names, self.addresses, strict=True):
            self.sshds.append(self._sshd(name, address))
            wait_for_ssh(self.folder, address)

    def _forget_names(self, name: str) -> None:
        """Gives a host files of its own, by which no name is known."""
        folder = ETC / name
        folder.mkdir(parents=True)
        (folder / "resolv.conf").write_text(f"nameserver {self._net}.253\n")
        (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: dns\n")
        (folder / "hosts").write_text("")

    @contextmanager
    def named_127_0_1_1(self) -> Iterator[None]:
        """Lets each host resolve its own name to this address, as the installers of Debian and Ubuntu do."""
        own = f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n"
        before: dict[Path, str] = {}
        for name in self.names:
            for file, text in (("hosts", own), ("nsswitch.conf", FILES_FIRST)):
                path = ETC / name / file
                before[path] = path.read_text()
                path.write_text(text)
        try:
            yield
        finally:
            for path, text in before.items():
                path.write_text(text)

    def _sshd(self, name: str, address: str) -> subprocess.Popen[bytes]:
        settings = {
            "ListenAddress": address,
            "HostKey": self.folder / "host",
            "AuthorizedKeysFile": self.folder / "user.pub",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PermitRootLogin": "prohibit-password",
        }
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        mounts = [f"mount -t tmpfs tmpfs {path} && " for path in self._private]
        sshd = f'{"".join(mounts)}exec "$0" "$@"'
        enter, daemon = f"ip netns exec {name} sh -c".split(), ["-f", "/dev/null", "-D", "-e"]
        command = [*enter, sshd, SSHD, *daemon, *options]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def link(self, number: int, state: str) -> None:
        """Sets the link of a host `up` or `down`; its number begins at 0."""
        name = self.names[number]
        run(f"ip -n {name} link set eth0 {state}")
        if state == "up":  # the kernel has dropped the IPv6 address of a link that was down
            run(f"ip -n {name} addr replace {self.addresses_v6[number]}/64 dev eth0 nodad")

    def forget_link_address(self, address: str) -> None:
        """Makes this machine and all hosts ask anew which link an address has. Otherwise they send to the former one
        for up to 45 s."""
        run(f"ip neigh flush to {address}")
        run(*(f"ip -n {name} neigh flush to {address}" for name in self.names))

    def wall(self, first: int, second: int, is_up: bool = True) -> None:
        """Puts a wall between two hosts, or removes it. Both still reach this machine and the other hosts."""
        for number in (first, second):
            state = "on" if is_up else "off"
            run(f"ip link set dev {self._port(number)} type bridge_slave isolated {state}")

    def _port(self, number: int) -> str:
        """Returns the interface of this machine that is the other end of a host's link."""
        return f"mv{os.getpid() % 10_000}-{number + 1}"

    def block(self, number: int, peer: int, is_up: bool = True) -> None:
        """Lets a host reach no port of another one except that of ssh, or all ports again."""
        rule = f"to {self.addresses[peer]} ipproto tcp dport 1024-65534 unreachable"
        run(f"ip -n {self.names[number]} rule {'add' if is_up else 'del'} {rule}")

    def processes(self, number: int) -> list[int]:
        """Returns the pids of the processes of a host, without its sshd."""
        found = subprocess.run(["ip", "netns", "pids", self.names[number]], capture_output=True, text=True)
        return [pid for pid in map(int, found.stdout.split()) if not is_sshd(pid)]

    def root(self, number: int) -> Path:
        """Returns a path by which the files of a host are seen, with its private folders."""
        return Path(f"/proc/{self.sshds[number].pid}/root")

    def close(self) -> None:
        for name in self.names:
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in map(int, found.stdout.split()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.sshds:
            process.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            shutil.rmtree(ETC / name, ignore_errors=True)
        subprocess.run(["ip", "link", "del", self.bridge], check=False, capture_output=True)


def is_sshd(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("sshd")
    except OSError:
        return True


def run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command, shell=True, check=True, capture_output=True)


def wait_for_ssh(folder: Path, address: str) -> None:
    command: Sequence[str] = ["ssh", "-F", f"{folder}/ssh_config", "-o", "BatchMode=yes", address, "true"]
    for _ in range(50):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return
    raise AssertionError(done.stderr)


@contextmanager
def hosts(folder: Path, count: int = 3, private: Sequence[Path] = ()) -> Iterator[Hosts]:
    made = Hosts(folder, count, private)
    try:
        made.open()
        yield made
    finally:
        made.close()
