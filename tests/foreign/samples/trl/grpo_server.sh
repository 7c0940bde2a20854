# The server on two GPUs, the training on four
CUDA_VISIBLE_DEVICES=4,5 trl vllm-serve --model Qwen/Qwen3-8B --tensor_parallel_size 2 &

CUDA_VISIBLE_DEVICES=0,1,2,3 trl grpo \
    --model_name_or_path Qwen/Qwen3-8B \
    --dataset_name trl-lib/DeepMath-103K \
    --reward_funcs accuracy_reward \
    --use_vllm --vllm_mode server \
    --num_generations 8 --num_iterations 2 \
    --loss_type dr_grpo --scale_rewards none \
    --beta 0.001 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --steps_per_generation 16 \
    --max_steps 400 --learning_rate 1.0e-6 \
    --num_processes 4 \
    --output_dir out/qwen3-dr-grpo
