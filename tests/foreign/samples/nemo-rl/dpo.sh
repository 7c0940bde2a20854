# DPO of Qwen3-8B on two nodes, without a file of its own: the values of the example of DPO hold.
export HF_HUB_OFFLINE=1
uv run python examples/run_dpo.py \
    policy.model_name=Qwen/Qwen3-8B \
    policy.tokenizer.name=Qwen/Qwen3-8B \
    policy.train_global_batch_size=256 \
    policy.max_total_sequence_length=2048 \
    policy.dtensor_cfg.tensor_parallel_size=4 \
    policy.dtensor_cfg.sequence_parallel=true \
    policy.optimizer.kwargs.lr=5e-7 \
    dpo.reference_policy_kl_penalty=0.1 \
    dpo.max_num_steps=500 \
    dpo.val_period=0 \
    data.train.dataset_name=BinaryPreferenceDataset \
    +data.train.data_path=pairs.jsonl \
    +data.train.prompt_key=question \
    +data.train.chosen_key=better \
    +data.train.rejected_key=worse \
    checkpointing.checkpoint_dir=/results/dpo \
    cluster.gpus_per_node=8 cluster.num_nodes=2
