uv run python examples/run_grpo.py policy.model_name=Qwen/Qwen3-8B \
    policy.dtensor_cfg.tensor_parallel_size=4 \
    policy.train_micro_batch_size=2 \
    policy.logprob_batch_size=8 \
    cluster.gpus_per_node=8
