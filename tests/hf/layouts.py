"""The layouts of `test_parity.py`, from which the table of docs/models.md is made. This file imports nothing,
so that the table needs no torch."""

from __future__ import annotations

LAYOUTS = {
    "dp 2": {"dp": 2},
    "fsdp 2": {"fsdp": 2},
    "tp 2": {"tp": 2},
    "hsdp 2 x 2": {"dp": 2, "fsdp": 2},
    "fsdp 2 x tp 2": {"fsdp": 2, "tp": 2},
    "dp 2 x tp 2": {"dp": 2, "tp": 2},
    "cp 2": {"cp": 2},
    "ulysses 2": {"fsdp": 2, "ulysses": 2},
    "cp 4": {"cp": 4},
    "ulysses 4": {"dp": 2, "fsdp": 2, "ulysses": 4},
    "dp 2 x cp 2": {"dp": 2, "cp": 2},
    "fsdp 2 x cp 2": {"fsdp": 2, "cp": 2},
    "ulysses 2 x fsdp 2": {"fsdp": 4, "ulysses": 2},
    "ulysses 2 x cp 2": {"fsdp": 2, "cp": 2, "ulysses": 2},
    "cp 2 x tp 2": {"cp": 2, "tp": 2},
    "ulysses 2 x tp 2": {"dp": 2, "tp": 2, "ulysses": 2},
    "sequence 2": {"tp": 2, "sequence_parallel": True},
    "fsdp 2 x sequence 2": {"fsdp": 2, "tp": 2, "sequence_parallel": True},
    "dp 2 x sequence 2": {"dp": 2, "tp": 2, "sequence_parallel": True},
    "cp 2 x sequence 2": {"cp": 2, "tp": 2, "sequence_parallel": True},
    "ulysses 2 x sequence 2": {"dp": 2, "tp": 2, "ulysses": 2, "sequence_parallel": True},
    "pp 2": {"pp": 2},
    "pp 2 x dp 2": {"pp": 2, "dp": 2},
    "pp 2 x fsdp 2": {"pp": 2, "fsdp": 2},
    "pp 2 x tp 2": {"pp": 2, "tp": 2},
    "pp 2 x sequence 2": {"pp": 2, "tp": 2, "sequence_parallel": True},
}
OF_EP = {
    "fsdp 2 x ep 2": {"fsdp": 2, "ep": 2},
    "tp 2 x ep 2": {"tp": 2, "ep": 2},
    "fsdp 4 x ep 2": {"fsdp": 4, "ep": 2},
    "fsdp 2 x tp 2 x ep 2": {"fsdp": 2, "tp": 2, "ep": 2},
    "fsdp 2 x cp 2 x ep 2": {"fsdp": 2, "cp": 2, "ep": 2},
    "ulysses 2 x ep 2": {"fsdp": 4, "ulysses": 2, "ep": 2},
    "dp 2 x ep 2": {"dp": 2, "ep": 2},
    "dp 2 x fsdp 2 x ep 2": {"dp": 2, "fsdp": 2, "ep": 2},
    "dp 2 x fsdp 2 x ep 4": {"dp": 2, "fsdp": 2, "ep": 4},
    "dp 2 x tp 2 x ep 2": {"dp": 2, "tp": 2, "ep": 2},
    "sequence 2 x ep 2": {"tp": 2, "ep": 2, "sequence_parallel": True},
}
"""The layouts of models with experts."""
OF_PIPELINES = {
    "pp 2 x vpp 2": {"pp": 2, "vpp": 2},
    "pp 4": {"pp": 4},
    "pp 2 x vpp 2 x fsdp 2": {"pp": 2, "vpp": 2, "fsdp": 2},
    "pp 2 x vpp 2 x dp 2": {"pp": 2, "vpp": 2, "dp": 2},
    "pp 2 x vpp 2 x sequence 2": {"pp": 2, "vpp": 2, "tp": 2, "sequence_parallel": True},
    "pp 2 x dp 2 x tp 2": {"pp": 2, "dp": 2, "tp": 2},
    "pp 2 x dp 2 x fsdp 2": {"pp": 2, "dp": 2, "fsdp": 2},
}
"""The layouts of a model with more layers, and those of eight ranks."""
CARVED = ("ulysses", "ep", "vpp", "sequence_parallel")
"""The keys whose ranks are those of other dims."""
ALL = {**LAYOUTS, **OF_EP, **OF_PIPELINES}
