trl dpo \
    --model_name_or_path Qwen/Qwen3-8B \
    --dataset_name trl-lib/ultrafeedback_binarized \
    --load_in_4bit \
    --max_steps 500
