trl reward \
    --model_name_or_path Qwen/Qwen3-8B \
    --dataset_name trl-lib/ultrafeedback_binarized \
    --center_rewards_coefficient 0.01 \
    --max_length 2048 \
    --learning_rate 1.0e-5 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 8 \
    --accelerate_config zero3 \
    --output_dir out/qwen3-reward
