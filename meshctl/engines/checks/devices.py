"""The accelerators: what is in the machine, what its driver says, what the environment leaves, what torch
makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from meshctl.diagnostics.health import Check
from meshctl.engines import local
from meshctl.engines.checks.options import GIB, Asked, amount
from meshctl.engines.checks.probe import Answer, Probe
from meshctl.engines.node.visible_devices import Narrowed, narrowed

SUBJECT = "devices"
SMI_SECONDS = 20.0
SMI = ("index", "name", "driver_version", "memory.used", "memory.total", "compute_mode")
USED = 2 * GIB
"""Of a device, by others, that is worth a word."""
NAMES = {"cuda": "CUDA", "npu": "NPU", "mps": "MPS"}


@dataclass(frozen=True)
class Device:
    """What nvidia-smi says of one."""

    index: int
    name: str
    driver: str
    used: int
    """Bytes."""
    total: int
    mode: str
    """`Default`, or one that lets only one process in."""


@dataclass(frozen=True)
class Facts:
    files: Mapping[str, int] = field(default_factory=dict)
    """Devices by type, by their files in /dev."""
    rocm: bool = False
    """The torch that is installed is ROCm's."""
    left: Narrowed | None = None
    """What the environment leaves of them."""
    devices: tuple[Device, ...] = ()
    """By nvidia-smi, which hears of no environment."""
    smi: str = ""
    """Why it says nothing."""
    unseen: int = 0
    """Devices that the driver of NVIDIA has, without a file in /dev."""
    closed: str = ""
    """A file of a device that this user may not open."""
    has_torch_npu: bool = False
    torch: Mapping[str, Any] = field(default_factory=dict)
    asked: Asked = Asked()


def begin() -> Probe | None:
    """Asks nvidia-smi where there is a device of its."""
    return (
        Probe("meshctl.engines.checks.devices:smi", [], SMI_SECONDS) if local.count_devices("cuda") else None
    )


def smi() -> list[list[str]]:
    """In a child: a row for each device, as in `SMI`."""
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise OSError(" ".join((done.stdout + done.stderr).split())[:200] or f"exit code {done.returncode}")
    return [[part.strip() for part in line.split(", ")] for line in done.stdout.splitlines() if line.strip()]


def measure(asked: Asked, torch: Mapping[str, Any], answer: Answer) -> Facts:
    rocm = local.is_rocm()
    files = {kind: count for kind in local.DEVICES if (count := local.count_devices(kind, rocm))}
    if sys.platform == "darwin":
        files["mps"] = 1
    kind = next(iter(files), "cuda")
    return Facts(
        files,
        rocm,
        narrowed(kind, os.environ, rocm),
        read(answer.said or []),
        answer.wrong,
        0 if files.get("cuda") else len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
        closed(),
        bool(_find("torch_npu")),
        torch,
        asked,
    )


def read(rows: Sequence[Sequence[str]]) -> tuple[Device, ...]:
    """What cannot be read of a row (`[N/A]`) is 0."""

    def number(text: str) -> int:
        return int(text) if text.isdecimal() else 0

    whole = [row for row in rows if len(row) == len(SMI)]
    return tuple(
        Device(number(row[0]), row[1], row[2], number(row[3]) << 20, number(row[4]) << 20, row[5])
        for row in whole
    )


def closed() -> str:
    """A device that is there and not ours to open: its files belong to the groups `video` and `render`."""
    files = [
        *Path("/dev").glob("nvidia[0-9]*"),
        Path("/dev/nvidiactl"),
        Path("/dev/kfd"),
        *Path("/dev").glob("davinci[0-9]*"),
    ]
    return next((str(file) for file in files if file.exists() and not os.access(file, os.R_OK | os.W_OK)), "")


def _find(module: str) -> object:
    from importlib.machinery import PathFinder

    return PathFinder.find_spec(module)


def judge(facts: Facts) -> Iterator[Check]:
    yield _hardware(facts)
    if facts.closed:
        remedy = "add yourself to the group that owns it (`ls -l` says which), or pass it into the container"
        yield Check(
            SUBJECT, "permission", _worst(facts), f"{facts.closed} cannot be opened by this user", remedy
        )
    if facts.left is not None:
        yield _visible(facts, facts.left)
    if facts.files.get("cuda"):
        yield from _cuda(facts)
    if facts.files.get("npu"):
        yield _npu(facts)
    if facts.files.get("mps"):
        yield _mps(facts)


