uv run python examples/run_grpo.py policy.model_name=Qwen/Qwen3-8B \
    policy.generation.vllm_cfg.tensor_parallel_size=3 \
    cluster.gpus_per_node=8
