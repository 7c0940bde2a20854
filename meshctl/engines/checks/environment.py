"""Variables that bite: those that change what torch, NCCL or the workers do, and that somebody else may have
set.

A finding names them, and shows a value only where the table says that it is no secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshctl.diagnostics.health import Check, State

SUBJECT = "environment"
ON = r"(?i)1|true|yes|on|y"


@dataclass(frozen=True)
class Facts:
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bite:
    variables: str
    """Names as a regular expression."""
    does: str
    value: str = r".+"
    """Values that bite, as a regular expression; of all others nothing is said."""
    remedy: str = ""
    """Empty for `unset` and the names."""
    state: State = "warning"
    shown: bool = True
    """The value may be told."""


BITES: Mapping[str, Bite] = {
    "torchrun": Bite(
        "MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|TORCHELASTIC_.*",
        "this is inside of a torchrun or somebody's job; workers get their own, other programs believe these",
    ),
    "debugging": Bite(
        "CUDA_LAUNCH_BLOCKING|TORCH_SHOW_CPP_STACKTRACES|TORCH_NCCL_BLOCKING_WAIT|NCCL_BLOCKING_WAIT|PYTHONDEVMODE|TORCH_USE_CUDA_DSA",
        "made for debugging, and slow",
        ON,
    ),
    "TORCH_DISTRIBUTED": Bite(
        "TORCH_DISTRIBUTED_DEBUG", "checks every collective, and is slow", "(?i)DETAIL"
    ),
    "ways of NCCL": Bite(
        "NCCL_(P2P|SHM|IB)_DISABLE",
        "turns off a fast way between devices",
        "1",
        "unset it, unless this machine needs it",
    ),
    "words of NCCL": Bite("NCCL_DEBUG", "writes into the logs of all workers", "(?i)INFO|TRACE"),
    "ways of gloo": Bite("GLOO_DEVICE_TRANSPORT", "groups meet in another way than they are tested with"),
    "pinning": Bite(
        "OMP_PROC_BIND|OMP_PLACES|GOMP_CPU_AFFINITY|KMP_AFFINITY",
        "all workers would be bound to the same processors",
        r"(?!(?i:false|none|disabled)$).+",
    ),
    "other threads": Bite(
        "MKL_NUM_THREADS|OPENBLAS_NUM_THREADS|NUMEXPR_NUM_THREADS",
        "goes before OMP_NUM_THREADS, in every worker",
        r"(?!1$)\d+",
    ),
    "PYTHONWARNINGS": Bite("PYTHONWARNINGS", "warnings of torch end a process", r".*\berror\b.*"),
    "PYTHONOPTIMIZE": Bite("PYTHONOPTIMIZE", "assertions of torch and of yours are not made"),
    "PYTHONMALLOC": Bite("PYTHONMALLOC", "made for debugging, and slow", ".*debug.*"),
    "PYTHONPATH": Bite(
        "PYTHONPATH",
        "an empty entry is the working directory: its files come before what is installed",
        r":.*|.*::.*|.*:",
        "take it out",
    ),
    "LD_PRELOAD": Bite(
        "LD_PRELOAD",
        "is loaded into every process of a run",
        remedy="unset LD_PRELOAD, unless it is meant for all",
    ),
    "memory caching": Bite(
        "PYTORCH_NO_CUDA_MEMORY_CACHING", "gives memory back after every tensor, and is slow"
    ),
}
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
DIRECT = ("localhost", "127.0.0.1")


def measure() -> Facts:
    return Facts(dict(os.environ))


def judge(facts: Facts) -> Iterator[Check]:
    found = [*_bites(facts.environ), *_proxy(facts.environ)]
    yield from found or [Check(SUBJECT, "variables", "ok", "none is set that changes how a run works")]


def _bites(environ: Mapping[str, str]) -> Iterator[Check]:
    for name, bite in BITES.items():
        named = {key: value for key, value in environ.items() if re.fullmatch(bite.variables, key)}
        given = {key: value for key, value in named.items() if re.fullmatch(bite.value, value, re.S)}
        if given:
            said = ", ".join(
                f"{key}={value[:60]}" if bite.shown else key for key, value in sorted(given.items())
            )
            yield Check(
                SUBJECT,
                name,
                bite.state,
                f"{said}: {bite.does}",
                bite.remedy or f"unset {' '.join(sorted(given))}",
            )


def _proxy(environ: Mapping[str, str]) -> Iterator[Check]:
    """Its address may hold a password, so only its name is told."""
    lower = {key.lower(): value for key, value in environ.items() if value}
    given = [key for key, value in environ.items() if key.lower() in PROXIES and value]
    direct = {part.strip().lstrip(".") for part in lower.get("no_proxy", "").split(",")}
    if given and "*" not in direct and (lacking := [name for name in DIRECT if name not in direct]):
        found = f"{', '.join(sorted(given))} without no_proxy for {' and '.join(lacking)}: what goes to this machine itself goes to a proxy"
        yield Check(
            SUBJECT,
            "proxy",
            "warning",
            found,
            f"export no_proxy={','.join(DIRECT)}{',...' if 'no_proxy' in lower else ''}",
        )
