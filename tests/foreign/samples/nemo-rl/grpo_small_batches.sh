#!/bin/bash
# Two updates for each batch of answers, on the example of GRPO, with a reward that scales with the group.
NODES=1
uv run python examples/run_grpo.py \
    policy.model_name="Qwen/Qwen3-8B" \
    grpo.num_prompts_per_step=64 \
    grpo.num_generations_per_prompt=8 \
    grpo.normalize_rewards=false \
    grpo.use_leave_one_out_baseline=true \
    grpo.max_num_steps=200 \
    policy.train_global_batch_size=256 \
    policy.train_micro_batch_size=1 \
    policy.max_total_sequence_length=2048 \
    policy.generation.max_new_tokens=1536 \
    policy.optimizer.kwargs.lr=3e-7 \
    loss_fn.reference_policy_kl_penalty=0.0 \
    +loss_fn.use_importance_sampling_correction=true \
    ++loss_fn.truncated_importance_sampling_type=tis \
    ++loss_fn.truncated_importance_sampling_ratio=2.0 \
    data.train.dataset_name=DeepScaler \
    data.default.prompt_file=null \
    checkpointing.save_period=25 \
    logger.tensorboard_enabled=True \
    cluster.gpus_per_node=8 \
    cluster.num_nodes=$NODES
