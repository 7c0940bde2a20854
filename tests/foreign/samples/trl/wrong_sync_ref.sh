trl grpo \
    --model_name_or_path Qwen/Qwen3-8B \
    --dataset_name trl-lib/DeepMath-103K \
    --reward_funcs accuracy_reward \
    --num_generations 8 \
    --per_device_train_batch_size 8 \
    --sync_ref_model \
    --ref_model_sync_steps 64 \
    --num_processes 4 \
    --max_steps 100
