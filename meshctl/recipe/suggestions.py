"""Did you mean: first what other systems call the same thing, then the nearest by spelling.

`difflib` alone proposes `npu` for `gpu`; the table knows better.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

ELSEWHERE = {
    # groups
    "world_size": "ranks",
    "num_gpus": "ranks",
    "n_gpus": "ranks",
    "ngpus": "ranks",
    "num_devices": "ranks",
    "n_devices": "ranks",
    "num_workers": "ranks",
    "num_processes": "ranks",
    "n_procs": "ranks",
    "gpus": "ranks",
    "nproc": "ranks",
    "nproc_per_node": "ranks",
    "device": "device_type",
    "accelerator": "device_type",
    "cuda_visible_devices": "visible_devices",
    "ascend_rt_visible_devices": "visible_devices",
    "gpus_per_process": "gpus_per_worker",
    "gpus_per_rank": "gpus_per_worker",
    "num_gpus_per_worker": "gpus_per_worker",
    "envs": "env",
    "env_vars": "env",
    "environment": "env",
    "runtime_env": "env",
    "colocated_with": "colocate",
    "script": "program",
    "entrypoint": "program",
    "interpreter": "python",
    "workdir": "cwd",
    "working_dir": "cwd",
    # cluster
    "num_nodes": "nodes",
    "nnodes": "nodes",
    "n_nodes": "nodes",
    "num_machines": "nodes",
    "gpus_per_node": "devices_per_node",
    "n_gpus_per_node": "devices_per_node",
    "num_gpus_per_node": "devices_per_node",
    "ngpus_per_node": "devices_per_node",
    "n_devices_per_node": "devices_per_node",
    "accelerators_per_node": "devices_per_node",
    # components
    "class": "_target_",
    "cls": "_target_",
    "class_path": "_target_",
    "class_name": "_target_",
    "target": "_target_",
    "kwargs": "args",
    "params": "args",
    "init_args": "args",
    "arguments": "args",
    "device_group": "group",
    "remote_group": "group",
    "parallelism": "parallel",
    "parallel_config": "parallel",
    "parallel_dims": "parallel",
    "device_mesh": "parallel",
    "freeze": "frozen",
    # parallel
    "tensor_model_parallel_size": "tp_size",
    "tensor_parallel_size": "tp_size",
    "tensor_parallel_degree": "tp_size",
    "tp_degree": "tp_size",
    "tp": "tp_size",
    "pipeline_model_parallel_size": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "pipeline_parallel_degree": "pp_size",
    "pp_degree": "pp_size",
    "num_pipeline_stages": "pp_size",
    "pp": "pp_size",
    "data_parallel_size": "dp_size",
    "data_parallel_degree": "dp_size",
    "dp": "dp_size",
    "ddp": "dp_size",
    "ddp_size": "dp_size",
    "dp_replicate": "dp_size",
    "dp_replicate_size": "dp_size",
    "data_parallel_replicate_degree": "dp_size",
    "num_replicas": "dp_size",
    "dp_shard": "fsdp_size",
    "dp_shard_size": "fsdp_size",
    "data_parallel_shard_degree": "fsdp_size",
    "fsdp": "fsdp_size",
    "context_parallel_size": "cp_size",
    "context_parallel_degree": "cp_size",
    "cp_degree": "cp_size",
    "cp": "cp_size",
    "sp_size": "ulysses_size",
    "sp": "ulysses_size",
    "ulysses": "ulysses_size",
    "ulysses_degree": "ulysses_size",
    "ulysses_sp_size": "ulysses_size",
    "ulysses_parallel_size": "ulysses_size",
    "ulysses_sequence_parallel_size": "ulysses_size",
    "sequence_parallel_size": "ulysses_size",
    "expert_model_parallel_size": "ep_size",
    "expert_parallel_size": "ep_size",
    "expert_parallel_degree": "ep_size",
    "ep_degree": "ep_size",
    "ep": "ep_size",
    "expert_tensor_parallel_size": "etp_size",
    "expert_tensor_parallel_degree": "etp_size",
    "etp": "etp_size",
    "ep_fsdp": "ep_fsdp_size",
    "expert_data_parallel_size": "ep_fsdp_size",
    "virtual_pipeline_model_parallel_size": "vpp_size",
    "virtual_pipeline_parallel_size": "vpp_size",
    "num_virtual_stages": "vpp_size",
    "vpp": "vpp_size",
    "dim_order": "order",
    "mesh_dim_names": "order",
    # a model
    "num_attention_heads": "num_heads",
    "n_heads": "num_heads",
    "n_head": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "num_query_groups": "num_kv_heads",
    "n_kv_heads": "num_kv_heads",
    "kv_heads": "num_kv_heads",
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_vocab": "vocab_size",
    "padded_vocab_size": "vocab_size",
    "num_hidden_layers": "num_layers",
    "n_layers": "num_layers",
    "n_layer": "num_layers",
    "num_local_experts": "num_experts",
    "n_routed_experts": "num_experts",
    "num_moe_experts": "num_experts",
    "seq_len": "sequence_length",
    "seq_length": "sequence_length",
    "max_seq_len": "sequence_length",
    # run
    "total_steps": "steps",
    "max_steps": "steps",
    "max_num_steps": "steps",
    "num_steps": "steps",
    "train_steps": "steps",
    "training_steps": "steps",
    "total_training_steps": "steps",
    "train_iters": "steps",
    "max_iters": "steps",
    "num_epochs": "epochs",
    "total_epochs": "epochs",
    "max_epochs": "epochs",
    "max_num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "output_dir": "dir",
    "default_local_dir": "dir",
    "checkpointing": "checkpoint",
    "ckpt": "checkpoint",
    "grace_period": "grace",
    "timeout": "patience",
    "timeout_seconds": "patience",
    "run_name": "name",
    "experiment_name": "name",
    "random_seed": "seed",
    "variables": "vars",
    # a checkpoint
    "interval": "every",
    "freq": "every",
    "frequency": "every",
    "period": "every",
    "every_n_steps": "every",
    "every_n_train_steps": "every",
    "keep_last": "keep",
    "keep_top_k": "keep",
    "max_to_keep": "keep",
    "max_ckpt_to_keep": "keep",
    "max_actor_ckpt_to_keep": "keep",
    "save_total_limit": "keep",
    "save_top_k": "keep",
    # stages
    "input": "in",
    "inputs": "in",
    "batch_size": "samples",
    "num_samples": "samples",
    "n_samples": "samples",
    "staleness": "max_staleness",
    "max_policy_age": "max_staleness",
    "staleness_threshold": "max_staleness",
    "depends_on": "after",
    "allow_padding": "allow_empty",
    "balance_tokens": "balance",
    "balance_batch": "balance",
    "equal_size": "equal_counts",
}
"""Another system's word -> the key that means the same here."""
ALIKE = {
    "config_path": ("config",),
    "model_path": ("config",),
    "save_every": ("every",),
    "save_interval": ("every",),
    "save_period": ("every",),
    "save_freq": ("every",),
    "save_steps": ("every",),
    "log_dir": ("dir",),
    "save_path": ("dir",),
    "save_dir": ("dir",),
    "max_length": ("sequence_length",),
    "zero_size": ("fsdp_size",),
    "num_shards": ("fsdp_size",),
    "experts": ("num_experts",),
    "layers": ("num_layers",),
    "heads": ("num_heads",),
    "mesh": ("parallel",),
    "layout": ("parallel",),
    "device_ids": ("visible_devices",),
    "gpu_ids": ("visible_devices",),
    "resource_pool": ("group",),
    "placement": ("group",),
    "backend_type": ("device_type",),
    "dim": ("hidden_size",),
    "strategy": ("mode",),
    "command": ("program",),
    "nproc_per_node": ("devices_per_node",),
    "devices": ("ranks", "devices_per_node", "visible_devices"),
    "device": ("ranks",),
    "global_batch_size": ("samples",),
    "train_batch_size": ("samples",),
    "train_global_batch_size": ("samples",),
    "rollout_batch_size": ("samples",),
    "num_prompts_per_step": ("samples",),
    "tensor_parallel": ("tp_size",),
    "pipeline_parallel": ("pp_size",),
    "data_parallel": ("dp_size",),
    "context_parallel": ("cp_size",),
    "expert_parallel": ("ep_size",),
    "hsdp": ("dp_size",),
    "from": ("in", "sync"),
    "source": ("in", "sync"),
    "target": ("to",),
    "type": ("_target_", "device_type"),
    "method": ("call",),
    "endpoint": ("call",),
    "function": ("call",),
    "component": ("call",),
    "max_model_len": ("sequence_length",),
    "max_position_embeddings": ("sequence_length",),
    "checkpoint_interval": ("checkpoint",),
    "resources": ("groups",),
    "device_groups": ("groups",),
    "workers": ("components",),
    "models": ("components",),
    "roles": ("components",),
    "stages": ("pipeline",),
    "flow": ("pipeline",),
    "trainer": ("run",),
    "nodes": ("cluster",),
}
"""What may be meant as well, or means only about the same: it is proposed, and never put in place."""
MOST = 12
"""Options that a help lists."""
LONGEST = 80
"""Letters of a word that may be a misspelling of another."""


def meanings(word: str, loosely: bool = True) -> tuple[str, ...]:
    """What a word of another system is called here, `loosely` with what means only about the same."""
    word = word.lower().replace("-", "_")
    return tuple(
        dict.fromkeys(
            (*([ELSEWHERE[word]] if word in ELSEWHERE else []), *(ALIKE.get(word, ()) if loosely else ()))
        )
    )


def called(word: str, options: Iterable[str]) -> str:
    """The option that another system calls so, or nothing."""
    options = list(options)
    return next((meant for meant in meanings(word) if meant in options), "")


def nearest(word: str, options: Iterable[str]) -> str:
    """The option that was probably meant, or nothing."""
    options = list(options)
    if meant := called(word, options):
        return meant
    lowered = {option.lower(): option for option in reversed(options)}
    close = get_close_matches(word.lower(), lowered, n=1, cutoff=0.6) if len(word) <= LONGEST else []
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
    return (
        quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {word} {quoted[-1]}" if quoted else ""
    )


def counted(count: int, noun: str) -> str:
    """1 rank, 2 ranks."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
