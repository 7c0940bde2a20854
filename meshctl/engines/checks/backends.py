"""The backends of torch.distributed: whether ranks on this machine can meet and add a tensor, as the workers
of a group do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshctl.diagnostics.health import Check
from meshctl.engines.checks.options import Asked

SUBJECT = "backends"


@dataclass(frozen=True)
class Facts:
    torch: Mapping[str, Any] = field(default_factory=dict)
    asked: Asked = Asked()


def measure(asked: Asked, torch: Mapping[str, Any]) -> Facts:
    return Facts(torch, asked)


def judge(facts: Facts) -> Iterator[Check]:
    torch = facts.torch
    if torch.get("wrong") or not torch:
        return  # the torch that cannot be imported is said once
    yield _gloo(torch)
    if torch.get("nccl") and torch.get("nccl_ranks"):
        yield _nccl(torch, facts.asked)
    elif torch.get("nccl"):
        yield Check(SUBJECT, "nccl", "ok", f"{torch['nccl_version']}; not tried, there is no device")


def _gloo(torch: Mapping[str, Any]) -> Check:
    if not torch["gloo"]:
        remedy = "install a build of torch with torch.distributed and gloo: https://pytorch.org/get-started/locally"
        return Check(
            SUBJECT, "gloo", "failure", "torch is built without it, and every group needs it", remedy
        )
    if wrong := torch["gloo_wrong"]:
        remedy = "processes must reach one another on 127.0.0.1: look at the interface `lo`, a firewall or a sandbox, and at what is below"
        return Check(SUBJECT, "gloo", "failure", f"two ranks on this machine did not meet: {wrong}", remedy)
    return Check(SUBJECT, "gloo", "ok", "two ranks met on loopback and added a tensor")


def _nccl(torch: Mapping[str, Any], asked: Asked) -> Check:
    ranks = torch["nccl_ranks"]
    who = "one rank" if ranks == 1 else f"{ranks} ranks"
    if wrong := torch["nccl_wrong"]:
        remedy = "NCCL_DEBUG=INFO says why; in a container it is often /dev/shm, in a virtual machine NCCL_P2P_DISABLE=1 helps"
        return Check(
            SUBJECT,
            "nccl",
            asked.broken("cuda"),
            f"{who} on this machine did not add a tensor: {wrong}",
            remedy,
        )
    return Check(SUBJECT, "nccl", "ok", f"{torch['nccl_version']}; {who} added a tensor")
