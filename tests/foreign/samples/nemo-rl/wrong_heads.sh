# 32 heads on 6 tensor ranks
uv run python examples/run_dpo.py policy.model_name=Qwen/Qwen3-8B \
    policy.train_global_batch_size=64 policy.train_micro_batch_size=1 \
    policy.dtensor_cfg.tensor_parallel_size=6 \
    dpo.val_period=0 \
    data.train.dataset_name=BinaryPreferenceDataset +data.train.data_path=pairs.jsonl \
    cluster.gpus_per_node=6
