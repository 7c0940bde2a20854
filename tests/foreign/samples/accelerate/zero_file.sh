# The settings of DeepSpeed are in a file of its own.
accelerate launch --use_deepspeed --deepspeed_config_file ds_zero2.json --zero3_init_flag false \
  --num_processes=8 --num_machines=1 --main_process_port=0 \
  -m reward_modeling --dataset my-org/pairs --bf16
