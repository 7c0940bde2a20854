uv run python examples/run_grpo.py policy.model_name=Qwen/Qwen3-8B \
    policy.generation.colocated.enabled=false \
    policy.generation.colocated.resources.gpus_per_node=8 \
    cluster.gpus_per_node=8
