"""Did you mean: first what other systems call the same thing, then the nearest by spelling.

`difflib` alone proposes `npu` for `gpu`; the table knows better.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

ELSEWHERE = {
    "world_size": "ranks",
    "num_gpus": "ranks",
    "num_workers": "ranks",
    "gpus": "ranks",
    "nproc_per_node": "ranks",
    "device": "device_type",
    "class": "_target_",
    "target": "_target_",
    "kwargs": "args",
    "tensor_model_parallel_size": "tp_size",
    "tensor_parallel_size": "tp_size",
    "tp": "tp_size",
    "pipeline_model_parallel_size": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "pp": "pp_size",
    "data_parallel_size": "dp_size",
    "dp": "dp_size",
    "ddp_size": "dp_size",
    "dp_replicate_size": "dp_size",
    "dp_shard_size": "fsdp_size",
    "fsdp": "fsdp_size",
    "context_parallel_size": "cp_size",
    "cp": "cp_size",
    "sp_size": "ulysses_size",
    "sp": "ulysses_size",
    "ulysses": "ulysses_size",
    "ulysses_sp_size": "ulysses_size",
    "ulysses_sequence_parallel_size": "ulysses_size",
    "expert_model_parallel_size": "ep_size",
    "expert_parallel_size": "ep_size",
    "ep": "ep_size",
    "expert_tensor_parallel_size": "etp_size",
    "etp": "etp_size",
    "ep_fsdp": "ep_fsdp_size",
    "virtual_pipeline_model_parallel_size": "vpp_size",
    "vpp": "vpp_size",
    "num_nodes": "nodes",
    "nnodes": "nodes",
    "gpus_per_node": "devices_per_node",
    "n_gpus_per_node": "devices_per_node",
    "total_steps": "steps",
    "max_steps": "steps",
    "num_epochs": "epochs",
    "total_epochs": "epochs",
    "max_epochs": "epochs",
    "output_dir": "dir",
    "input": "in",
    "inputs": "in",
    "batch_size": "samples",
    "staleness": "max_staleness",
    "interval": "every",
    "script": "program",
    "entrypoint": "program",
    "depends_on": "after",
}
MOST = 12
"""Options that a help lists."""


def nearest(word: str, options: Iterable[str]) -> str:
    """The option that was probably meant, or nothing."""
    options = list(options)
    meant = ELSEWHERE.get(word.lower().replace("-", "_"), "")
    if meant in options:
        return meant
    lowered = {option.lower(): option for option in reversed(options)}
    close = get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return lowered[close[0]] if close else ""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """A help text: the nearest option, else what there is."""
    options = list(options)
    if meant := nearest(word, options):
        return f"did you mean `{meant}`?"
    return f"there {'is' if len(options) == 1 else 'are'} {listed(options)}" if options else ""


def listed(options: Iterable[str], word: str = "and") -> str:
    """`a`, `b` and `c`; a long list is cut."""
    quoted = [f"`{option}`" for option in options]
    if len(quoted) > MOST:
        return f"{', '.join(quoted[: MOST - 1])} {word} {len(quoted) - MOST + 1} more"
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {word} {quoted[-1]}" if quoted else ""


def counted(count: int, noun: str) -> str:
    """1 rank, 2 ranks."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
