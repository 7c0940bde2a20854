# Texts of up to 8192 tokens, and micro-batches of 4096
uv run python examples/run_grpo.py policy.model_name=Qwen/Qwen3-8B \
    policy.max_total_sequence_length=8192 \
    policy.sequence_packing.train_mb_tokens=4096 \
    policy.generation.max_new_tokens=6144 \
    cluster.gpus_per_node=8
