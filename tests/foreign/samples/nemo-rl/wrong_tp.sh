uv run python examples/run_sft.py \
    policy.model_name=Qwen/Qwen3-8B \
    policy.train_global_batch_size=64 \
    policy.dtensor_cfg.tensor_parallel_size=3 \
    +data.train.data_path=chats.jsonl data.train.dataset_name=openai_format \
    cluster.gpus_per_node=8