def _worst(facts: Facts) -> Any:
    return max(
        (facts.asked.broken(kind) for kind in facts.files),
        default="warning",
        key=("ok", "warning", "failure").index,
    )


def _hardware(facts: Facts) -> Check:
    if facts.unseen and not facts.files:
        found = f"the driver has {facts.unseen} NVIDIA devices, and /dev has none"
        return Check(
            SUBJECT,
            "accelerators",
            facts.asked.missing("cuda"),
            found,
            "in a container: docker run --gpus all",
        )
    if not facts.files:
        return Check(SUBJECT, "accelerators", "ok", "none: groups run on cpu")
    named = sorted({device.name for device in facts.devices})
    driver = f", driver {facts.devices[0].driver}" if facts.devices else ""
    found = ", ".join(f"{count} x {kind}" for kind, count in facts.files.items())
    return Check(SUBJECT, "accelerators", "ok", found + (f" ({', '.join(named)}{driver})" if named else ""))


def _visible(facts: Facts, left: Narrowed) -> Check:
    here = next(iter(facts.files.values()), 0)
    name = left.variable
    if not left.names and here:
        return Check(
            SUBJECT,
            name,
            "warning",
            f"`{left.text}` leaves none of {here}",
            f"unset {name}, or list devices: {name}=0",
        )
    beyond = [device for device in left.names if here and device.isdecimal() and int(device) >= here]
    if beyond:
        found = f"`{left.text}` names {', '.join(beyond)}, and the machine has 0 to {here - 1}"
        return Check(SUBJECT, name, "warning", found, f"unset {name}, or list devices that are there")
    return Check(
        SUBJECT,
        name,
        "ok",
        f"`{left.text}` leaves {len(left.names) or 'none'}" + (f" of {here}" if here else ""),
    )


def _cuda(facts: Facts) -> Iterator[Check]:
    torch, broken = facts.torch, facts.asked.broken("cuda")
    if facts.smi and not facts.rocm:
        remedy = "it must answer on its own: where it hangs or fails, the driver or the device is at fault (dmesg | grep -i nvrm)"
        yield Check(SUBJECT, "nvidia-smi", "warning", facts.smi, remedy)
    if torch.get("wrong") or not torch:
        return
    if not (torch.get("cuda") or torch.get("hip")):
        found = f"{facts.files['cuda']} devices, and torch {torch['version']} is built for cpu"
        remedy = "install a build for CUDA: https://pytorch.org/get-started/locally"
        yield Check(SUBJECT, "torch on cuda", facts.asked.missing("cuda"), found, remedy)
        return
    if _expected(facts):
        yield _driver(facts, torch, broken)
    yield from _others(facts)


def _driver(facts: Facts, torch: Mapping[str, Any], broken: Any) -> Check:
    """Whether torch can use what is there."""
    name, seen = "torch on cuda", torch.get("devices") or {}
    usual = "torch.cuda.init() in a Python of its own says more"
    if torch.get("devices_wrong"):
        return Check(SUBJECT, name, broken, f"asking the driver: {torch['devices_wrong']}", usual)
    if error := seen.get("error"):
        return Check(SUBJECT, name, broken, error.rstrip("."), _advice(seen, torch) or usual)
    if seen["count"] < _expected(facts):
        found = f"it sees {seen['count']} of {_expected(facts)} devices"
        return Check(
            SUBJECT,
            name,
            broken,
            found,
            "one of them is in error, or not passed into this container: compare with nvidia-smi",
        )
    if strange := _too_new(seen):
        remedy = "install a torch that is built for it: https://pytorch.org/get-started/locally"
        return Check(SUBJECT, name, broken, f"torch {torch['version']} has no code for {strange}", remedy)
    build = f"ROCm {torch['hip']}" if torch.get("hip") else f"CUDA {torch['cuda']}"
    drives = f", driver up to CUDA {_version(seen['driver'])}" if seen.get("driver") else ""
    return Check(SUBJECT, name, "ok", f"{seen['count']} usable; built for {build}{drives}")


