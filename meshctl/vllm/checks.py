"""Facts about the classes of this room that `validate` checks. It imports no library."""

from __future__ import annotations

from meshctl.argument_limits import Shipped

OF_THE_ENGINE = (
    *("data_parallel_size", "distributed_executor_backend", "dtype", "enable_prefix_caching"),
    *(
        "enable_lora",
        "max_lora_rank",
        "max_loras",
        "enable_sleep_mode",
        "generation_config",
        "hf_overrides",
        "kv_cache_memory_bytes",
        "logprobs_mode",
    ),
    *("model", "pipeline_parallel_size", "skip_tokenizer_init", "tensor_parallel_size", "tokenizer"),
    "weight_transfer_config",
)
"""The arguments of `vllm.LLM` that follow from the sampler's other arguments and from its mesh."""
LORA = ("r", "alpha", "target", "dropout")
"""The keys of an adapter."""
SAMPLER = Shipped(
    ranges={
        "max_new_tokens": ">= 1",
        "group_size": ">= 1",
        "temperature": ">= 0",
        "top_p": "> 0, <= 1",
        "top_k": ">= 0",
        "stop": ">= 0, nonempty",
        "kv_cache_bytes": ">= 1",
        "lora.r": ">= 1, <= 512",
    },
    reserved={"engine": OF_THE_ENGINE},
    has_tokenizer=True,
    has_models_tokenizer=True,
    choices={"dtype": "meshctl.vllm.options.DTYPES", "lora": "meshctl.vllm.checks.LORA"},
    samples=True,
    devices_per_worker=1,
    device_types={"sleep": ("cuda",)},
)
SHIPPED = {"Sampler": SAMPLER}
