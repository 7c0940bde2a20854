trl sft \
    --model_name_or_path Qwen/Qwen3-8B \
    --dataset_name trl-lib/Capybara \
    --max_steps 500 \
    --num_machines 8 \
    --num_processes 12