def _expected(facts: Facts) -> int:
    """How many devices torch should see, as the driver reads the list; of MIG instances it shows one."""
    if facts.left is None:
        return facts.files["cuda"]
    names = list(
        takewhile(lambda name: not name.isdecimal() or int(name) < facts.files["cuda"], facts.left.names)
    )
    return min(1, len(names)) if any(name.startswith("MIG-") for name in names) else len(names)


def _advice(seen: Mapping[str, Any], torch: Mapping[str, Any]) -> str:
    """A driver knows CUDA up to a version; a torch of the same major version runs."""
    driver, built = int(seen.get("driver") or 0), str(torch.get("cuda") or "")
    if driver and built and driver // 1000 < int(built.split(".")[0]):
        return f"the driver knows CUDA {_version(driver)}, torch is built for {built}: update the driver, or install a torch for that CUDA"
    return ""


def _version(number: int) -> str:
    """`12.4` of 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _too_new(seen: Mapping[str, Any]) -> str:
    """The first device for which torch has neither code nor an intermediate form that the driver could
    translate."""
    archs = [arch for arch in seen.get("archs", []) if arch.startswith(("sm_", "compute_"))]
    for name, (major, minor) in zip(seen.get("names", []), seen.get("capabilities", []), strict=False):
        binary = any(
            _capability(arch)[0] == major and _capability(arch)[1] <= minor
            for arch in archs
            if arch.startswith("sm_")
        )
        form = any(_capability(arch) <= (major, minor) for arch in archs if arch.startswith("compute_"))
        if archs and not binary and not form:
            return f"{name} (sm_{major}{minor})"
    return ""


def _capability(arch: str) -> tuple[int, int]:
    """(9, 0) of `sm_90` and of `sm_90a`."""
    digits = "".join(sign for sign in arch.rpartition("_")[2] if sign.isdecimal())
    return int(digits[:-1] or 0), int(digits[-1:] or 0)


def _others(facts: Facts) -> Iterator[Check]:
    """What else is on the devices, and who may come in."""
    named = (
        set(facts.left.names)
        if facts.left is not None and all(map(str.isdecimal, facts.left.names))
        else None
    )
    ours = [device for device in facts.devices if named is None or str(device.index) in named]
    if busy := [device for device in ours if device.used > USED]:
        most = max(busy, key=lambda device: device.used)
        found = f"{len(busy)} of {len(ours)} in use by others, device {most.index} has {amount(most.used)} of {amount(most.total)} taken"
        yield Check(
            SUBJECT,
            "memory in use",
            "warning",
            found,
            "see who it is with nvidia-smi, or leave them out: CUDA_VISIBLE_DEVICES",
        )
    if alone := [device for device in ours if device.mode not in ("Default", "[N/A]", "")]:
        found = f"device {alone[0].index} is in compute mode {alone[0].mode}: groups that share it with `colocate` cannot start"
        yield Check(
            SUBJECT, "compute mode", "warning", found, f"nvidia-smi -i {alone[0].index} -c DEFAULT, as root"
        )


def _npu(facts: Facts) -> Check:
    if not facts.has_torch_npu:
        found = f"{facts.files['npu']} devices, and torch_npu is not installed"
        return Check(
            SUBJECT,
            "torch on npu",
            facts.asked.missing("npu"),
            found,
            "pip install torch-npu, in the version that fits torch's",
        )
    return _seen(facts, "npu", "source CANN's set_env.sh, and compare with npu-smi info")


def _mps(facts: Facts) -> Check:
    return _seen(facts, "mps", "use a Python for arm64, on macOS 13 or later")


def _seen(facts: Facts, kind: str, remedy: str) -> Check:
    seen = facts.torch.get("devices") or {}
    count = seen.get("count", 0) if seen.get("kind") == kind else 0
    if not count:
        why = facts.torch.get("devices_wrong") or facts.torch.get("wrong") or "torch sees none"
        return Check(
            SUBJECT,
            f"torch on {kind}",
            facts.asked.broken(kind),
            f"{facts.files[kind]} {NAMES[kind]} devices: {why}",
            remedy,
        )
    return Check(SUBJECT, f"torch on {kind}", "ok", f"{count} usable")
