"""Names of objects of Kubernetes, which have at most 63 characters: the names of a JobSet, and those that its
controller derives from it.

    NAME-nodes0-0-3-abcde       a pod: JobSet, replicated job, index of the job, of the pod, a random end
    NAME-nodes0-0-0.SUBDOMAIN   the address of the head, which is also the value of a label
"""

from __future__ import annotations

import hashlib
import re

RESOURCES = {"cuda": "nvidia.com/gpu", "npu": "huawei.com/Ascend910"}
"""Device type -> the resource of the usual device plugin."""
MAX_LENGTH = 63
"""Characters of a label of DNS, and of the value of a label of Kubernetes."""
RUN_TIME = "20260101-120000"
"""A text of the length of the time in the name of a run directory."""
RANDOM_END = "-abcde"
"""The end of the name of a pod has this length."""


def label_of(text: str) -> str:
    """Returns a text as a label of DNS: lower-case letters, digits and `-`, beginning with a letter. It may
    be longer than `MAX_LENGTH`."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return name if name[:1].isalpha() else f"run-{name}".rstrip("-")


def replicated_job(index: int) -> str:
    """Returns the name of a replicated job."""
    return f"nodes{index}"


def subdomain_of(name: str) -> str:
    """Returns the name of the headless service of a JobSet, short enough for the address of the head."""
    return f"m{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def too_long(name: str, nodes: int) -> str:
    """Returns the name that is longer than `MAX_LENGTH`, of the pods of a JobSet with `nodes` nodes and of
    the host of the head; empty if none is."""
    pod = f"{name}-{replicated_job(nodes - 1)}-0-{nodes - 1}{RANDOM_END}"
    longest = max(pod, f"{name}-{replicated_job(0)}-0-0.{subdomain_of(name)}", key=len)
    return longest if len(longest) > MAX_LENGTH else ""
