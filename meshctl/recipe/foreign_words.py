"""The words of TRL, transformers, accelerate, verl and DeepSpeed that are not another name of a key (those
are its `aliases` in `fields.py`): the argument of a component that means the same, and one line of help."""

from __future__ import annotations

_EVALUATION = "an evaluation is a stage of the pipeline, or a block of stages, with `every: STEPS`"
_MINIBATCHES = "write a block of the pipeline with `repeat: {times: ROUNDS, over: STAGE, size: SAMPLES}`"
_ONE_WORKER = (
    "a component on one worker is in a group of its own, `{ranks: 1, colocate: GROUP}` (on cpu without "
    "`colocate`); a stage with `execute: first` calls a component of all workers on the first one"
)
# fmt: off
_ROWS = (
    ("resume_from_checkpoint resume", "", "to continue a run, launch its folder: meshctl launch RUN_DIR"),
    ("lazy_collect", "", "remove it: a value moves only to the stages that take it"),
    ("mesh_shape", "", "the sizes of the mesh go under `parallel`: {dp_size: 2, tp_size: 4}"),
    ("deepspeed zero_optimization zero_stage fsdp_config", "", "write `parallel: {fsdp_size: RANKS}`"),
    ("eval_every eval_interval eval_steps eval_freq test_freq val_check_interval eval_strategy "
        "evaluation_strategy validation_freq val_before_train do_eval", "", _EVALUATION),
    ("ppo_epochs num_ppo_epochs update_epochs num_minibatches num_mini_batches minibatch minibatch_size "
        "mini_batch_size ppo_mini_batch_size ppo_minibatch_size", "", _MINIBATCHES),
    ("early_stopping_patience early_stop_patience", "", "write `run.stop: {on: STAGE.NAME, patience: 3}`"),
    ("wandb wandb_project tensorboard mlflow", "", "it is a tracker: `run.track`"),
    ("logging_steps logging_strategy log_interval", "", "remove it: metrics.jsonl has those of each step"),
    ("save_steps save_strategy", "", "write `run.checkpoint: {every: STEPS}`"),
    ("remote_class execute_on", "", _ONE_WORKER),
    ("data dataset datasets train_files train_dataset dataset_name data_path data_files", "path", ""),
    ("model_name_or_path model_name model_path pretrained_model_name_or_path", "model", ""),
    ("tokenizer_name tokenizer_name_or_path processing_class", "tokenizer", ""),
    ("learning_rate actor_lr base_lr", "lr", ""),
    ("optim", "optimizer", ""),
    ("weight_decay adam_beta1 adam_beta2 adam_epsilon", "optimizer_options", "{weight_decay: 0.1}"),
    ("schedule lr_scheduler_type lr_scheduler scheduler", "schedule", "{name: cosine, warmup: 10}"),
    ("warmup_ratio warmup_steps num_warmup_steps lr_warmup_steps", "schedule", "{warmup: 10}"),
    ("num_training_steps", "schedule", "{steps: 100}"),
    ("max_grad_norm gradient_clipping clip_grad grad_clip clip_grad_norm", "clip", ""),
    ("per_device_train_batch_size per_device_batch_size micro_batch_size train_micro_batch_size_per_gpu "
        "ppo_micro_batch_size_per_gpu", "micro_batch", "samples of a rank"),
    ("gradient_accumulation_steps accumulate_grad_batches", "micro_batch", "the passes follow from it"),
    ("mixed_precision precision bf16 fp16", "compute_dtype", "bfloat16; `dtype` is that of the weights"),
    ("torch_dtype model_dtype", "dtype", ""),
    ("attn_implementation", "attention", ""),
    ("torch_compile", "compile", ""),
    ("gradient_checkpointing activation_checkpoint", "activation_checkpointing", ""),
    ("lora use_peft peft_config lora_r lora_rank lora_alpha lora_dropout", "lora", "{r: 16, alpha: 32}"),
    ("lora_target lora_target_modules target_modules", "lora", "{target: all-linear}"),
    ("loss_type loss_fn", "loss", ""),
    ("adv_estimator", "advantage", ""),
    ("clip_ratio clip_range cliprange clip_eps clip_epsilon epsilon", "loss_options", "{clip: 0.2}"),
    ("clip_ratio_high clip_ratio_h epsilon_high", "loss_options", "{clip_high: 0.28}"),
    ("beta kl_coef kl_loss_coef init_kl_coef", "loss_options", "{kl: 0.01}"),
    ("num_generations num_return_sequences rollout_n n", "group_size", "the answers to each prompt"),
    ("max_completion_length max_response_length response_length max_tokens", "max_new_tokens", ""),
    ("max_prompt_length", "max_prompt_tokens", ""),
    ("max_seq_length max_seq_len model_max_length cutoff_len", "max_length", ""),
    ("packing", "pack", ""),
    ("assistant_only_loss completion_only_loss train_on_prompt", "learn", ""),
    ("reward_funcs reward_function custom_reward_function reward_fn", "functions", ""),
)
# fmt: on
FOREIGN = {word: (ours, line) for words, ours, line in _ROWS for word in words.split()}
"""Word -> (argument of the same meaning, or an empty string; help, a text or an example in braces)."""


def foreign_help(key: str, arguments: frozenset[str] | None = None) -> str:
    """Returns help for a word of another system; empty for other words. `arguments` are those of the
    constructor to which it was given; None for a key outside of `args`."""
    ours, line = FOREIGN.get(key.lower().replace("-", "_"), ("", ""))
    if not ours:
        return line
    written = f"`{ours}: {line}`" if line[:1] == "{" else f"`{ours}`{', ' * bool(line)}{line}"
    if arguments is None:
        return f"it is an argument of a component, {written}, under `components.NAME.args`"
    return f"write {written}" if ours in arguments else ""
