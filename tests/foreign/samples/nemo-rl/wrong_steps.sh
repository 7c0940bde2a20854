uv run python examples/run_sft.py \
    policy.model_name=Qwen/Qwen3-8B \
    sft.max_num_steps=0 \
    sft.max_num_epochs=3 \
    cluster.gpus_per_node=8
