export OMP_NUM_THREADS=8
RANKS=8
accelerate-launch --num_processes ${RANKS} --num_machines 1 --mixed_precision bf16 --dynamo_backend no \
  --use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP \
  --fsdp_reshard_after_forward false --fsdp_activation_checkpointing true \
  --fsdp_state_dict_type SHARDED_STATE_DICT \
  --use_parallelism_config --parallelism_config_dp_shard_size 4 --parallelism_config_cp_size 2 \
  train.py --output_dir out
