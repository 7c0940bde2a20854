uv run python examples/run_grpo.py policy.model_name=Qwen/Qwen3-8B \
    loss_fn.sequence_level_importance_ratios=true \
    loss_fn.ratio_clip_min=3e-4 loss_fn.ratio_clip_max=4e-4 \
    cluster.gpus_per_node=8
