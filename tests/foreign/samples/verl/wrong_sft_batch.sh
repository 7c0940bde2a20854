# Supervised training on chats.
torchrun --standalone --nnodes=1 --nproc_per_node=6 -m verl.trainer.sft_trainer \
    data.train_files=chats.jsonl \
    data.messages_key=messages \
    data.train_batch_size=64 \
    data.max_length=4096 \
    data.truncation=right \
    data.max_token_len_per_gpu=16384 \
    optim.lr=2e-5 optim.lr_scheduler_type=cosine optim.lr_warmup_steps_ratio=0.03 \
    engine=fsdp engine.ulysses_sequence_parallel_size=2 \
    model.path=Qwen/Qwen3-8B model.lora_rank=32 model.lora_alpha=16 model.target_modules=all-linear \
    trainer.project_name=chats trainer.experiment_name=qwen3_8b_lora trainer.logger=console \
    trainer.total_epochs=2 trainer.save_freq=200
