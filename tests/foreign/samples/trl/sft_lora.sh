#!/bin/bash
# An adapter on two GPUs
MODEL=Qwen/Qwen3-8B
trl sft \
    --model_name_or_path $MODEL \
    --dataset_name trl-lib/Capybara \
    --learning_rate 2.0e-4 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 8 \
    --max_length 2048 \
    --use_peft \
    --lora_r 32 \
    --lora_alpha 16 \
    --lora_target_modules all-linear \
    --dtype bfloat16 \
    --num_processes 2 \
    --logging_steps 25 \
    --output_dir out/qwen3-lora
