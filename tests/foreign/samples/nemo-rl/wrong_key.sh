uv run python examples/run_grpo.py policy.model_name=Qwen/Qwen3-8B \
    grpo.num_prompt_per_step=64 \
    cluster.gpus_per_node=8
