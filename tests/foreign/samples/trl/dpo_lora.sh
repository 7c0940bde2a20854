# An adapter: the reference is the model without it
accelerate launch --config_file configs/zero2.yaml --num_processes 4 \
    trl/scripts/dpo.py \
    --model_name_or_path Qwen/Qwen3-8B \
    --dataset_name trl-lib/ultrafeedback_binarized \
    --dataset_train_split train \
    --loss_type ipo --beta 0.1 \
    --learning_rate 1e-6 --lr_scheduler_type cosine --warmup_steps 50 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \
    --max_grad_norm 0 \
    --eval_strategy steps --eval_steps 200 \
    --use_peft --lora_r 16 --lora_alpha 32 \
    --report_to none
